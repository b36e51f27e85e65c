package syncer_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/syncer"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// statusOf returns the response of an API server to a failed request.
func statusOf(r *http.Request, code int, reason metav1.StatusReason, message string) *http.Response {
	return answered(r, code, fmt.Appendf(nil, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":%q}`, reason, code, message))
}

// reads reports whether a request lists or watches objects of a type in all namespaces.
func reads(r *http.Request, resource string) bool {
	return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/"+resource)
}

// problemOf waits until the Cluster reports a problem of a type and is still ready.
func (k *kcp) problemOf(cluster, resource, reason, text string) {
	k.t.Helper()
	poll.Until(k.t, kube.Timeout, "the Cluster says what is wrong with "+resource, func(ctx context.Context) error {
		c, err := k.clusterOf(ctx, cluster)
		if err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(c.Status.Conditions, workloadv1alpha1.ConditionSyncerReady) {
			return fmt.Errorf("its syncer is not ready: %+v", c.Status.Conditions)
		}
		for _, p := range c.Status.ResourceProblems {
			if p.Resource == resource && p.Reason == reason && strings.Contains(p.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("the problems are %+v", c.Status.ResourceProblems)
	})
}

// noProblems waits until the Cluster reports no problem of any type.
func (k *kcp) noProblems(cluster string) {
	k.t.Helper()
	poll.Until(k.t, kube.Timeout, "nothing is wrong with any type", func(ctx context.Context) error {
		c, err := k.clusterOf(ctx, cluster)
		if err == nil && len(c.Status.ResourceProblems) > 0 {
			err = fmt.Errorf("the problems are %+v", c.Status.ResourceProblems)
		}
		return err
	})
}

// TestOneTypeCannotBeRead tests that a syncer is ready again after a short outage although one
// type cannot be listed, and copies all other types. The result is the same if the server
// refuses, has no service for the type, or does not answer.
func TestOneTypeCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]func(r *http.Request) (*http.Response, error){
		"the conversion webhook fails": func(r *http.Request) (*http.Response, error) {
			return statusOf(r, http.StatusInternalServerError, metav1.StatusReasonInternalError, "conversion webhook for v1 failed"), nil
		},
		"an extension server is down": func(r *http.Request) (*http.Response, error) {
			return statusOf(r, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "conversion webhook for v1 failed"), nil
		},
		"it may not be read": func(r *http.Request) (*http.Response, error) {
			return statusOf(r, http.StatusForbidden, metav1.StatusReasonForbidden, "conversion webhook for v1 failed"), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := startKCP(t)
			physical, down := downstream(t)
			var cutOff, mended atomic.Bool
			config := transportFunc(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
				switch {
				case cutOff.Load():
					return nil, errors.New("no route to host")
				case !mended.Load() && reads(r, "secrets"):
					return broken(r)
				}
				return next.RoundTrip(r)
			}).of(physical.Rest())
			k.register("east", "configmaps", "secrets")
			k.namespace("unreadable")
			k.sync("east", config)
			k.problemOf("east", "secrets", "NotReadable", "conversion webhook for v1 failed")
			cutOff.Store(true)
			k.says("east", workloadv1alpha1.ConditionSyncerReady, metav1.ConditionFalse, "no route to host")
			cutOff.Store(false)
			k.says("east", workloadv1alpha1.ConditionSyncerReady, metav1.ConditionTrue, "conversion webhook for v1 failed")

			create(t, k.objects, configMaps, configMap("unreadable", "carried", "east", nil))
			there := k.downNamespace("east", "unreadable")
			has(t, down, configMaps, there, "carried", anyhow)
			mended.Store(true)
			k.noProblems("east")
			k.says("east", workloadv1alpha1.ConditionSyncerReady, metav1.ConditionTrue, "Objects are copied")
			secret := object(secrets, "Secret", "unreadable", "late")
			secret.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: "east"})
			create(t, k.objects, secrets, secret)
			has(t, down, secrets, there, "late", anyhow)
		})
	}
}

// TestGoAheadWithTypeThatCannotBeRead tests that a paused mass deletion continues after its
// go-ahead although another type cannot be read.
func TestGoAheadWithTypeThatCannotBeRead(t *testing.T) {
	t.Parallel()
	k := startKCP(t)
	physical, down := downstream(t)
	k.register("east", "configmaps", "secrets")
	config := k.configOf("east", transportFunc(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if reads(r, "secrets") {
			return statusOf(r, http.StatusInternalServerError, metav1.StatusReasonInternalError, "it is broken"), nil
		}
		return next.RoundTrip(r)
	}).of(physical.Rest()))
	config.Deletes.Count, config.Deletes.Fraction = 1, 0.01
	k.namespace("mass")
	run(t, config)
	there := k.downNamespace("east", "mass")
	for _, name := range []string{"one", "two", "three"} {
		create(t, k.objects, configMaps, configMap("mass", name, "east", nil))
		has(t, down, configMaps, there, name, anyhow)
	}
	for _, name := range []string{"one", "two", "three"} {
		remove(t, k.objects, configMaps, "mass", name)
	}
	k.says("east", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionTrue, "3 deletions are paused")
	patch(t, k.objects, clusters, "", "east", `{"metadata":{"annotations":{"workloads.kcp.dev/allow-deletes":"3"}}}`)
	for _, name := range []string{"one", "two", "three"} {
		hasNot(t, down, configMaps, there, name)
	}
}

// hanging returns a connection to a server that does not answer patches of objects named
// hangs-... until release is closed.
func hanging(config *rest.Config, release <-chan struct{}) *rest.Config {
	return transportFunc(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/hangs-") {
			select {
			case <-release:
			case <-r.Context().Done():
				return nil, context.Cause(r.Context())
			}
		}
		return next.RoundTrip(r)
	}).of(config)
}

// TestHangingRequests tests that unanswered requests, more than there are workers, delay only
// objects of the same namespace and are reported.
func TestHangingRequests(t *testing.T) {
	t.Parallel()
	k := startKCP(t)
	physical, down := downstream(t)
	release := make(chan struct{})
	config := hanging(physical.Rest(), release)
	k.register("east", "configmaps", "secrets")
	k.namespace("hanging")
	k.namespace("working")
	k.sync("east", config)
	for i := range 2 * syncer.DefaultWorkers {
		create(t, k.objects, configMaps, configMap("hanging", fmt.Sprintf("hangs-%d", i), "east", nil))
	}
	k.problemOf("east", "configmaps", "RequestsWait", "of the namespace hanging")
	create(t, k.objects, configMaps, configMap("working", "one", "east", nil))
	has(t, down, configMaps, k.downNamespace("east", "working"), "one", anyhow)
	c, err := k.clusterOf(t.Context(), "east")
	if err != nil || !meta.IsStatusConditionTrue(c.Status.Conditions, workloadv1alpha1.ConditionSyncerReady) {
		t.Errorf("the Cluster is %+v, %v", c.Status.Conditions, err)
	}
	close(release)
	for i := range 2 * syncer.DefaultWorkers {
		has(t, down, configMaps, k.downNamespace("east", "hanging"), fmt.Sprintf("hangs-%d", i), anyhow)
	}
	k.noProblems("east")
}

// TestHangingTenants tests that unanswered requests of two namespaces and two types do not delay
// other namespaces.
func TestHangingTenants(t *testing.T) {
	t.Parallel()
	k := startKCP(t)
	physical, down := downstream(t)
	release := make(chan struct{})
	config := hanging(physical.Rest(), release)
	k.register("east", "configmaps", "secrets")
	for _, name := range []string{"first", "second", "working"} {
		k.namespace(name)
	}
	k.sync("east", config)
	secret := func(namespace, name string) {
		t.Helper()
		o := object(secrets, "Secret", namespace, name)
		o.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: "east"})
		create(t, k.objects, secrets, o)
	}
	for i := range syncer.DefaultWorkers {
		create(t, k.objects, configMaps, configMap("first", fmt.Sprintf("hangs-%d", i), "east", nil))
		secret("second", fmt.Sprintf("hangs-%d", i))
	}
	k.problemOf("east", "configmaps", "RequestsWait", "wait for the cluster's answer")
	k.problemOf("east", "secrets", "RequestsWait", "wait for the cluster's answer")
	create(t, k.objects, configMaps, configMap("working", "one", "east", nil))
	secret("working", "two")
	working := k.downNamespace("east", "working")
	has(t, down, configMaps, working, "one", anyhow)
	has(t, down, secrets, working, "two", anyhow)
	close(release)
	for i := range syncer.DefaultWorkers {
		has(t, down, secrets, k.downNamespace("east", "second"), fmt.Sprintf("hangs-%d", i), anyhow)
	}
	k.noProblems("east")
}

// TestObjectsOfAnotherKCP tests that objects which another kcp has sent here are not copied
// again, as could happen between kcps that are registered in each other.
func TestObjectsOfAnotherKCP(t *testing.T) {
	t.Parallel()
	k := startKCP(t)
	physical, down := downstream(t)
	k.register("east", "configmaps")
	k.sync("east", physical.Rest())
	looped := k.downNamespace("east", "loop")
	k.namespace(looped)
	create(t, k.objects, configMaps, configMap(looped, "one", "east", nil))
	has(t, k.objects, configMaps, looped, "one", problem("east", "FromAnotherKCP"))
	if _, err := down.Resource(namespaces).Get(t.Context(), k.downNamespace("east", looped), metav1.GetOptions{}); err == nil {
		t.Error("a namespace was made for a namespace of a syncer")
	}
}

// TestSyncerOfItself tests that a syncer whose two sides are one kcp ends.
func TestSyncerOfItself(t *testing.T) {
	t.Parallel()
	k := startKCP(t)
	k.register("east", "configmaps")
	r := k.sync("east", k.config)
	err := <-r.done
	if r.done <- err; !errors.Is(err, syncer.ErrItself) {
		t.Errorf("Run = %v, want ErrItself", err)
	}
}

// TestGroupWithoutAccountAtStart tests that an extension server that is down affects only its own
// types, even when the syncer starts.
func TestGroupWithoutAccountAtStart(t *testing.T) {
	t.Parallel()
	k := startKCP(t)
	physical, down := downstream(t)
	config := staleGroup("gone.example.org", physical.Rest())
	k.register("east", "configmaps", "things.gone.example.org")
	k.namespace("stale")
	k.sync("east", config)
	create(t, k.objects, configMaps, configMap("stale", "carried", "east", nil))
	has(t, down, configMaps, k.downNamespace("east", "stale"), "carried", anyhow)
	k.problemOf("east", "things.gone.example.org", "NotReadable", "gone.example.org")
}

// TestUnknownStorageVersion tests a kcp that does not return the storage version of one type.
// All other types are copied, and the state of that one does not change. When the kcp returns the
// version, that type is copied too.
func TestUnknownStorageVersion(t *testing.T) {
	t.Parallel()
	k := startKCP(t)
	physical, down := downstream(t)
	of := schema.GroupVersionResource{Group: "unsaid.example.com", Version: "v1", Resource: "widgets"}
	const version = `served: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}`
	crd := widgets(t, of.Group, `[{name: v1beta1, storage: false, `+version+`}, {name: v1, storage: true, `+version+`}]`)
	installs(t, crd, of, k.config, physical.Rest())
	for _, server := range []*rest.Config{k.config, physical.Rest()} {
		offered := discovery.NewDiscoveryClientForConfigOrDie(server)
		poll.Until(t, kube.Timeout, "discovery has both versions", func(context.Context) error {
			_, lists, err := offered.ServerGroupsAndResources()
			n := 0
			for _, list := range lists {
				if strings.HasPrefix(list.GroupVersion, of.Group+"/") && len(list.APIResources) > 0 {
					n++
				}
			}
			if err == nil && n < 2 {
				err = fmt.Errorf("it has %d", n)
			}
			return err
		})
	}
	var broken atomic.Bool
	broken.Store(true)
	k.register("east", "configmaps", "widgets.unsaid.example.com")
	k.namespace("unsaid")
	config := k.configOf("east", physical.Rest())
	config.Upstream = transportFunc(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if broken.Load() && (r.URL.Path == "/apis/unsaid.example.com/v1" || r.URL.Path == "/apis/unsaid.example.com/v1beta1") {
			return statusOf(r, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "it is being served anew"), nil
		}
		return next.RoundTrip(r)
	}).of(config.Upstream)
	run(t, config)
	there := k.downNamespace("east", "unsaid")
	create(t, k.objects, configMaps, configMap("unsaid", "carried", "east", nil))
	has(t, down, configMaps, there, "carried", anyhow)
	k.problemOf("east", "widgets.unsaid.example.com", "NotReadable", "it is being served anew")
	widget := func(name string) {
		t.Helper()
		create(t, k.objects, of, parse(t, `
apiVersion: unsaid.example.com/v1
kind: Widget
metadata: {name: `+name+`, namespace: unsaid, labels: {workloads.kcp.dev/cluster: east}}
`))
		has(t, down, of, there, name, anyhow)
	}
	broken.Store(false)
	k.noProblems("east")
	widget("one")

	// New types cause another check: the copied types stay.
	broken.Store(true)
	k.carries("east", "configmaps", "secrets", "widgets.unsaid.example.com")
	added := object(secrets, "Secret", "unsaid", "added")
	added.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: "east"})
	create(t, k.objects, secrets, added)
	has(t, down, secrets, there, "added", anyhow)
	widget("two")
}

// TestAnnotationsWithoutRoom tests that an object whose annotations have no room for those of the
// syncer is reported by an event, once.
func TestAnnotationsWithoutRoom(t *testing.T) {
	t.Parallel()
	k := startKCP(t)
	physical, _ := downstream(t)
	k.register("east", "configmaps")
	k.namespace("large")
	k.sync("east", physical.Rest())
	large := configMap("large", "full", "east", nil)
	large.SetAnnotations(map[string]string{"note": strings.Repeat("x", 256<<10-len("note"))})
	create(t, k.objects, configMaps, large)
	reported := func(ctx context.Context) (int, error) {
		list, err := k.objects.Resource(events).Namespace("large").List(ctx, metav1.ListOptions{})
		if err != nil {
			return 0, err
		}
		n := 0
		for _, e := range list.Items {
			message, _, _ := unstructured.NestedString(e.Object, "message")
			name, _, _ := unstructured.NestedString(e.Object, "involvedObject", "name")
			if name == "full" && strings.Contains(message, "Refused") && strings.Contains(message, "metadata.annotations") {
				n++
			}
		}
		return n, nil
	}
	poll.Until(t, kube.Timeout, "an event shows why the object is not synced", func(ctx context.Context) error {
		n, err := reported(ctx)
		if err == nil && n == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	patch(t, k.objects, configMaps, "large", "full", `{"metadata":{"finalizers":["syncer.workloads.kcp.dev/east","example.org/touch"]}}`)
	patch(t, k.objects, configMaps, "large", "full", `{"metadata":{"finalizers":["syncer.workloads.kcp.dev/east"]}}`)
	create(t, k.objects, configMaps, configMap("large", "later", "east", nil))
	has(t, k.objects, configMaps, "large", "later", problem("east", ""))
	if n, err := reported(t.Context()); err != nil || n != 1 {
		t.Errorf("%d events, %v, want one", n, err)
	}
}
