package fetch

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLimitsOrOthers(t *testing.T) {
	t.Parallel()
	others := Limits{Bytes: 1, Entries: 2, DownloadBytes: 3, Time: 4 * time.Second, Stall: 5 * time.Second, ReserveBytes: 6}
	for name, tc := range map[string]struct{ given, want Limits }{
		"none":     {Limits{}, others},
		"all":      {Limits{7, 8, 9, time.Minute, time.Hour, 10}, Limits{7, 8, 9, time.Minute, time.Hour, 10}},
		"negative": {Limits{-1, -1, -1, -1, -1, -1}, others},
		"some":     {Limits{Bytes: 7, Stall: time.Hour}, Limits{7, 2, 3, 4 * time.Second, time.Hour, 6}},
	} {
		if diff := cmp.Diff(tc.want, tc.given.Or(others)); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
	}
}
