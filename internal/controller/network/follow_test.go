package network

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
)

// reader is a node that follows a publisher.
type reader struct {
	mu sync.Mutex
	// mu guards the fields below.
	mirror   mirror
	messages int
}

func (r *reader) take(c *nodev1.NetworkChanges) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages++
	r.mirror.apply(c)
	return nil
}

func (r *reader) validate(t *testing.T, w *fixture, wholes int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mirror.problem != "" {
		t.Error(r.mirror.problem)
	}
	if r.mirror.wholes != wholes {
		t.Errorf("%d times the whole, want %d", r.mirror.wholes, wholes)
	}
	if want := linesOf(w.table.journal); !equal(r.mirror.lines, want) {
		t.Errorf("the node has %v, want %v", r.mirror.lines, want)
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Options{Domain: "example"})
		w.node("n", "192.0.2.1")
		w.serve(nil)
		for i := range 2500 {
			w.instance("web", fmt.Sprint("i", i), "n", "10.62.0.5")
		}
		p, r := NewPublisher(), &reader{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Follow(ctx, r.take) }()
		synctest.Wait()
		if r.messages != 0 {
			t.Errorf("%d messages while no controller is the active one", r.messages)
		}

		p.Set(w.table)
		synctest.Wait()
		r.validate(t, w, 1)
		if r.messages != 3 || r.mirror.settings.GetDomain() != "example" || r.mirror.settings.GetClusterCidr() != "10.62.0.0/16" {
			t.Errorf("%d messages with settings %v, want 3 for 2502 entries", r.messages, r.mirror.settings)
		}

		// The first change after a quiet time is sent at once. Changes that follow soon are sent
		// together.
		timePasses()
		w.change(w.instances.ByUID("i7"), func(in *rikv1alpha1.Instance) { in.Status.Ready = false })
		synctest.Wait()
		for i := range 100 {
			w.change(w.instances.ByUID("i8"), func(in *rikv1alpha1.Instance) { in.Status.Ready = i%2 == 1 })
			w.remove(w.instances.ByUID(uidOf(i + 100)))
		}
		timePasses()
		r.validate(t, w, 1)
		if r.messages != 5 {
			t.Errorf("%d messages for changes in two moments, want 2", r.messages-3)
		}

		// Another term sends the whole netmap again, without deleted objects.
		next := newFixture(t, Options{})
		next.node("other", "192.0.2.2")
		p.Set(nil)
		p.Set(next.table)
		synctest.Wait()
		r.validate(t, next, 2)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Follow = %v", err)
		}
	})
}

// TestFollowBehind: a reader that missed more changes than are remembered gets the whole
// netmap.
func TestFollowBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Options{})
		w.table.journal.mostGone = 3
		w.node("n", "192.0.2.1")
		w.serve(nil)
		for i := range 10 {
			w.instance("web", fmt.Sprint("i", i), "n", "10.62.0.5")
		}
		p, r := NewPublisher(), &reader{}
		p.Set(w.table)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Follow(ctx, r.take) }()
		synctest.Wait()
		for i := range 5 {
			w.remove(w.instances.ByUID(uidOf(i)))
		}
		timePasses()
		r.validate(t, w, 2)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Follow = %v", err)
		}
	})
}

func TestFollowEndsWithItsReader(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Options{})
	p, broken := NewPublisher(), errors.New("broken")
	p.Set(w.table)
	if err := p.Follow(t.Context(), func(*nodev1.NetworkChanges) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("Follow = %v, want the error of send", err)
	}
}
