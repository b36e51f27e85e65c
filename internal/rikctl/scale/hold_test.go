package scale

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// reported is a server with one instance, whose node reports at some time that it is suspended.
type reported struct {
	client.Reader
	suspended atomic.Bool
	reads     atomic.Int32
	// after is the number of reads after which the node has reported.
	after int32
}

// Get implements client.Reader.
func (r *reported) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if r.reads.Add(1) > r.after && r.after > 0 {
		r.suspended.Store(true)
	}
	o.(*rikv1alpha1.Instance).Status.Suspended = r.suspended.Load()
	return nil
}

// TestAwaitHold waits for the status that follows from the node's report.
func TestAwaitHold(t *testing.T) {
	t.Parallel()
	i := &rikv1alpha1.Instance{}
	i.Name = "web-one"
	err := awaitHold(t.Context(), &reported{}, suspending, i, time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "the status does not show it yet") {
		t.Errorf("awaitHold() of one that runs = %v", err)
	}
	server := &reported{after: 2}
	if err := awaitHold(t.Context(), server, suspending, i, time.Minute); err != nil || server.reads.Load() != 3 {
		t.Errorf("awaitHold() = %v after %d reads, want success after 3", err, server.reads.Load())
	}
}
