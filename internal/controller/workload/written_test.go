package workload

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
)

// statuses is a client that only writes statuses.
type statuses struct {
	client.Client
	writes *writeCounter
}

func (s statuses) Status() client.SubResourceWriter { return s.writes }

// writeCounter counts the writes.
type writeCounter struct {
	client.SubResourceWriter

	writes int
}

// Update implements client.SubResourceWriter.
func (l *writeCounter) Update(context.Context, client.Object, ...client.SubResourceUpdateOption) error {
	l.writes++
	return nil
}

// TestStatusIsWrittenOnceASecond: the status is written at most once a second, however often
// the instances change. The last change is not lost.
func TestStatusIsWrittenOnceASecond(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	stored := &writeCounter{}
	r := &Reconciler{written: map[types.NamespacedName]time.Time{}, config: Config{
		Client: statuses{writes: stored}, Workloads: index.NewObjects[*rikv1alpha1.Workload](), Now: func() time.Time { return now },
	}}
	w := &rikv1alpha1.Workload{}
	w.Namespace, w.Name = "default", "web"
	for tenth := range 100 {
		now = time.Unix(0, 0).Add(time.Duration(tenth) * 100 * time.Millisecond)
		again, err := r.writeStatus(t.Context(), w, rikv1alpha1.WorkloadStatus{Replicas: int32(tenth + 1)})
		if err != nil {
			t.Fatal(err)
		}
		if want := time.Duration((10-tenth%10)%10) * 100 * time.Millisecond; again != want {
			t.Errorf("after %d ms it is to be written in %s, want %s", tenth*100, again, want)
		}
	}
	if stored.writes != 10 {
		t.Errorf("%d writes in ten seconds, want 10", stored.writes)
	}
	other := &rikv1alpha1.Workload{}
	other.Namespace, other.Name = "default", "other"
	if again, err := r.writeStatus(t.Context(), other, rikv1alpha1.WorkloadStatus{Replicas: 1}); again != 0 || err != nil {
		t.Errorf("another workload's status is to wait for %s, %v", again, err)
	}
	if again, err := r.writeStatus(t.Context(), w, w.Status); again != 0 || err != nil || stored.writes != 11 {
		t.Errorf("a status that has not changed is to be written in %s, %v, after %d writes", again, err, stored.writes)
	}
}
