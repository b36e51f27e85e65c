package syncer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/syncer"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// pair is a kcp with one Cluster whose syncer runs.
type pair struct {
	t       *testing.T
	cluster string
	kube    *kube.Cluster
	*kcp
	down dynamic.Interface
	// there is the downstream namespace of the namespace team.
	there string
	*running
}

func startPair(t *testing.T, cluster string) *pair {
	t.Helper()
	k, down := downstream(t)
	p := &pair{t: t, cluster: cluster, kube: k, kcp: startKCP(t), down: down}
	p.publishDeployments(k.Rest())
	p.register(cluster, append([]string{"deployments.apps"}, core...)...)
	p.namespace("team")
	p.there = p.downNamespace(cluster, "team")
	p.running = p.sync(cluster, k.Rest())
	return p
}

// TestAnObjectGoesDownAndItsStatusComesUp tests that a labeled object appears downstream and its
// status appears upstream. The downstream object is deleted with the upstream object.
func TestAnObjectGoesDownAndItsStatusComesUp(t *testing.T) {
	p := startPair(t, "s1")
	made := create(t, p.objects, deployments, deployment(t, "team", "web", "s1"))
	d := has(t, p.down, deployments, p.there, "web", image("web:1"))
	if got := d.GetLabels()["app"]; got != "web" {
		t.Errorf("the label app is %q downstream, want web", got)
	}
	if got := d.GetAnnotations()[workloadv1alpha1.UpstreamUIDAnnotation]; got != string(made.GetUID()) {
		t.Errorf("the object downstream bears the UID %q, want %q", got, made.GetUID())
	}
	patch(t, p.down, deployments, p.there, "web", `{"status":{"replicas":2,"readyReplicas":2,"observedGeneration":1}}`, "status")
	has(t, p.objects, deployments, "team", "web", field(2, "status", "readyReplicas"))
	has(t, p.objects, deployments, "team", "web", field(made.GetGeneration(), "status", "observedGeneration"))

	// An update is copied. The observed generation is that of the upstream object.
	up := patch(t, p.objects, deployments, "team", "web", `{"metadata":{"labels":{"tier":"front"}},"spec":{"paused":true}}`)
	d = has(t, p.down, deployments, p.there, "web", field(true, "spec", "paused"))
	has(t, p.down, deployments, p.there, "web", field("front", "metadata", "labels", "tier"))
	patch(t, p.down, deployments, p.there, "web", fmt.Sprintf(`{"status":{"observedGeneration":%d}}`, d.GetGeneration()), "status")
	has(t, p.objects, deployments, "team", "web", field(up.GetGeneration(), "status", "observedGeneration"))

	// A field that is removed upstream is removed downstream.
	patch(t, p.objects, deployments, "team", "web", `{"metadata":{"labels":{"tier":null}},"spec":{"paused":null}}`)
	has(t, p.down, deployments, p.there, "web", field(nil, "spec", "paused"))
	has(t, p.down, deployments, p.there, "web", field(nil, "metadata", "labels", "tier"))

	remove(t, p.objects, deployments, "team", "web")
	hasNot(t, p.down, deployments, p.there, "web")
	hasNot(t, p.objects, deployments, "team", "web")
}

// TestAStatusAloneCausesNoWrite tests that a change of the upstream status causes no write
// downstream. A new syncer that finds everything in sync causes none either.
func TestAStatusAloneCausesNoWrite(t *testing.T) {
	p := startPair(t, "s2")
	create(t, p.objects, deployments, deployment(t, "team", "web", "s2"))
	create(t, p.objects, configMaps, configMap("team", "settings", "s2", map[string]string{"a": "1"}))
	before := has(t, p.down, deployments, p.there, "web", anyhow)
	settings := has(t, p.down, configMaps, p.there, "settings", anyhow)

	patch(t, p.objects, deployments, "team", "web", `{"status":{"collisionCount":7}}`, "status")
	p.passes("after-status")
	p.same(deployments, before)

	if err := p.stop(); err != nil {
		t.Fatalf("Run() = %v", err)
	}
	p.running = p.sync("s2", p.kube.Rest())
	p.passes("after-restart")
	p.same(deployments, before)
	p.same(configMaps, settings)
}

// passes waits until the syncer has copied objects that are newer than everything before: one
// object of each kind that a test uses.
func (p *pair) passes(name string) {
	p.t.Helper()
	for range 3 { // the queue has several workers
		create(p.t, p.objects, configMaps, configMap("team", name, p.cluster, nil))
		has(p.t, p.down, configMaps, p.there, name, anyhow)
		remove(p.t, p.objects, configMaps, "team", name)
		hasNot(p.t, p.objects, configMaps, "team", name)
	}
}

func (p *pair) same(r groupVersionResource, before *unstructured.Unstructured) {
	p.t.Helper()
	now := has(p.t, p.down, r, before.GetNamespace(), before.GetName(), anyhow)
	if now.GetResourceVersion() != before.GetResourceVersion() {
		p.t.Errorf("%s %s was written downstream: %v, was %v", r.Resource, before.GetName(), now.Object, before.Object)
	}
}

// TestALabelMovesAnObject tests an object whose label changes from one cluster to another. It is
// removed from the first, exists in the second, and has only the status of the second.
func TestALabelMovesAnObject(t *testing.T) {
	p := startPair(t, "s4-a")
	p.register("s4-b", "deployments.apps", "configmaps", "persistentvolumeclaims")
	p.sync("s4-b", p.kube.Rest())
	thereB := p.downNamespace("s4-b", "team")

	create(t, p.objects, deployments, deployment(t, "team", "web", "s4-a"))
	has(t, p.down, deployments, p.there, "web", anyhow)
	patch(t, p.down, deployments, p.there, "web", `{"status":{"replicas":2,"readyReplicas":1}}`, "status")
	has(t, p.objects, deployments, "team", "web", field(1, "status", "readyReplicas"))

	patch(t, p.objects, deployments, "team", "web", `{"metadata":{"labels":{"workloads.kcp.dev/cluster":"s4-b"}}}`)
	hasNot(t, p.down, deployments, p.there, "web")
	has(t, p.down, deployments, thereB, "web", anyhow)
	patch(t, p.down, deployments, thereB, "web", `{"status":{"replicas":2,"readyReplicas":2}}`, "status")
	has(t, p.objects, deployments, "team", "web", field(2, "status", "readyReplicas"))
	has(t, p.objects, deployments, "team", "web", field("["+workloadv1alpha1.FinalizerPrefix+"s4-b]", "metadata", "finalizers"))

	// Without a label it is in no cluster, and still exists upstream.
	patch(t, p.objects, deployments, "team", "web", `{"metadata":{"labels":{"workloads.kcp.dev/cluster":null}}}`)
	hasNot(t, p.down, deployments, thereB, "web")
	has(t, p.objects, deployments, "team", "web", field(nil, "metadata", "finalizers"))
}

// TestTwoControlPlanes registers one cluster in two kcps under one name. Objects with the same
// namespace and name are two objects downstream.
func TestTwoControlPlanes(t *testing.T) {
	one, two := startPair(t, "s5"), startPair(t, "s5")
	if one.there == two.there {
		t.Fatalf("both kcps use the namespace %s", one.there)
	}
	create(t, one.objects, configMaps, configMap("team", "x", "s5", map[string]string{"of": "one"}))
	create(t, two.objects, configMaps, configMap("team", "x", "s5", map[string]string{"of": "two"}))
	has(t, one.down, configMaps, one.there, "x", field("one", "data", "of"))
	has(t, two.down, configMaps, two.there, "x", field("two", "data", "of"))
	remove(t, one.objects, configMaps, "team", "x")
	hasNot(t, one.down, configMaps, one.there, "x")
	two.passes("later")
	has(t, two.down, configMaps, two.there, "x", field("two", "data", "of"))
}

// TestANamespaceOfAnotherIsReported tests that a downstream namespace with another locator, or
// with none, is reported and stays as it is.
func TestANamespaceOfAnotherIsReported(t *testing.T) {
	p := startPair(t, "s6")
	for namespace, annotations := range map[string]map[string]string{
		"other": {workloadv1alpha1.LocatorAnnotation: `{"upstreamUID":"u","cluster":"s6","clusterUID":"c","namespace":"other"}`},
		"none":  nil,
	} {
		t.Run(namespace, func(t *testing.T) {
			p.namespace(namespace)
			taken := object(namespaces, "Namespace", "", p.downNamespace("s6", namespace))
			taken.SetAnnotations(annotations)
			before := create(t, p.down, namespaces, taken)
			t.Cleanup(func() { remove2(p.down, taken.GetName()) })
			create(t, p.objects, configMaps, configMap(namespace, "x", "s6", map[string]string{"a": "1"}))
			has(t, p.objects, configMaps, namespace, "x", problem("s6", "NamespaceConflict"))
			now := has(t, p.down, namespaces, "", taken.GetName(), anyhow)
			if now.GetResourceVersion() != before.GetResourceVersion() {
				t.Errorf("the namespace was written: %v", now.Object)
			}
			if _, err := p.down.Resource(configMaps).Namespace(taken.GetName()).Get(t.Context(), "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the object in it: %v, want not found", err)
			}
			remove(t, p.objects, configMaps, namespace, "x")
			hasNot(t, p.objects, configMaps, namespace, "x")
		})
	}
}

func remove2(c dynamic.Interface, namespace string) {
	_ = c.Resource(namespaces).Delete(context.Background(), namespace, metav1.DeleteOptions{})
}

// TestObjectOfAnotherIsNeverAdopted tests that an existing downstream object is reported with
// an annotation and an event. It is neither changed nor deleted.
func TestObjectOfAnotherIsNeverAdopted(t *testing.T) {
	p := startPair(t, "s7")
	create(t, p.objects, configMaps, configMap("team", "first", "s7", nil))
	has(t, p.down, configMaps, p.there, "first", anyhow)
	theirs := object(configMaps, "ConfigMap", p.there, "x")
	theirs.Object["data"] = map[string]any{"of": "another"}
	before := create(t, p.down, configMaps, theirs)
	create(t, p.objects, configMaps, configMap("team", "x", "s7", map[string]string{"of": "the kcp"}))
	has(t, p.objects, configMaps, "team", "x", problem("s7", "Conflict"))
	poll.Until(t, kube.Timeout, "an event says so", func(ctx context.Context) error {
		list, err := p.objects.Resource(events).Namespace("team").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Object["reason"] == "Conflict" {
				return nil
			}
		}
		return fmt.Errorf("%d events, none of a conflict", len(list.Items))
	})
	remove(t, p.objects, configMaps, "team", "x")
	hasNot(t, p.objects, configMaps, "team", "x")
	p.same(configMaps, before)

	// When that object is deleted, the upstream object is copied.
	create(t, p.objects, configMaps, configMap("team", "x", "s7", map[string]string{"of": "the kcp"}))
	has(t, p.objects, configMaps, "team", "x", problem("s7", "Conflict"))
	remove(t, p.down, configMaps, p.there, "x")
	patch(t, p.objects, configMaps, "team", "x", `{"data":{"again":"1"}}`)
	has(t, p.down, configMaps, p.there, "x", field("the kcp", "data", "of"))
	has(t, p.objects, configMaps, "team", "x", problem("s7", ""))
}

// TestDriftIsCorrected tests that fields and objects that another client changes or deletes
// downstream are restored. Fields that upstream does not set keep their values.
func TestDriftIsCorrected(t *testing.T) {
	p := startPair(t, "s8")
	create(t, p.objects, deployments, deployment(t, "team", "web", "s8"))
	create(t, p.objects, configMaps, configMap("team", "x", "s8", map[string]string{"a": "1"}))
	before := has(t, p.down, deployments, p.there, "web", anyhow)
	has(t, p.down, configMaps, p.there, "x", anyhow)

	patch(t, p.down, configMaps, p.there, "x", `{"data":{"a":"2","b":"theirs"}}`)
	has(t, p.down, configMaps, p.there, "x", field("1", "data", "a"))
	has(t, p.down, configMaps, p.there, "x", field("theirs", "data", "b"))
	patch(t, p.down, configMaps, p.there, "x", `{"data":{"a":null}}`)
	has(t, p.down, configMaps, p.there, "x", field("1", "data", "a"))
	patch(t, p.down, configMaps, p.there, "x", `{"metadata":{"labels":{"workloads.kcp.dev/cluster":null}}}`)
	has(t, p.down, configMaps, p.there, "x", field("s8", "metadata", "labels", workloadv1alpha1.ClusterLabel))
	patch(t, p.down, deployments, p.there, "web", `{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"web:1","env":[{"name":"A","value":"2"}]}]}}}}`)
	has(t, p.down, deployments, p.there, "web", func(o *unstructured.Unstructured) error {
		containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		if s := fmt.Sprint(containers); !strings.Contains(s, "value:1") {
			return errors.New(s)
		}
		return nil
	})
	// A manual scale is drift too.
	patch(t, p.down, deployments, p.there, "web", `{"spec":{"replicas":7}}`)
	has(t, p.down, deployments, p.there, "web", field(2, "spec", "replicas"))

	remove(t, p.down, deployments, p.there, "web")
	has(t, p.down, deployments, p.there, "web", func(o *unstructured.Unstructured) error {
		if o.GetUID() == before.GetUID() {
			return errors.New("still the same object")
		}
		return image("web:1")(o)
	})
}

// TestATypePublishedLaterIsSynced tests that a type is copied as soon as the kcp serves it. The
// objects of a type that is no longer requested stay as they are.
func TestATypePublishedLaterIsSynced(t *testing.T) {
	cluster, down := downstream(t)
	up := startKCP(t)
	up.unpublishDeployments()
	up.register("s9", "deployments.apps", "configmaps")
	up.namespace("team")
	there := up.downNamespace("s9", "team")
	up.sync("s9", cluster.Rest())
	create(t, up.objects, configMaps, configMap("team", "x", "s9", nil))
	has(t, down, configMaps, there, "x", anyhow)
	up.says("s9", workloadv1alpha1.ConditionSyncerReady, metav1.ConditionTrue, "deployments.apps: the kcp does not serve it")

	up.publishDeployments(cluster.Rest())
	create(t, up.objects, deployments, deployment(t, "team", "web", "s9"))
	has(t, down, deployments, there, "web", anyhow)
	up.says("s9", workloadv1alpha1.ConditionSyncerReady, metav1.ConditionTrue, "Objects are copied.")

	up.carries("s9", "configmaps")
	create(t, up.objects, configMaps, configMap("team", "y", "s9", nil))
	has(t, down, configMaps, there, "y", anyhow)
	has(t, down, deployments, there, "web", anyhow)
	up.carries("s9", "configmaps", "deployments.apps")
	patch(t, up.objects, deployments, "team", "web", `{"spec":{"replicas":5}}`)
	has(t, down, deployments, there, "web", field(5, "spec", "replicas"))
}

// says waits until a condition of the Cluster has a status and its message contains a text.
func (k *kcp) says(cluster, condition string, status metav1.ConditionStatus, text string) {
	k.t.Helper()
	poll.Until(k.t, kube.Timeout, condition+" is "+string(status), func(ctx context.Context) error {
		c, err := k.clusterOf(ctx, cluster)
		if err != nil {
			return err
		}
		found := meta.FindStatusCondition(c.Status.Conditions, condition)
		if found == nil || found.Status != status || !strings.Contains(found.Message, text) {
			return fmt.Errorf("it is %+v", found)
		}
		return nil
	})
}

// TestNeverCarried tests that objects which each side makes for itself, and tokens, are not
// copied.
func TestNeverCarried(t *testing.T) {
	p := startPair(t, "never")
	token := object(secrets, "Secret", "team", "token")
	token.Object["type"] = "kubernetes.io/service-account-token"
	token.SetAnnotations(map[string]string{"kubernetes.io/service-account.name": "default"})
	root := configMap("team", "kube-root-ca.crt", "never", nil)
	account := object(accounts, "ServiceAccount", "team", "default")
	plain := object(secrets, "Secret", "team", "plain")
	plain.Object["stringData"] = map[string]any{"a": "b"}
	for _, o := range []*unstructured.Unstructured{token, root, account, plain} {
		o.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: "never"})
	}
	ensure := func(r groupVersionResource, o *unstructured.Unstructured) {
		raw, err := json.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		force := true
		_, err = p.objects.Resource(r).Namespace("team").Patch(t.Context(), o.GetName(), "application/apply-patch+yaml", raw, metav1.PatchOptions{FieldManager: "test", Force: &force})
		if err != nil {
			t.Fatal(err)
		}
	}
	ensure(accounts, account)
	ensure(configMaps, root)
	ensure(secrets, token)
	ensure(secrets, plain)
	has(t, p.down, secrets, p.there, "plain", field("Yg==", "data", "a"))
	p.passes("later")
	for name, r := range map[string]groupVersionResource{"token": secrets, "kube-root-ca.crt": configMaps, "default": accounts} {
		o, err := p.down.Resource(r).Namespace(p.there).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && o.GetLabels()[workloadv1alpha1.ClusterLabel] != "" || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s %s downstream: %v, %v", r.Resource, name, o, err)
		}
	}
}

// TestServiceKeepsItsAddress tests that the cluster chooses the address of a Service, and that it
// does not change.
func TestServiceKeepsItsAddress(t *testing.T) {
	p := startPair(t, "service")
	create(t, p.objects, services, parse(t, `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: team, labels: {workloads.kcp.dev/cluster: service}}
spec: {selector: {app: web}, ports: [{port: 80}], type: LoadBalancer}
`))
	before := has(t, p.down, services, p.there, "web", func(o *unstructured.Unstructured) error {
		if address, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); address == "" {
			return errors.New("no address")
		}
		return nil
	})
	patch(t, p.objects, services, "team", "web", `{"spec":{"selector":{"app":"other"}}}`)
	now := has(t, p.down, services, p.there, "web", field("other", "spec", "selector", "app"))
	for _, name := range []string{"clusterIP", "ports"} {
		if was, is := before.Object["spec"].(map[string]any)[name], now.Object["spec"].(map[string]any)[name]; fmt.Sprint(was) != fmt.Sprint(is) {
			t.Errorf("spec.%s was %v and is %v", name, was, is)
		}
	}
	patch(t, p.down, services, p.there, "web", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.7"}]}}}`, "status")
	has(t, p.objects, services, "team", "web", func(o *unstructured.Unstructured) error {
		if s := fmt.Sprint(o.Object["status"]); !strings.Contains(s, "192.0.2.7") {
			return errors.New(s)
		}
		return nil
	})
}

// TestClaimsAreKept tests that data is not deleted when a claim leaves a cluster or is deleted
// upstream, unless the claim allows it.
func TestClaimsAreKept(t *testing.T) {
	p := startPair(t, "claims")
	claim := func(name, annotations string) *unstructured.Unstructured {
		return parse(t, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: `+name+`, namespace: team, labels: {workloads.kcp.dev/cluster: claims}, annotations: {`+annotations+`}}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: none}
`)
	}
	for _, name := range []string{"kept", "moved"} {
		create(t, p.objects, claims, claim(name, ""))
		has(t, p.down, claims, p.there, name, anyhow)
	}
	create(t, p.objects, claims, claim("gone", workloadv1alpha1.DeleteDataAnnotation+`: "true"`))
	has(t, p.down, claims, p.there, "gone", anyhow)

	remove(t, p.objects, claims, "team", "kept")
	hasNot(t, p.objects, claims, "team", "kept")
	patch(t, p.objects, claims, "team", "moved", `{"metadata":{"labels":{"workloads.kcp.dev/cluster":null}}}`)
	has(t, p.objects, claims, "team", "moved", field(nil, "metadata", "finalizers"))
	for _, name := range []string{"kept", "moved"} {
		if o := has(t, p.down, claims, p.there, name, anyhow); o.GetDeletionTimestamp() != nil {
			t.Errorf("the claim %s is being deleted downstream", name)
		}
	}
	// kube-apiserver itself protects claims with a finalizer that its controller removes. Until
	// then, the upstream claim waits.
	remove(t, p.objects, claims, "team", "gone")
	has(t, p.down, claims, p.there, "gone", func(o *unstructured.Unstructured) error {
		if o.GetDeletionTimestamp() == nil {
			return errors.New("it is not being deleted")
		}
		return nil
	})
	p.passes("later")
	has(t, p.objects, claims, "team", "gone", anyhow)
	patch(t, p.down, claims, p.there, "gone", `{"metadata":{"finalizers":null}}`)
	hasNot(t, p.objects, claims, "team", "gone")
	// A claim that is sent back is the same one again. A new claim with the same name is not.
	patch(t, p.objects, claims, "team", "moved", `{"metadata":{"labels":{"workloads.kcp.dev/cluster":"claims"}}}`)
	patch(t, p.objects, claims, "team", "moved", `{"metadata":{"labels":{"seen":"again"}}}`)
	has(t, p.down, claims, p.there, "moved", field("again", "metadata", "labels", "seen"))
	create(t, p.objects, claims, claim("kept", ""))
	has(t, p.objects, claims, "team", "kept", problem("claims", "Conflict"))
}

// TestImmutable tests that a change of an immutable field is reported, and that the object is
// created again only on request.
func TestImmutable(t *testing.T) {
	p := startPair(t, "immutable")
	create(t, p.objects, deployments, deployment(t, "team", "web", "immutable"))
	before := has(t, p.down, deployments, p.there, "web", anyhow)
	patch(t, p.objects, deployments, "team", "web", `{"spec":{"selector":{"matchLabels":{"app":"new"}},"template":{"metadata":{"labels":{"app":"new"}}}}}`)
	has(t, p.objects, deployments, "team", "web", problem("immutable", "Immutable"))
	if now := has(t, p.down, deployments, p.there, "web", anyhow); now.GetUID() != before.GetUID() {
		t.Fatal("it was made anew without a request")
	}
	patch(t, p.objects, deployments, "team", "web", `{"metadata":{"annotations":{"workloads.kcp.dev/recreate":"true"}}}`)
	has(t, p.down, deployments, p.there, "web", field("new", "spec", "selector", "matchLabels", "app"))
	has(t, p.objects, deployments, "team", "web", problem("immutable", ""))

	// The object is not deleted for content that a new object would be refused for too.
	now := has(t, p.down, deployments, p.there, "web", anyhow)
	patch(t, p.objects, deployments, "team", "web", `{"spec":{"template":{"metadata":{"labels":{"app":"neither"}}}}}`)
	has(t, p.objects, deployments, "team", "web", problem("immutable", "Refused"))
	if then := has(t, p.down, deployments, p.there, "web", anyhow); then.GetUID() != now.GetUID() {
		t.Error("an object was deleted for one that the cluster refuses")
	}
}

// TestYield tests that a yielded field is set at creation, and belongs to other clients after
// that.
func TestYield(t *testing.T) {
	p := startPair(t, "yield")
	given := deployment(t, "team", "given", "yield")
	given.SetAnnotations(map[string]string{workloadv1alpha1.YieldAnnotation: "spec.replicas"})
	create(t, p.objects, deployments, given)
	create(t, p.objects, deployments, deployment(t, "team", "taken", "yield"))
	create(t, p.objects, deployments, deployment(t, "team", "later", "yield"))
	for _, name := range []string{"given", "taken", "later"} {
		has(t, p.down, deployments, p.there, name, field(2, "spec", "replicas"))
	}
	patch(t, p.down, deployments, p.there, "given", `{"spec":{"replicas":6}}`)
	// As an autoscaler does.
	_, err := p.down.Resource(deployments).Namespace(p.there).Patch(t.Context(), "taken", mergePatch, []byte(`{"spec":{"replicas":6}}`), metav1.PatchOptions{FieldManager: "kube-controller-manager"}, "scale")
	if err != nil {
		t.Fatal(err)
	}
	// If the field is yielded later, its current value stays.
	patch(t, p.objects, deployments, "team", "later", `{"metadata":{"annotations":{"workloads.kcp.dev/yield":"spec.replicas"}}}`)
	has(t, p.down, deployments, p.there, "later", field("spec.replicas", "metadata", "annotations", workloadv1alpha1.YieldAnnotation))
	for _, name := range []string{"given", "taken", "later"} {
		patch(t, p.objects, deployments, "team", name, `{"spec":{"paused":true,"replicas":3}}`)
		has(t, p.down, deployments, p.there, name, field(true, "spec", "paused"))
	}
	p.passes("settled")
	for name, want := range map[string]int{"given": 6, "taken": 6, "later": 2} {
		has(t, p.down, deployments, p.there, name, field(want, "spec", "replicas"))
	}
}

// TestScaleWriteInAMember tests that the syncer does not revert a write to the scale subresource
// by any program, and reports it upstream. The user can revert it. Nothing runs where upstream
// has 0 replicas.
func TestScaleWriteInAMember(t *testing.T) {
	p := startPair(t, "scaled")
	scale := func(replicas int) {
		t.Helper()
		_, err := p.down.Resource(deployments).Namespace(p.there).Patch(t.Context(), "web", mergePatch,
			fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas), metav1.PatchOptions{FieldManager: "python-client"}, "scale")
		if err != nil {
			t.Fatal(err)
		}
	}
	replicas := func(want int) {
		t.Helper()
		has(t, p.down, deployments, p.there, "web", field(want, "spec", "replicas"))
	}
	create(t, p.objects, deployments, deployment(t, "team", "web", "scaled"))
	replicas(2)
	scale(6)
	has(t, p.objects, deployments, "team", "web", problem("scaled", `ReplicasYielded: "python-client"`))
	patch(t, p.objects, deployments, "team", "web", `{"spec":{"paused":true}}`)
	has(t, p.down, deployments, p.there, "web", field(true, "spec", "paused"))
	replicas(6)

	patch(t, p.objects, deployments, "team", "web", `{"metadata":{"annotations":{"workloads.kcp.dev/yield":"none"}}}`)
	replicas(2)
	has(t, p.objects, deployments, "team", "web", problem("scaled", ""))
	scale(6)
	replicas(2)

	patch(t, p.objects, deployments, "team", "web", `{"metadata":{"annotations":{"workloads.kcp.dev/yield":null}}}`)
	has(t, p.down, deployments, p.there, "web", field(nil, "metadata", "annotations", workloadv1alpha1.YieldAnnotation))
	scale(6)
	has(t, p.objects, deployments, "team", "web", problem("scaled", "ReplicasYielded"))
	replicas(6)
	patch(t, p.objects, deployments, "team", "web", `{"spec":{"replicas":0}}`)
	replicas(0)
	scale(4)
	p.passes("scaled-to-0")
	replicas(0)
	has(t, p.objects, deployments, "team", "web", problem("scaled", ""))
	// That is so even if upstream yields the field.
	patch(t, p.objects, deployments, "team", "web", `{"metadata":{"annotations":{"workloads.kcp.dev/yield":"spec.replicas"}}}`)
	scale(4)
	p.passes("given-away")
	replicas(0)
}

// TestShared tests that an object for two clusters is in both, has the status of each in an
// annotation, and leaves each one independently.
func TestShared(t *testing.T) {
	p := startPair(t, "shared-a")
	p.register("shared-b", "deployments.apps", "configmaps")
	p.sync("shared-b", p.kube.Rest())
	thereB := p.downNamespace("shared-b", "team")
	d := deployment(t, "team", "web", "shared-a")
	d.SetLabels(map[string]string{"app": "web", workloadv1alpha1.TargetLabelPrefix + "shared-a": "true", workloadv1alpha1.TargetLabelPrefix + "shared-b": "true"})
	create(t, p.objects, deployments, d)
	has(t, p.down, deployments, p.there, "web", field("map[app:web workloads.kcp.dev/cluster:shared-a]", "metadata", "labels"))
	has(t, p.down, deployments, thereB, "web", field("map[app:web workloads.kcp.dev/cluster:shared-b]", "metadata", "labels"))
	patch(t, p.down, deployments, p.there, "web", `{"status":{"replicas":1}}`, "status")
	patch(t, p.down, deployments, thereB, "web", `{"status":{"replicas":2}}`, "status")
	has(t, p.objects, deployments, "team", "web", field(`{"replicas":1}`, "metadata", "annotations", workloadv1alpha1.StatusAnnotationPrefix+"shared-a"))
	has(t, p.objects, deployments, "team", "web", field(`{"replicas":2}`, "metadata", "annotations", workloadv1alpha1.StatusAnnotationPrefix+"shared-b"))
	has(t, p.objects, deployments, "team", "web", field(nil, "status", "replicas"))

	patch(t, p.objects, deployments, "team", "web", `{"metadata":{"labels":{"sync.workloads.kcp.dev/shared-a":null}}}`)
	hasNot(t, p.down, deployments, p.there, "web")
	has(t, p.down, deployments, thereB, "web", anyhow)
	has(t, p.objects, deployments, "team", "web", field(nil, "metadata", "annotations", workloadv1alpha1.StatusAnnotationPrefix+"shared-a"))
	has(t, p.objects, deployments, "team", "web", field(2, "status", "replicas"))
}

// TestTypeEnds tests that the downstream objects stay when a CRD is deleted upstream.
func TestTypeEnds(t *testing.T) {
	p := startPair(t, "ends")
	create(t, p.objects, deployments, deployment(t, "team", "web", "ends"))
	before := has(t, p.down, deployments, p.there, "web", anyhow)
	remove(t, p.objects, crds, "", "deployments.apps")
	has(t, p.objects, deployments, "team", "web", problem("ends", "TypeEnding"))
	p.passes("later")
	p.same(deployments, before)
	// They stay even if the finalizer is removed by force and the type is gone.
	patch(t, p.objects, deployments, "team", "web", `{"metadata":{"finalizers":null}}`)
	hasNot(t, p.objects, crds, "", "deployments.apps")
	p.passes("still-later")
	p.same(deployments, before)
}

// mass is a kcp whose Cluster has a syncer that may delete five objects in an hour.
type mass struct {
	*kcp
	down   dynamic.Interface
	there  string
	config syncer.Config
}

func startMass(t *testing.T, cluster string, objects int) (*mass, *running) {
	t.Helper()
	k, down := downstream(t)
	m := &mass{kcp: startKCP(t), down: down}
	m.register(cluster, "configmaps")
	m.namespace("team")
	m.there = m.downNamespace(cluster, "team")
	m.config = m.configOf(cluster, k.Rest())
	m.config.Deletes = syncer.DeleteLimit{Count: 5, Fraction: 0.01, Window: time.Hour}
	first := run(t, m.config)
	for i := range objects {
		create(t, m.objects, configMaps, configMap("team", fmt.Sprintf("x%02d", i), cluster, nil))
	}
	m.are(objects)
	return m, first
}

// are waits until the cluster has a number of objects.
func (m *mass) are(want int) {
	m.t.Helper()
	poll.Until(m.t, kube.Timeout, fmt.Sprintf("%d objects are in the cluster", want), func(ctx context.Context) error {
		list, err := m.down.Resource(configMaps).Namespace(m.there).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) != want {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
}

// TestMassDeletion tests that too many deletions at once wait for a go-ahead with their number.
func TestMassDeletion(t *testing.T) {
	m, first := startMass(t, "mass", 20)
	if err := m.objects.Resource(configMaps).Namespace("team").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: workloadv1alpha1.ClusterLabel + "=mass"}); err != nil {
		t.Fatal(err)
	}
	m.says("mass", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionTrue, "20 deletions are paused")

	// A wrong number, or a new syncer, changes nothing.
	patch(t, m.objects, clusters, "", "mass", `{"metadata":{"annotations":{"workloads.kcp.dev/allow-deletes":"19"}}}`)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	run(t, m.config)
	create(t, m.objects, configMaps, configMap("team", "new", "mass", nil))
	m.are(20 + 1)
	m.says("mass", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionTrue, "20 deletions are paused")
	m.are(20 + 1)
	patch(t, m.objects, clusters, "", "mass", `{"metadata":{"annotations":{"workloads.kcp.dev/allow-deletes":"20"}}}`)
	m.are(1)
	m.says("mass", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionFalse, "")
}

// TestMassDeletionOfOneNamespace tests that a namespace whose deletions are paused does not pause
// those of another one, also not after a restart of the syncer.
func TestMassDeletionOfOneNamespace(t *testing.T) {
	m, first := startMass(t, "alone", 20)
	m.namespace("quiet")
	quiet := m.downNamespace("alone", "quiet")
	for _, name := range []string{"one", "two", "three"} {
		create(t, m.objects, configMaps, configMap("quiet", name, "alone", nil))
		has(t, m.down, configMaps, quiet, name, anyhow)
	}
	if err := m.objects.Resource(configMaps).Namespace("team").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: workloadv1alpha1.ClusterLabel + "=alone"}); err != nil {
		t.Fatal(err)
	}
	m.says("alone", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionTrue, "exceeded its limit of 5 deletions within 1h0m0s: team (20)")
	poll.Until(t, kube.Timeout, "one event reports the pause", func(ctx context.Context) error {
		list, err := m.objects.Resource(events).Namespace("team").List(ctx, metav1.ListOptions{FieldSelector: "reason=DeletesPaused"})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("there are %d", len(list.Items))
		}
		return field("cluster alone: DeletesPaused: this object and others are not deleted in the cluster until an operator of the kcp allows it: "+
			"the namespace exceeded its limit of 5 deletions within 1h0m0s", "message")(&list.Items[0])
	})
	poll.Until(t, kube.Timeout, "the status has the paused namespace", func(ctx context.Context) error {
		c, err := m.clusterOf(ctx, "alone")
		if err != nil {
			return err
		}
		want := &workloadv1alpha1.PausedDeletes{Namespaces: []workloadv1alpha1.PausedNamespace{{Namespace: "team", Deletes: 20}}}
		if got := c.Status.PausedDeletes; !equality.Semantic.DeepEqual(got, want) {
			return fmt.Errorf("it has %v, want %v", got, want)
		}
		return nil
	})

	// The next run has a window in which each deletion is a window after the one before, however
	// slow this machine is. Only a pause keeps an object.
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	remove(t, m.objects, configMaps, "quiet", "one")
	m.config.Deletes.Window = time.Millisecond
	run(t, m.config)
	hasNot(t, m.down, configMaps, quiet, "one")
	remove(t, m.objects, configMaps, "quiet", "two")
	hasNot(t, m.down, configMaps, quiet, "two")
	m.says("alone", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionTrue, "20 deletions are paused")
	m.are(20)
	patch(t, m.objects, clusters, "", "alone", `{"metadata":{"annotations":{"workloads.kcp.dev/allow-deletes":"20"}}}`)
	m.are(0)
	m.says("alone", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionFalse, "")
	remove(t, m.objects, configMaps, "quiet", "three")
	hasNot(t, m.down, configMaps, quiet, "three")
}

// roundTrip is a function that implements http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestGoAheadBeforeAllIsCounted tests that a number which matches by accident while a syncer
// still counts the waiting deletions does not allow any.
func TestGoAheadBeforeAllIsCounted(t *testing.T) {
	m, first := startMass(t, "counted", 19)
	m.namespace("late")
	late := m.downNamespace("counted", "late")
	for i := range 6 {
		name := fmt.Sprint("x", i)
		create(t, m.objects, configMaps, configMap("late", name, "counted", nil))
		has(t, m.down, configMaps, late, name, anyhow)
	}
	for _, namespace := range []string{"team", "late"} {
		if err := m.objects.Resource(configMaps).Namespace(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: workloadv1alpha1.ClusterLabel + "=counted"}); err != nil {
			t.Fatal(err)
		}
	}
	m.says("counted", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionTrue, "25 deletions are paused")
	patch(t, m.objects, clusters, "", "counted", `{"metadata":{"annotations":{"workloads.kcp.dev/allow-deletes":"19"}}}`)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}

	// The next syncer gets no answer for one namespace for a while.
	found := make(chan struct{})
	m.config.Downstream = rest.CopyConfig(m.config.Downstream)
	m.config.Downstream.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == "/api/v1/namespaces/"+late {
				select {
				case <-found:
				case <-r.Context().Done():
				}
			}
			return next.RoundTrip(r)
		})
	})
	run(t, m.config)
	m.says("counted", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionTrue, "19 so far")
	m.are(19)
	close(found)
	m.says("counted", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionTrue, "25 deletions are paused")
	m.are(19)
	patch(t, m.objects, clusters, "", "counted", `{"metadata":{"annotations":{"workloads.kcp.dev/allow-deletes":"25"}}}`)
	m.are(0)
	hasNot(t, m.down, configMaps, late, "x0")
	m.says("counted", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionFalse, "")
}

// TestMassDeletionByManyRuns tests that a syncer which restarts after a few deletions each time
// may not delete more than one that runs without a restart.
func TestMassDeletionByManyRuns(t *testing.T) {
	m, r := startMass(t, "runs", 20)
	for i := range 4 {
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		for j := range 5 {
			remove(t, m.objects, configMaps, "team", fmt.Sprintf("x%02d", 5*i+j))
		}
		r = run(t, m.config)
		// The syncer has processed all objects before it creates this one, or is about to.
		create(t, m.objects, configMaps, configMap("team", fmt.Sprint("new", i), "runs", nil))
		has(t, m.down, configMaps, m.there, fmt.Sprint("new", i), anyhow)
	}
	m.says("runs", workloadv1alpha1.ConditionDeletesPaused, metav1.ConditionTrue, "20 deletions are paused")
	m.are(20 + 4)
}

// TestClusterGone tests that the Cluster shows that the syncer works, and that the syncer ends
// with the Cluster.
func TestClusterGone(t *testing.T) {
	k, _ := downstream(t)
	up := startKCP(t)
	up.register("gone", "configmaps")
	r := up.sync("gone", k.Rest())
	poll.Until(t, kube.Timeout, "there is a heartbeat", func(ctx context.Context) error {
		c, err := up.clusterOf(ctx, "gone")
		if err == nil && c.Status.LastHeartbeatTime == nil {
			err = errors.New("none")
		}
		return err
	})
	remove(t, up.objects, clusters, "", "gone")
	select {
	case err := <-r.done:
		r.done <- err
		if !errors.Is(err, syncer.ErrClusterGone) {
			t.Errorf("Run() = %v, want %v", err, syncer.ErrClusterGone)
		}
	case <-time.After(kube.Timeout):
		t.Error("the syncer goes on without its Cluster")
	}
}

// installs makes servers serve a CRD until the test ends.
func installs(t *testing.T, crd *unstructured.Unstructured, of schema.GroupVersionResource, servers ...*rest.Config) {
	t.Helper()
	for _, server := range servers {
		objects := dynamic.NewForConfigOrDie(server)
		if _, err := objects.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := objects.Resource(crds).Delete(context.WithoutCancel(t.Context()), crd.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		})
		poll.Until(t, kube.Timeout, of.Resource+" are served", func(ctx context.Context) error {
			_, err := objects.Resource(of).List(ctx, metav1.ListOptions{})
			return err
		})
	}
}

// widgets returns a CRD in a group, with versions as YAML.
func widgets(t *testing.T, group, versions string) *unstructured.Unstructured {
	t.Helper()
	return parse(t, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions: %[2]s
`, group, versions))
}

// isSpec checks a spec, as JSON.
func isSpec(want string) func(*unstructured.Unstructured) error {
	return func(o *unstructured.Unstructured) error {
		raw, err := json.Marshal(o.Object["spec"])
		if err == nil && string(raw) != want {
			err = fmt.Errorf("spec is %s, want %s", raw, want)
		}
		return err
	}
}

// TestNullStaysNull tests that a nullable field with a default is null in the cluster if it is
// null upstream.
func TestNullStaysNull(t *testing.T) {
	p := startPair(t, "nulls")
	of := schema.GroupVersionResource{Group: "nulls.example.com", Version: "v1", Resource: "widgets"}
	installs(t, widgets(t, of.Group, `[{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {
	size: {type: integer, nullable: true, default: 3}, free: {type: object, x-kubernetes-preserve-unknown-fields: true},
		list: {type: array, items: {type: object, properties: {size: {type: integer, nullable: true, default: 3}}}}}}}}}}]`), of, p.config, p.kube.Rest())
	p.carries("nulls", "widgets.nulls.example.com", "configmaps")
	create(t, p.objects, of, parse(t, `
apiVersion: nulls.example.com/v1
kind: Widget
metadata: {name: w, namespace: team, labels: {workloads.kcp.dev/cluster: nulls}}
spec: {size: null, free: {a: null, b: 1}, list: [{size: null}]}
`))
	has(t, p.objects, of, "team", "w", isSpec(`{"free":{"a":null,"b":1},"list":[{"size":null}],"size":null}`))
	has(t, p.down, of, p.there, "w", isSpec(`{"free":{"a":null,"b":1},"list":[{"size":null}],"size":null}`))
	// Drift from null to a number is detected.
	patch(t, p.down, of, p.there, "w", `{"spec":{"size":5}}`)
	has(t, p.down, of, p.there, "w", isSpec(`{"free":{"a":null,"b":1},"list":[{"size":null}],"size":null}`))
	remove(t, p.objects, of, "team", "w")
	hasNot(t, p.down, of, p.there, "w")
	hasNot(t, p.objects, of, "team", "w")
}

// TestWritesThroughAnOlderVersionKeepFields tests that fields which the cluster's version does
// not have stay upstream, for every write of the syncer there.
func TestWritesThroughAnOlderVersionKeepFields(t *testing.T) {
	p := startPair(t, "older")
	of := schema.GroupVersionResource{Group: "older.example.com", Version: "v1", Resource: "widgets"}
	older := of.GroupResource().WithVersion("v1beta1")
	const (
		small = `served: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, properties: {status: {type: object, properties: {ready: {type: integer}}}, spec: {type: object, properties: {size: {type: integer}}}}}}`
		large = `served: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, properties: {status: {type: object, properties: {ready: {type: integer}, more: {type: string}}}, spec: {type: object, properties: {size: {type: integer}, more: {type: string}}}}}}`
	)
	installs(t, widgets(t, of.Group, `[{name: v1beta1, storage: false, `+small+`}, {name: v1, storage: true, `+large+`}]`), of, p.config)
	installs(t, widgets(t, of.Group, `[{name: v1beta1, storage: true, `+small+`}]`), older, p.kube.Rest())
	p.carries("older", "widgets.older.example.com", "configmaps")
	create(t, p.objects, of, parse(t, `
apiVersion: older.example.com/v1
kind: Widget
metadata: {name: w, namespace: team}
spec: {size: 1, more: kept}
`))
	patch(t, p.objects, of, "team", "w", `{"status":{"more":"kept"}}`, "status")
	// The syncer writes the finalizer, the status, a problem and the release.
	patch(t, p.objects, of, "team", "w", `{"metadata":{"labels":{"workloads.kcp.dev/cluster":"older"}}}`)
	has(t, p.down, older, p.there, "w", isSpec(`{"size":1}`))
	patch(t, p.down, older, p.there, "w", `{"status":{"ready":1}}`, "status")
	up := has(t, p.objects, of, "team", "w", field(1, "status", "ready"))
	kept := func(o *unstructured.Unstructured) error {
		if more, _, _ := unstructured.NestedString(o.Object, "spec", "more"); more != "kept" {
			return fmt.Errorf("spec is %v", o.Object["spec"])
		}
		return nil
	}
	if err := kept(up); err != nil || len(up.GetFinalizers()) == 0 {
		t.Errorf("after the finalizer and the status, %v; finalizers are %v", err, up.GetFinalizers())
	}
	// After the target is removed, the syncer releases the object upstream.
	patch(t, p.objects, of, "team", "w", `{"metadata":{"labels":{"workloads.kcp.dev/cluster":null}}}`)
	hasNot(t, p.down, older, p.there, "w")
	up = has(t, p.objects, of, "team", "w", func(o *unstructured.Unstructured) error {
		if f := o.GetFinalizers(); len(f) > 0 {
			return fmt.Errorf("finalizers are %v", f)
		}
		return nil
	})
	if err := kept(up); err != nil {
		t.Errorf("after the release, %v", err)
	}
	remove(t, p.objects, of, "team", "w")
}
