package server

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/rpc/servers"
)

func TestRows(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	gone := now.Add(-time.Minute)
	got := rows([]servers.Row{
		{Server: servers.Server{Name: "a", API: "https://10.0.0.1:5000", Version: "v1", Joined: now.Add(-time.Hour)}, Ready: true, Active: true},
		{Server: servers.Server{Name: "b", API: "https://10.0.0.2:5000", Version: "v1", Joined: now.Add(-time.Hour), Removed: &gone}, Problem: "no \x1b[31m"},
		{Server: servers.Server{Name: "c", API: "https://10.0.0.3:5000", Version: "v1", Joined: now.Add(-time.Hour), Removed: &gone}},
	}, now)
	want := []string{
		"a\thttps://10.0.0.1:5000\tyes\tyes\t60m\tv1\t",
		"b\thttps://10.0.0.2:5000\tno\tno\t60m\tv1\tit is being removed: no ^[[31m",
		"c\thttps://10.0.0.3:5000\tno\tno\t60m\tv1\tit is being removed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}
