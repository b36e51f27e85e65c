package iptables

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// TestMissing checks that the error names the missing program.
func TestMissing(t *testing.T) {
	t.Parallel()
	if _, err := open(t.Context(), "iptables-of-nobody"); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "iptables-of-nobody-save") {
		t.Errorf("got %v, want one that wraps ErrMissing and names the program", err)
	}
}

// TestReadFails checks that a partial read is an error.
func TestReadFails(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{"refused.sh": "no permission", "endless.sh": "token too long"} {
		path, err := filepath.Abs(filepath.Join("testdata", script))
		if err != nil {
			t.Fatal(err)
		}
		k := NewKeeper(&Tool{save: path})
		if _, err := k.Apply(t.Context(), sample()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want one that has %q", script, err, want)
		}
	}
}
