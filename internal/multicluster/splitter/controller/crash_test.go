package controller_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

// failing is a transport that allows a number of writes of leaves, and rejects the others.
type failing struct {
	next http.RoundTripper
	left atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (f *failing) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && isLeaf(r) && f.left.Add(-1) < 0 {
		return nil, errors.New("the test does not let this through")
	}
	return f.next.RoundTrip(r)
}

// isLeaf reports whether a request reads or writes a leaf by name, or creates one.
func isLeaf(r *http.Request) bool {
	_, name, found := strings.Cut(r.URL.Path, "/deployments")
	return found && (name == "" || strings.Contains(name, "--"))
}

// failing returns a connection for a controller that allows a number of writes of leaves. refused
// reports whether the controller tried another write.
func (s *site) failing(writes int64) (config *rest.Config, refused func() bool) {
	f := &failing{}
	f.left.Store(writes)
	config = rest.CopyConfig(s.server.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		f.next = next
		return f
	})
	return config, func() bool { return f.left.Load() < 0 }
}

// TestCrash stops the controller between the progress and the leaves, and between two leaves,
// while parts move. The leaves never ask for more replicas than the whole plus the surge. The
// next controller completes the moves.
func TestCrash(t *testing.T) {
	t.Parallel()
	s := apart(t, "east", "west")
	const whole, surge = 10, 2
	stop := s.start(s.server.Config)
	s.deploy("web", whole, map[string]string{
		workloadv1alpha1.HintPrefix + "max-surge": fmt.Sprint(surge),
		workloadv1alpha1.HintPrefix + "clusters":  workloadv1alpha1.ClusterLabel + "=" + s.cluster("east"),
	})
	s.until("web", "east=10")
	s.reports("web", map[string]int64{"readyReplicas": whole})
	stop()
	s.hint("web", map[string]any{workloadv1alpha1.HintPrefix + "clusters": workloadv1alpha1.ClusterLabel + "=" + s.cluster("west")})
	for writes := range int64(4) {
		config, refused := s.failing(writes)
		stop = s.start(config)
		s.eventually(fmt.Sprintf("the controller has made %d writes, and no more", writes), func(ctx context.Context) error {
			if err := s.within(ctx, "web", whole+surge); err != nil {
				s.Error(err)
			}
			if !refused() {
				return errors.New("none was refused")
			}
			return nil
		})
		s.rests("web")
		stop()
	}
	s.start(s.server.Config)
	s.eventually("all is moved", func(ctx context.Context) error {
		if err := s.within(ctx, "web", whole+surge); err != nil {
			s.Error(err)
		}
		got, err := s.parts(ctx, "web")
		if err == nil && got != "west=10" {
			err = fmt.Errorf("it is divided as %q", got)
		}
		return err
	})
	s.reports("web", map[string]int64{"readyReplicas": whole})
	if note, ok := s.get(s.resource, "web").GetAnnotations()[splitter.ProgressAnnotation]; ok {
		t.Errorf("the progress at rest is %s, want none", note)
	}
}

// within fails if the leaves of a root ask for more replicas than a bound.
func (s *site) within(ctx context.Context, root string, bound int64) error {
	leaves, err := s.objects.Resource(s.resource).Namespace(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: workloadv1alpha1.OwnedByLabel + "=" + root})
	if err != nil {
		return nil //nolint:nilerr // it is asked again
	}
	var sum int64
	for _, leaf := range leaves.Items {
		n, _, _ := unstructured.NestedInt64(leaf.Object, "spec", "replicas")
		sum += n
	}
	if sum > bound {
		return fmt.Errorf("%d replicas are requested, and %d are allowed: %v", sum, bound, leaves.Items)
	}
	return nil
}

// TestMovesAreReported tests that the controller reports a successful write even if another write
// of the same pass failed. The next pass would not report it.
func TestMovesAreReported(t *testing.T) {
	t.Parallel()
	s := apart(t, "east", "west")
	config, _ := s.failing(1)
	stop := s.start(config)
	s.deploy("web", 4, nil)
	s.until("web", "east=2")
	s.reported("web", "Divided", s.cluster("east")+" 0 to 2")
	stop()
	s.start(s.server.Config)
	s.until("web", "east=2 west=2")
	s.reported("web", "Divided", s.cluster("west")+" 0 to 2")
}

// TestTwoControllers tests that two concurrent controllers reach the same result, and then write
// nothing.
func TestTwoControllers(t *testing.T) {
	t.Parallel()
	s := apart(t, "east", "west")
	s.start(s.server.Config)
	s.start(s.server.Config)
	for _, name := range []string{"a", "b", "c"} {
		s.deploy(name, 10, nil)
	}
	for i, replicas := range []int64{3, 20, 7, 10} {
		for _, name := range []string{"a", "b", "c"} {
			s.change(name, map[string]any{"spec": map[string]any{"replicas": replicas, "template": template(name, fmt.Sprint("v", i))}})
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		s.until(name, "east=5 west=5")
		s.images(name, "east=web:v3 west=web:v3")
		s.reports(name, map[string]int64{"replicas": 10, "updatedReplicas": 10})
		s.remove(s.leaf(name, "east"))
		s.reports(name, map[string]int64{"replicas": 10, "updatedReplicas": 10})
		s.until(name, "east=5 west=5")
	}
	s.rests("a")
}
