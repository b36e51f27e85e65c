package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/scratch"
)

// idle are kcps that no test uses and that contain no objects of a test. There are as many as
// there are concurrent tests, not one for each test.
var idle pool

type pool struct {
	mu sync.Mutex
	// servers is guarded by mu.
	servers []*pooled
}

type pooled struct {
	*kcptest.Server
	dir *scratch.Dir
}

// take returns a kcp for a test until the test ends.
func (p *pool) take(t *testing.T) *kcptest.Server {
	t.Helper()
	s := p.pop()
	if s == nil {
		dir, err := scratch.New("rik-cluster-")
		if err != nil {
			t.Fatal(err)
		}
		server, err := kcptest.Run(dir.Path)
		if err != nil {
			t.Fatalf("starting a kcp: %v", errors.Join(err, dir.Remove()))
		}
		s = &pooled{server, dir}
	}
	t.Cleanup(func() { p.give(t, s) })
	return s.Server
}

func (p *pool) pop() *pooled {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.servers)
	if n == 0 {
		return nil
	}
	s := p.servers[n-1]
	p.servers = p.servers[:n-1]
	return s
}

// give returns a kcp to the pool for the next test. The kcp of a failed test is not reused,
// because it may be in any state.
func (p *pool) give(t *testing.T, s *pooled) {
	if t.Failed() {
		if err := s.stop(); err != nil {
			t.Errorf("stopping a kcp: %v", err)
		}
		return
	}
	wipe(t, s.Server)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.servers = append(p.servers, s)
}

func (s *pooled) stop() error { return errors.Join(s.Stop(), s.dir.Remove()) }

// stop stops all of them.
func (p *pool) stop() error {
	var problems []error
	for s := p.pop(); s != nil; s = p.pop() {
		problems = append(problems, s.stop())
	}
	return errors.Join(problems...)
}

// wipe deletes what a test created. No controller runs at this time, so wipe removes finalizers
// by force.
func wipe(t *testing.T, server *kcptest.Server) {
	t.Helper()
	upstream, err := client.New(kcptest.LoopbackConfig(server), client.Options{Scheme: testScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []client.ObjectList{
		&workloadv1alpha1.ClusterList{}, &apiresourcev1alpha1.APIResourceImportList{}, &apiextensionsv1.CustomResourceDefinitionList{},
		&corev1.ConfigMapList{}, &corev1.SecretList{}, &corev1.EventList{},
	} {
		poll.Until(&afterward{t}, kube.Timeout, fmt.Sprintf("there is no %T of the test", list), func(ctx context.Context) error {
			return wipeType(ctx, upstream, list)
		})
	}
}

// wipeType returns an error while objects are left.
func wipeType(ctx context.Context, upstream client.Client, list client.ObjectList) error {
	if err := upstream.List(ctx, list); err != nil {
		return err
	}
	left := 0
	err := meta.EachListItem(list, func(item runtime.Object) error {
		o := item.(client.Object)
		if isKCPs(o) {
			return nil
		}
		left++
		if _, isType := o.(*apiextensionsv1.CustomResourceDefinition); !isType && len(o.GetFinalizers()) > 0 {
			o.SetFinalizers(nil)
			if err := upstream.Update(ctx, o); err != nil {
				return client.IgnoreNotFound(err)
			}
		}
		return client.IgnoreNotFound(upstream.Delete(ctx, o))
	})
	if err == nil && left > 0 {
		err = fmt.Errorf("there were %d", left)
	}
	return err
}

// isKCPs reports whether an object belongs to the kcp itself, and exists in an empty kcp too.
func isKCPs(o client.Object) bool {
	switch o.(type) {
	case *apiextensionsv1.CustomResourceDefinition:
		return o.GetName() != "widgets.example.com"
	case *corev1.ConfigMap:
		return o.GetNamespace() == metav1.NamespaceSystem || o.GetName() == "kube-root-ca.crt"
	default:
		return o.GetNamespace() == metav1.NamespaceSystem
	}
}

// afterward is a test with a new context. The context of a test has ended when its cleanup runs.
type afterward struct{ *testing.T }

// Context implements testing.TB.
func (*afterward) Context() context.Context { return context.Background() }
