package nodeapi

import (
	"context"
	"errors"
	"testing"
	"time"

	"rik.dev/rik/internal/rpc/nodev1"
)

// fences has a fence for the namespace shop only.
type fences struct {
	age           time.Duration
	proven, found bool
	err           error
}

func (f *fences) Fence(_ context.Context, namespace string) (time.Duration, bool, bool, error) {
	if namespace != "shop" {
		return 0, false, false, errors.New("asked for " + namespace)
	}
	return f.age, f.proven, f.found, f.err
}

// TestANodeIsSentHowOldAProofIs: a node receives the age of the last proof, and no age if there
// is no proof.
func TestANodeIsSentHowOldAProofIs(t *testing.T) {
	t.Parallel()
	w := newFixture(t, revisionWithSecret("web-1", "mine"))
	f := &fences{}
	w.server.cfg.Fences = f
	w.instances.Observe(bound("1", "node-1", "web-1"))
	pair, err := w.join(t, "node-1", "machine-1")
	if err != nil {
		t.Fatal(err)
	}
	stream := w.connect(t, pair, "node-1")
	ask := func() *nodev1.Object { return ask(t, stream, nodev1.Kind_KIND_FENCE, "") }

	*f = fences{age: 1500 * time.Microsecond, proven: true, found: true}
	if got := ask(); !got.GetFound() || got.GetAgeMillis() != 2 || got.GetError() != "" {
		t.Errorf("a proof of 1.5 ms: %v, want an age of 2", got)
	}
	*f = fences{found: true}
	if got := ask(); !got.GetFound() || got.AgeMillis != nil {
		t.Errorf("no proof yet: %v, want no age", got)
	}
	*f = fences{}
	if got := ask(); got.GetFound() || got.AgeMillis != nil || got.GetError() != "" {
		t.Errorf("a namespace of no kcp: %v, want not found", got)
	}
	*f = fences{age: time.Second, proven: true, found: true, err: errors.New("the API server is down")}
	if got := ask(); got.GetError() == "" || got.AgeMillis != nil {
		t.Errorf("an error: %v, want no age", got)
	}
}
