package controller_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

var core = schema.GroupVersion{Version: "v1"}

// createNeededKinds creates every kind of object that pods can need, and one object that nothing needs.
func createNeededKinds(t *testing.T, s *site) {
	t.Helper()
	for _, text := range []string{
		`{kind: ConfigMap, metadata: {name: settings}}`,
		`{kind: ConfigMap, metadata: {name: unused}}`,
		`{kind: Secret, metadata: {name: token}}`,
		`{kind: Secret, metadata: {name: registry}}`,
		`{kind: ServiceAccount, metadata: {name: runner}, imagePullSecrets: [{name: registry}]}`,
		`{kind: PersistentVolumeClaim, metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`,
		`{kind: Service, metadata: {name: front}, spec: {selector: {app: web}, ports: [{port: 80}]}}`,
		`{kind: Service, metadata: {name: other}, spec: {selector: {app: else}, ports: [{port: 80}]}}`,
	} {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		o.SetAPIVersion("v1")
		o.SetNamespace(s.namespace)
		s.create(core.WithResource(plural(o.GetKind())), o)
	}
}

func plural(kind string) string { return strings.ToLower(kind) + "s" }

// needs gives a root a pod template that refers to all of these objects.
func (s *site) needs(root string, claim bool) {
	s.Helper()
	pod := template(root, "v1")
	spec := pod["spec"].(map[string]any)
	spec["serviceAccountName"] = "runner"
	spec["volumes"] = []any{
		map[string]any{"name": "settings", "configMap": map[string]any{"name": "settings"}},
		map[string]any{"name": "token", "secret": map[string]any{"secretName": "token"}},
		map[string]any{"name": "late", "configMap": map[string]any{"name": "late"}},
	}
	if claim {
		spec["volumes"] = append(spec["volumes"].([]any), map[string]any{"name": "data", "persistentVolumeClaim": map[string]any{"claimName": "data"}})
	}
	d := object(s.resource, s.kind, s.namespace, root)
	d.Object["spec"] = map[string]any{"replicas": int64(4), "template": pod}
	s.create(s.resource, d)
}

// sent waits until an object has the given clusters as its targets, such as east,west.
func (s *site) sent(kind, name, want string) {
	s.Helper()
	s.sentAs(core.WithResource(plural(kind)), name, want)
}

func (s *site) sentAs(resource schema.GroupVersionResource, name, want string) {
	s.Helper()
	s.eventually(fmt.Sprintf("%s of %s is sent to %q", name, resource.Resource, want), func(ctx context.Context) error {
		o, err := s.objects.Resource(resource).Namespace(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var names []string
		for _, target := range workloadv1alpha1.Targets(o.GetLabels()) {
			names = append(names, strings.TrimPrefix(target, s.namespace+"-"))
		}
		slices.Sort(names)
		if got := strings.Join(names, ","); got != want {
			return fmt.Errorf("it is sent to %q", got)
		}
		return nil
	})
}

// TestDependencies covers case (c). Objects that leaves need are sent before the leaves. They
// stay while one of the leaves exists. Targets that other clients set stay too.
func TestDependencies(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	createNeededKinds(t, s)
	settings := core.WithResource("configmaps")
	s.merge(settings, s.namespace, "settings", map[string]any{"metadata": map[string]any{"labels": map[string]any{workloadv1alpha1.TargetLabelPrefix + "elsewhere": "true"}}})
	s.needs("web", false)
	s.until("web", "east=2 west=2")
	s.precedes("web")
	s.sent("ConfigMap", "settings", "east,elsewhere,west")
	for _, name := range []string{"Secret token", "Secret registry", "ServiceAccount runner", "Service front"} {
		kind, name, _ := strings.Cut(name, " ")
		s.sent(kind, name, "east,west")
	}
	s.sent("ConfigMap", "unused", "")
	s.sent("Service", "other", "")
	late := object(settings, "ConfigMap", s.namespace, "late")
	s.create(settings, late)
	s.sent("ConfigMap", "late", "east,west")

	// A leaf that still has its syncer's finalizer still needs its objects.
	west := s.syncers["west"]
	s.cut("west")
	s.hint("web", map[string]any{workloadv1alpha1.HintPrefix + "clusters": workloadv1alpha1.ClusterLabel + "=" + s.cluster("east")})
	// one was added ahead; the others wait until the first one is confirmed as stopped
	s.until("web", "east=3 west=1")
	s.sent("ConfigMap", "settings", "east,elsewhere,west")
	s.syncers["west"] = west
	s.until("web", "east=4")
	s.sent("ConfigMap", "settings", "east,elsewhere")
	s.sent("Secret", "registry", "east")
	s.sent("Service", "front", "east")
	s.remove("web")
	s.sent("ConfigMap", "settings", "elsewhere")
	s.sent("ConfigMap", "late", "")
	s.sent("ServiceAccount", "runner", "")
}

// precedes fails if a leaf was created before its needs were sent to its cluster. It compares
// resource versions, because the times of field managers have a resolution of one second.
func (s *site) precedes(root string) {
	s.Helper()
	token, err := s.objects.Resource(core.WithResource("secrets")).Namespace(s.namespace).Get(s.Context(), "token", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	for cluster := range s.syncers {
		leaf := s.get(s.resource, s.leaf(root, cluster))
		if sent := token.GetLabels()[workloadv1alpha1.TargetLabelPrefix+s.cluster(cluster)]; sent != "true" {
			s.Errorf("the leaf %s is there, and the Secret is not sent to its cluster", leaf.GetName())
		}
	}
}

// slow is a transport that delays the creation of leaves and calls look before it.
type slow struct {
	next http.RoundTripper
	look func()
}

// RoundTrip implements http.RoundTripper.
func (s *slow) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost && isLeaf(r) {
		time.Sleep(5 * releaseDelay)
		s.look()
	}
	return s.next.RoundTrip(r)
}

// TestWhatIsSentAheadWaits tests a busy kcp on which creating a leaf takes longer than the
// release delay. An earlier version sent the needs of the leaf, removed them, and sent them
// again.
func TestWhatIsSentAheadWaits(t *testing.T) {
	t.Parallel()
	s := apart(t, "east")
	createNeededKinds(t, s)
	var looks, misses atomic.Int64
	config := rest.CopyConfig(s.server.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &slow{next: next, look: func() {
			token, err := s.objects.Resource(core.WithResource("secrets")).Namespace(s.namespace).Get(t.Context(), "token", metav1.GetOptions{})
			if looks.Add(1); err != nil || token.GetLabels()[workloadv1alpha1.TargetLabelPrefix+s.cluster("east")] != "true" {
				misses.Add(1)
			}
		}}
	})
	s.start(config)
	s.needs("web", false)
	s.until("web", "east=4")
	if looks.Load() == 0 || misses.Load() > 0 {
		t.Errorf("%d of %d times the Secret was not there when the leaf was made", misses.Load(), looks.Load())
	}
	s.remove("web")
	s.sent("Secret", "token", "")
}

// TestClaims tests that a root stays in the cluster of its data, and that no claim is deleted.
func TestClaims(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	createNeededKinds(t, s)
	s.hintedNeeds()
	s.until("web", "east=4")
	s.sent("PersistentVolumeClaim", "data", "east")
	claims := core.WithResource("persistentvolumeclaims")
	s.merge(claims, s.namespace, "data", map[string]any{"status": map[string]any{"phase": "Bound"}}, "status")
	// Without the data, the root would move to the other cluster.
	s.hint("web", map[string]any{workloadv1alpha1.HintPrefix + "clusters": workloadv1alpha1.ClusterLabel + "=" + s.cluster("west")})
	s.register("north", nil)
	s.deploy("free", 3, nil)
	s.until("free", "east=1 north=1 west=1")
	s.until("web", "east=4")
	s.remove("web")
	s.sent("PersistentVolumeClaim", "data", "")
	if _, err := s.objects.Resource(claims).Namespace(s.namespace).Get(t.Context(), "data", metav1.GetOptions{}); err != nil {
		t.Errorf("the claim after its root is gone: %v", err)
	}
}

// hintedNeeds deploys a root with a claim to the first cluster only.
func (s *site) hintedNeeds() {
	s.Helper()
	s.merge(clusters, "", s.cluster("west"), map[string]any{"spec": map[string]any{"unschedulable": true}})
	s.needs("web", true)
	s.until("web", "east=4")
	s.merge(clusters, "", s.cluster("west"), map[string]any{"spec": map[string]any{"unschedulable": false}})
	s.hint("web", map[string]any{workloadv1alpha1.HintPrefix + "clusters": workloadv1alpha1.ClusterLabel + "=" + s.cluster("east")})
}

// TestTypeEnds tests that no targets are removed when a type is no longer served.
func TestTypeEnds(t *testing.T) {
	t.Parallel()
	s := apart(t, "east", "west")
	createNeededKinds(t, s)
	s.start(s.server.Config)
	s.needs("web", false)
	s.until("web", "east=2 west=2")
	s.sent("ConfigMap", "settings", "east,west")
	negotiated := func(value any) {
		s.merge(crds, "", s.resource.GroupResource().String(), map[string]any{"metadata": map[string]any{"annotations": map[string]any{"apiresource.kcp.dev/negotiated": value}}})
	}
	negotiated(nil)
	s.rests("web")
	// The controller processes the ConfigMap now, but nothing that needs it.
	s.merge(core.WithResource("configmaps"), s.namespace, "settings", map[string]any{"data": map[string]any{"a": "b"}, "metadata": map[string]any{"annotations": map[string]any{"seen": "x"}}})
	s.change("web", map[string]any{"spec": map[string]any{"replicas": 10}})
	s.rests("web")
	s.sent("ConfigMap", "settings", "east,west")
	s.until("web", "east=2 west=2")
	negotiated("true")
	s.until("web", "east=5 west=5")
	s.remove("web")
	s.sent("ConfigMap", "settings", "")
	s.eventually("the leaves are gone", func(ctx context.Context) error {
		_, err := s.objects.Resource(s.resource).Namespace(s.namespace).Get(ctx, s.leaf("web", "east"), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("one is there"))
	})
}

// TestClusterThatTakesNoServices tests that a Service is not sent to a cluster that does not
// accept Services. An annotation on the Service reports this until the cluster accepts them.
func TestClusterThatTakesNoServices(t *testing.T) {
	t.Parallel()
	s := newSite(t, "east", "west")
	takes := func(types ...any) {
		s.merge(clusters, "", s.cluster("west"), map[string]any{"status": map[string]any{"syncedResources": append([]any{s.resource.GroupResource().String()}, types...)}}, "status")
	}
	takes("configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims")
	createNeededKinds(t, s)
	s.needs("web", false)
	s.until("web", "east=2 west=2")
	s.sent("ConfigMap", "settings", "east,west")
	s.sent("Service", "front", "east")
	says := func(want string) {
		t.Helper()
		s.eventually(fmt.Sprintf("the problem of the Service says %q", want), func(ctx context.Context) error {
			o, err := s.objects.Resource(core.WithResource("services")).Namespace(s.namespace).Get(ctx, "front", metav1.GetOptions{})
			if err != nil {
				return err
			}
			said := o.GetAnnotations()[workloadv1alpha1.ProblemAnnotationPrefix+s.cluster("west")]
			if (said == "") != (want == "") || !strings.HasPrefix(said, want) {
				return fmt.Errorf("it says %q", said)
			}
			return nil
		})
	}
	says("TypeNotSynced: ")
	takes("configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims", "services")
	s.sent("Service", "front", "east,west")
	says("")
}
