package caches

import (
	"errors"
	"strings"
	"testing"
)

func TestRefused(t *testing.T) {
	t.Parallel()
	if got := refused(nil); got != "" {
		t.Errorf("refused() of nothing = %q", got)
	}
	damaged := errors.New("damaged")
	got := refused(map[string]error{"b": damaged, "a": errors.New(strings.Repeat("x", 1000)), "c": damaged, "d": damaged, "e": damaged})
	if !strings.HasPrefix(got, "a: xxx") || !strings.HasSuffix(got, "; b: damaged; c: damaged; and 2 more; see the log of the riklet") || len(got) > 500 {
		t.Errorf("refused() = %q", got)
	}
}
