package controller_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller"
	"rik.dev/rik/internal/controller/store"
	"rik.dev/rik/internal/testkit/apiprocess"
)

// TestElection: one of two controllers is active. When it ends, the other takes over with a
// higher term. No instance is started twice.
func TestElection(t *testing.T) {
	c := start(t, func(cfg *controller.Config) { cfg.LeaderElection, cfg.Identity = true, "first" }, "node-a")
	c.manual("web", 3)
	c.wantRunning("web", 3)
	second := c.config
	second.Identity = "second"
	standby, err := controller.New(second)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- standby.Run(ctx) }()
	leave := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run of the second = %v", err)
		}
	})
	t.Cleanup(leave)
	c.eventually("the second stands by", func() string {
		select {
		case <-standby.Ready():
			return ""
		default:
			return "it is not ready"
		}
	})
	var term int64
	c.scheduler.do(func() { term = c.scheduler.term })
	c.leaveOnly()
	c.eventually("the second takes over", func() string {
		out := "it has not"
		c.scheduler.do(func() {
			if c.scheduler.term > term && c.scheduler.synced {
				out = ""
			}
		})
		return out
	})
	c.manual("later", 1)
	c.wantRunning("later", 1)
	c.wantRunning("web", 3)
	c.scheduler.do(func() {
		for uid, n := range c.scheduler.starts {
			if n != 1 {
				t.Errorf("%s was started %d times", uid, n)
			}
		}
	})
	leave()
}

// TestAnotherServerJoins makes a controller that was alone take part in an election. Its next term
// begins at once and has an end. A second controller waits, takes over when the first has ended, and
// no instance is started twice. Both know who is active.
func TestAnotherServerJoins(t *testing.T) {
	c := start(t, func(cfg *controller.Config) { cfg.Identity = "first" }, "node-a")
	c.manual("web", 2)
	c.wantRunning("web", 2)
	var term int64
	c.scheduler.do(func() { term = c.scheduler.term })
	next := func(what string) {
		c.eventually(what, func() string {
			out := "it has not"
			c.scheduler.do(func() {
				if c.scheduler.term > term && c.scheduler.synced {
					term, out = c.scheduler.term, ""
				}
			})
			return out
		})
	}
	c.controller.Elect()
	c.controller.Elect() // a second server joins
	next("the first begins another term")
	if holder, _ := c.controller.Holder(); holder != "first" {
		t.Errorf("Holder() = %q, want first", holder)
	}
	second := c.config
	second.Identity, second.Several = "second", true
	standby, err := controller.New(second)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- standby.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run of the second = %v", err)
		}
	})
	c.eventually("the second stands by", func() string {
		holder, _ := standby.Holder()
		if holder != "first" {
			return "its holder is " + holder
		}
		return ""
	})
	c.leaveOnly()
	next("the second takes over")
	c.manual("later", 1)
	c.wantRunning("later", 1)
	c.scheduler.do(func() {
		for uid, n := range c.scheduler.starts {
			if n != 1 {
				t.Errorf("%s was started %d times", uid, n)
			}
		}
	})
}

// unreliableStore is a store that refuses writes, returns conflicts and loses responses, like a slow
// etcd. Every write fails some times before it succeeds. Some writes succeed although the
// response is an error.
type unreliableStore struct {
	store.Instances
	n *atomic.Int64
}

var errSlow = errors.New("etcdserver: request timed out")

func (s unreliableStore) fail() error {
	switch s.n.Add(1) % 3 {
	case 0:
		return errSlow
	case 1:
		return apierrors.NewConflict(rikv1alpha1.Resource("instances"), "x", errSlow)
	default:
		return nil
	}
}

func (s unreliableStore) Create(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	if s.n.Add(1)%2 == 0 {
		return nil, errSlow
	}
	return s.Instances.Create(ctx, in)
}

func (s unreliableStore) Bind(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	if err := s.fail(); err != nil {
		return nil, err
	}
	out, err := s.Instances.Bind(ctx, in)
	if err == nil && s.n.Add(1)%2 == 0 {
		return nil, errSlow // stored, but the response is lost
	}
	return out, err
}

func (s unreliableStore) UpdateStatus(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	if err := s.fail(); err != nil {
		return nil, err
	}
	return s.Instances.UpdateStatus(ctx, in)
}

func (s unreliableStore) Update(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	if err := s.fail(); err != nil {
		return nil, err
	}
	return s.Instances.Update(ctx, in)
}

func (s unreliableStore) Delete(ctx context.Context, namespace, name string, uid types.UID, grace *int64) error {
	if s.n.Add(1)%2 == 0 {
		return errSlow
	}
	return s.Instances.Delete(ctx, namespace, name, uid, grace)
}

// TestSlowStoreFault07: a datastore that sometimes fails delays the controller and loses
// nothing.
func TestSlowStoreFault07(t *testing.T) {
	c := start(t, func(cfg *controller.Config) {
		cfg.Instances = unreliableStore{writer(t, apiprocess.Shared(t)), &atomic.Int64{}}
		cfg.Logger = slog.New(slog.DiscardHandler)
	}, "node-a", "node-b")
	c.create(automatic(c.namespace, "web", 8))
	list := c.wantRunning("web", 8)
	c.scheduler.do(func() {
		for i := range list {
			uid := string(list[i].UID)
			if c.scheduler.starts[uid] != 1 || c.scheduler.running[uid] != list[i].Spec.NodeName {
				t.Errorf("%s was started %d times, runs on %q and is bound to %q",
					list[i].Name, c.scheduler.starts[uid], c.scheduler.running[uid], list[i].Spec.NodeName)
			}
		}
	})
	if err := c.client.Delete(t.Context(), c.workload("web")); err != nil {
		t.Fatal(err)
	}
	c.wantRunning("web", 0)
	c.scheduler.do(func() {
		if n := len(c.scheduler.running); n > 0 {
			t.Errorf("%d still run", n)
		}
	})
}

// TestFailedInstance: the workload shows a failed instance with its reason. The instance is
// replaced only after a while.
func TestFailedInstance(t *testing.T) {
	c := start(t, nil, "node-a")
	c.create(automatic(c.namespace, "web", 1))
	in := c.wantRunning("web", 1)[0]
	c.scheduler.do(func() {
		c.scheduler.observeLocked(string(in.UID), rikv1alpha1.InstanceFailed)
	})
	c.eventually("the failure", func() string {
		list := c.instances()
		failed := slices.ContainsFunc(list, func(o rikv1alpha1.Instance) bool {
			return o.UID == in.UID && o.Status.Phase == rikv1alpha1.InstanceFailed && o.Status.FinishedAt != nil
		})
		if !failed {
			return describe(list)
		}
		return ""
	})
	c.eventually("the workload counts it", func() string {
		if s := c.workload("web").Status; s.FailedReplicas != 1 {
			return "it does not"
		}
		return ""
	})
}
