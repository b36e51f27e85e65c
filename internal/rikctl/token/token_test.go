package token

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/rpc/jointoken"
)

func TestTokenRows(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *time.Time { v := now.Add(d); return &v }
	got := tokenRows([]jointoken.Info{
		{ID: "aaaa", Created: now.Add(-time.Hour * 50), Description: "kept \x1b[31m"},
		{ID: "bbbb", Role: jointoken.RoleServer, Created: now.Add(-time.Hour), Expires: at(23 * time.Hour), Uses: 3, LastUsed: at(-time.Minute * 2)},
		{ID: "cccc", Created: now.Add(-time.Hour), Expires: at(0)},
	}, now)
	want := []string{
		"aaaa\tnode\t2d2h\tnever\t0\tnever\tkept ^[[31m",
		"bbbb\tserver\t60m\tin 23h\t3\t2m ago\t",
		"cccc\tnode\t60m\texpired\t0\tnever\t",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tokenRows (-want +got):\n%s", diff)
	}
}
