package workload

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// TestWaitingInstancesEndFirst: instances that wait for room are deleted first. Otherwise they
// would get the room of the others while they are about to be deleted too.
func TestWaitingInstancesEndFirst(t *testing.T) {
	t.Parallel()
	list := []*rikv1alpha1.Instance{
		member("runs", "r1", "up").Instance, member("waits", "r1", "pending").Instance,
		member("starts", "r1", "starting").Instance, member("waits too", "r1", "pending").Instance,
	}
	got := [2][]string{}
	for i, round := range waitingFirst(list) {
		for _, in := range round {
			got[i] = append(got[i], in.Name)
		}
	}
	want := [2][]string{{"waits", "waits too"}, {"runs", "starts"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rounds (-want +got):\n%s", diff)
	}
}
