package syncer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/scratch"
)

// idle are kcps that no test uses and that contain no objects of a test. They are reused, because
// starting one takes longer than most tests.
var idle pool

type pool struct {
	mu      sync.Mutex
	servers []*pooled
}

type pooled struct {
	*kcptest.Server
	dir *scratch.Dir
}

// take returns a kcp for a test until the test ends.
func (p *pool) take(t *testing.T) *kcptest.Server {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	var s *pooled
	if n := len(p.servers); n > 0 {
		s, p.servers = p.servers[n-1], p.servers[:n-1]
	} else {
		var err error
		if s, err = startPooled(); err != nil {
			t.Fatalf("starting a kcp: %v", err)
		}
	}
	t.Cleanup(func() { p.give(t, s) })
	return s.Server
}

func startPooled() (*pooled, error) {
	dir, err := scratch.New("rik-syncer-")
	if err != nil {
		return nil, err
	}
	server, err := kcptest.Run(dir.Path)
	if err != nil {
		return nil, errors.Join(err, dir.Remove())
	}
	return &pooled{server, dir}, nil
}

// give returns a kcp to the pool for the next test. The kcp of a failed test is not reused,
// because it may be in any state.
func (p *pool) give(t *testing.T, s *pooled) {
	if !t.Failed() {
		wipe(t, dynamic.NewForConfigOrDie(kcptest.LoopbackConfig(s.Server)))
		p.mu.Lock()
		defer p.mu.Unlock()
		p.servers = append(p.servers, s)
		return
	}
	if err := s.stop(); err != nil {
		t.Errorf("stopping a kcp: %v", err)
	}
}

func (s *pooled) stop() error { return errors.Join(s.Stop(), s.dir.Remove()) }

// stop stops all of them.
func (p *pool) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var problems []error
	for _, s := range p.servers {
		problems = append(problems, s.stop())
	}
	p.servers = nil
	return errors.Join(problems...)
}

// wipe deletes what a test created: Clusters, and the objects in namespaces. The namespaces stay.
// Types stay too, because removing a type and serving it again takes longer than a test. No
// syncer runs at this time, so wipe removes finalizers by force.
func wipe(t *testing.T, objects dynamic.Interface) {
	t.Helper()
	for _, r := range []groupVersionResource{deployments, configMaps, secrets, services, claims, accounts, events, clusters} {
		poll.Until(&afterward{t}, kube.Timeout, "the kcp has no "+r.Resource+" of the test", func(ctx context.Context) error {
			return wipeType(ctx, objects, r)
		})
	}
}

// wipeType returns an error while objects are left.
func wipeType(ctx context.Context, objects dynamic.Interface, r groupVersionResource) error {
	list, err := objects.Resource(r).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil // the type is not served
	}
	if err != nil {
		return err
	}
	left := 0
	for _, o := range list.Items {
		if o.GetNamespace() == metav1.NamespaceSystem {
			continue
		}
		if r == accounts && o.GetName() == "default" || r == configMaps && o.GetName() == "kube-root-ca.crt" {
			if len(o.GetLabels()) == 0 {
				continue // the kcp creates it, and creates it again after each deletion
			}
		}
		left++
		of := objects.Resource(r).Namespace(o.GetNamespace())
		if len(o.GetFinalizers()) > 0 {
			if _, err := of.Patch(ctx, o.GetName(), mergePatch, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		if err := of.Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if left > 0 {
		return fmt.Errorf("there were %d", left)
	}
	return nil
}

// afterward is a test with a new context. The context of a test has ended when its cleanup runs.
type afterward struct{ *testing.T }

// Context implements testing.TB.
func (*afterward) Context() context.Context { return context.Background() }
