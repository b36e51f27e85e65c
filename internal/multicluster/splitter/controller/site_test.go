package controller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/controller"
	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/leak"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/served"
)

func TestMain(m *testing.M) {
	code := kcptest.RunMain(m)
	if shared.stop != nil {
		if err := shared.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "the shared controller:", err)
			code = max(code, 1)
		}
	}
	os.Exit(leak.After(code))
}

var (
	clusters    = workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")
	placements  = workloadv1alpha1.SchemeGroupVersion.WithResource("placements")
	crds        = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// timeout is long enough for a slow and busy machine.
const timeout = 2 * time.Minute

// site is a namespace of the shared kcp, with clusters that no other test uses.
type site struct {
	*testing.T
	server    *kcptest.Server
	objects   dynamic.Interface
	namespace string
	// resource and kind are the type of the roots. The default is Deployments.
	resource schema.GroupVersionResource
	kind     string
	// syncers are connections with the identity of the syncers of simulated clusters. Such a
	// cluster runs at once what its leaves ask for.
	syncers map[string]dynamic.Interface
	// broken are the clusters whose new replicas never become ready.
	broken map[string]bool
	// surging are the clusters whose new replicas are not ready, while their old replicas are.
	surging map[string]bool
}

var shared struct {
	once sync.Once
	err  error
	stop func() error
}

// newSite returns a namespace and clusters for one test. The controller that all tests share
// divides the roots of the namespace over these clusters.
func newSite(t *testing.T, names ...string) *site {
	t.Helper()
	s := bareSite(t)
	server := s.server
	shared.once.Do(func() {
		if shared.err = install(server, "deployments.apps", "apps"); shared.err == nil {
			shared.stop, shared.err = run(kcptest.LoopbackConfig(server), controller.Config{Types: []string{"deployments.apps"}})
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	for _, name := range names {
		s.register(name, nil)
	}
	s.policy("")
	return s
}

func bareSite(t *testing.T) *site {
	t.Helper()
	server := kcptest.Shared(t)
	return &site{
		T: t, server: server, objects: dynamic.NewForConfigOrDie(kcptest.LoopbackConfig(server)),
		namespace: server.Namespace(t), resource: deployments, kind: "Deployment", syncers: map[string]dynamic.Interface{}, broken: map[string]bool{}, surging: map[string]bool{},
	}
}

// install makes the kcp serve Deployments of an API group.
func install(server *kcptest.Server, name, group string) error {
	data, err := os.ReadFile("testdata/deployments.yaml")
	if err != nil {
		return err
	}
	crd := &unstructured.Unstructured{}
	text := strings.ReplaceAll(string(data), "deployments.apps", name)
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, "group: apps", "group: "+group)), &crd.Object); err != nil {
		return err
	}
	objects := dynamic.NewForConfigOrDie(kcptest.LoopbackConfig(server))
	_, err = objects.Resource(crds).Create(context.Background(), crd, metav1.CreateOptions{})
	return err
}

// releaseDelay is short, so that tests soon observe removals.
const releaseDelay = 200 * time.Millisecond

// run starts a controller.
func run(config *rest.Config, c controller.Config) (stop func() error, err error) {
	c.Rest, c.Logger, c.ReleaseDelay = config, logger(), releaseDelay
	controller, err := controller.New(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx) }()
	return func() error { cancel(); return <-ended }, nil
}

// logger prints the controller's log if RIK_TEST_LOG is set.
func logger() *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(os.Getenv(served.EnvLog))); err != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// apart returns a site whose Deployments have their own API group. The shared controller ignores
// this group.
func apart(t *testing.T, names ...string) *site {
	t.Helper()
	s := newSite(t, names...)
	group := s.namespace + ".example.org"
	if err := install(s.server, "deployments."+group, group); err != nil {
		t.Fatal(err)
	}
	s.resource.Group = group
	for _, name := range names {
		s.is(name, true) // its syncer copies that type too
	}
	return s
}

// start runs a controller for the site's own type until the test ends or stop is called.
func (s *site) start(config *rest.Config) (stop func()) {
	s.Helper()
	end, err := run(config, controller.Config{Types: []string{s.resource.GroupResource().String()}})
	if err != nil {
		s.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		if err := end(); err != nil {
			s.Errorf("Run() = %v", err)
		}
	})
	s.Cleanup(stop)
	return stop
}

// cluster returns the name of a site's cluster in the kcp, which is unique among all tests.
func (s *site) cluster(name string) string { return s.namespace + "-" + name }

// register creates a Cluster that is ready, syncs Deployments, and is simulated. Its taint keeps
// roots of other tests away until the controller has seen their Placements. Such roots would wait
// forever, because this test does not simulate their leaves.
func (s *site) register(name string, labels map[string]string) {
	s.Helper()
	c := object(clusters, "Cluster", "", s.cluster(name))
	set := map[string]string{"site": s.namespace}
	maps.Copy(set, labels)
	c.SetLabels(set)
	c.Object["spec"] = map[string]any{"taints": s.taints()}
	if _, err := s.objects.Resource(clusters).Create(s.Context(), c, metav1.CreateOptions{}); err != nil {
		s.Fatalf("registering %s: %v", name, err)
	}
	s.is(name, true)
	s.syncers[name] = dynamic.NewForConfigOrDie(kcptest.AsSyncer(s.T, s.server, s.cluster(name)))
}

// taints returns the taints of the site's clusters, and more.
func (s *site) taints(more ...any) []any {
	return append([]any{map[string]any{"key": "site", "value": s.namespace, "effect": string(workloadv1alpha1.TaintNoSchedule)}}, more...)
}

// is makes a Cluster ready, or not ready since some time ago.
func (s *site) is(name string, ready bool, since ...time.Duration) {
	s.Helper()
	at := time.Now()
	for _, ago := range since {
		at = at.Add(-ago)
	}
	condition := map[string]any{"type": "Ready", "status": "False", "reason": "ClusterUnreachable", "message": "", "lastTransitionTime": at.UTC().Format(time.RFC3339)}
	if ready {
		condition["status"], condition["reason"] = "True", "ClusterReady"
	}
	s.merge(clusters, "", s.cluster(name), map[string]any{"status": map[string]any{
		"conditions": []any{condition}, "syncedResources": []any{s.resource.GroupResource().String(), "configmaps", "secrets", "serviceaccounts", "services", "persistentvolumeclaims", "ingresses.networking.k8s.io"},
	}}, "status")
}

// cut stops the simulation of a cluster.
func (s *site) cut(name string) { delete(s.syncers, name) }

func (s *site) merge(resource schema.GroupVersionResource, namespace, name string, patch map[string]any, subresources ...string) *unstructured.Unstructured {
	s.Helper()
	data, err := json.Marshal(patch)
	if err != nil {
		s.Fatal(err)
	}
	out, err := s.objects.Resource(resource).Namespace(namespace).Patch(s.Context(), name, types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
	if err != nil {
		s.Fatalf("patching %s %s: %v", resource.Resource, name, err)
	}
	return out
}

// policy sets the Placement of all roots of the site. Without it, they are not placed.
func (s *site) policy(fields string) {
	s.Helper()
	p := object(placements, "Placement", s.namespace, "all")
	spec := map[string]any{}
	if err := yaml.Unmarshal([]byte(fields), &spec); err != nil {
		s.Fatal(err)
	}
	spec["selector"] = map[string]any{}
	spec["clusters"] = map[string]any{"matchLabels": map[string]any{"site": s.namespace}}
	tolerations, _ := spec["tolerations"].([]any)
	spec["tolerations"] = append(tolerations, map[string]any{"key": "site", "operator": "Exists"})
	p.Object["spec"] = spec
	if _, err := s.objects.Resource(placements).Namespace(s.namespace).Apply(s.Context(), "all", p, metav1.ApplyOptions{FieldManager: "test", Force: true}); err != nil {
		s.Fatalf("making the Placement: %v", err)
	}
}

// deploy creates a root with its own pod template.
func (s *site) deploy(name string, replicas int, annotations map[string]string) {
	s.Helper()
	d := object(s.resource, s.kind, s.namespace, name)
	d.SetAnnotations(annotations)
	d.Object["spec"] = map[string]any{"replicas": int64(replicas), "template": template(name, "v1")}
	s.create(s.resource, d)
}

func template(name, version string) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"app": name}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": "web:" + version}}},
	}
}

func (s *site) create(resource schema.GroupVersionResource, o *unstructured.Unstructured) {
	s.Helper()
	poll.Until(s.T, timeout, "the type is served", func(ctx context.Context) error {
		_, err := s.objects.Resource(resource).Namespace(o.GetNamespace()).Create(ctx, o, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

func (s *site) get(resource schema.GroupVersionResource, name string) *unstructured.Unstructured {
	s.Helper()
	out, err := s.objects.Resource(resource).Namespace(s.namespace).Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatalf("reading %s %s: %v", resource.Resource, name, err)
	}
	return out
}

// leaf returns the name of the leaf of a root.
func (s *site) leaf(root, cluster string) string { return splitter.LeafName(root, s.cluster(cluster)) }

// runLeaves makes the simulated clusters run what their leaves ask for, as syncers would.
func (s *site) runLeaves(ctx context.Context) error {
	for name, syncer := range s.syncers {
		leaves, err := syncer.Resource(s.resource).Namespace(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: workloadv1alpha1.ClusterLabel + "=" + s.cluster(name)})
		if apierrors.IsForbidden(err) && s.isGone(ctx, name) {
			delete(s.syncers, name)
			continue
		}
		if err != nil {
			return fmt.Errorf("listing as the syncer of %s: %w", name, err)
		}
		for i := range leaves.Items {
			if err := s.carry(ctx, syncer, name, &leaves.Items[i]); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return fmt.Errorf("copying %s: %w", leaves.Items[i].GetName(), err)
			}
		}
	}
	return nil
}

// isGone reports whether the Cluster does not exist. Its syncer then has no permissions.
func (s *site) isGone(ctx context.Context, name string) bool {
	_, err := s.objects.Resource(clusters).Get(ctx, s.cluster(name), metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

// carry adds the finalizer to a leaf, removes it from a deleted leaf, and reports what runs.
func (s *site) carry(ctx context.Context, syncer dynamic.Interface, name string, leaf *unstructured.Unstructured) error {
	leaves := syncer.Resource(s.resource).Namespace(s.namespace)
	finalizers := []string{workloadv1alpha1.FinalizerPrefix + s.cluster(name)}
	if leaf.GetDeletionTimestamp() != nil {
		finalizers = nil
	}
	if !slices.Equal(leaf.GetFinalizers(), finalizers) {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": leaf.GetResourceVersion(), "finalizers": finalizers}})
		if err != nil {
			return err
		}
		if leaf, err = leaves.Patch(ctx, leaf.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil || finalizers == nil {
			return err
		}
	}
	status := s.runs(name, leaf)
	said := maps.Clone(status)
	maps.DeleteFunc(said, func(_ string, value any) bool { return value == nil })
	if equality.Semantic.DeepEqual(leaf.Object["status"], said) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": leaf.GetResourceVersion()}, "status": status})
	if err != nil {
		return err
	}
	_, err = leaves.Patch(ctx, leaf.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// runs returns the status of a leaf whose cluster has done what the leaf asks for.
func (s *site) runs(name string, leaf *unstructured.Unstructured) map[string]any {
	n, _, _ := unstructured.NestedInt64(leaf.Object, "spec", "replicas")
	at := leaf.GetCreationTimestamp().UTC().Format(time.RFC3339)
	condition := func(kind, status, reason string) any {
		return map[string]any{"type": kind, "status": status, "reason": reason, "message": reason, "lastTransitionTime": at}
	}
	if s.broken[name] {
		return map[string]any{
			"observedGeneration": leaf.GetGeneration(), "replicas": n, "updatedReplicas": nil, "readyReplicas": nil, "availableReplicas": nil, "unavailableReplicas": n,
			"conditions": []any{condition("Available", "False", "MinimumReplicasUnavailable"), condition("Progressing", "False", "ProgressDeadlineExceeded")},
		}
	}
	if s.surging[name] {
		return map[string]any{
			"observedGeneration": leaf.GetGeneration(), "replicas": 2 * n, "updatedReplicas": n, "readyReplicas": n, "availableReplicas": n, "unavailableReplicas": n,
			"conditions": []any{condition("Available", "True", "MinimumReplicasAvailable"), condition("Progressing", "True", "ReplicaSetUpdated")},
		}
	}
	return map[string]any{
		"observedGeneration": leaf.GetGeneration(), "replicas": n, "updatedReplicas": n, "readyReplicas": n, "availableReplicas": n, "unavailableReplicas": nil,
		"conditions": []any{condition("Available", "True", "MinimumReplicasAvailable"), condition("Progressing", "True", "NewReplicaSetAvailable")},
	}
}

// until waits until the leaves of a root have the given parts, as east=5 west=5. Meanwhile it
// simulates the clusters.
func (s *site) until(root, parts string) {
	s.Helper()
	s.eventually(fmt.Sprintf("%s is divided as %s", root, parts), func(ctx context.Context) error {
		got, err := s.parts(ctx, root)
		if err == nil && got != parts {
			err = fmt.Errorf("it is divided as %q", got)
		}
		return err
	})
}

// parts returns the parts of the leaves of a root, as east=5 west=5. Deleted leaves are left out.
func (s *site) parts(ctx context.Context, root string) (string, error) {
	return s.leaves(ctx, root, func(leaf *unstructured.Unstructured) any {
		n, _, _ := unstructured.NestedInt64(leaf.Object, "spec", "replicas")
		return n
	})
}

// leaves returns the leaves of a root with one value of each. Deleted leaves are left out.
func (s *site) leaves(ctx context.Context, root string, of func(*unstructured.Unstructured) any) (string, error) {
	leaves, err := s.objects.Resource(s.resource).Namespace(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: workloadv1alpha1.OwnedByLabel + "=" + root})
	if err != nil {
		return "", err
	}
	var parts []string
	for i := range leaves.Items {
		if leaf := &leaves.Items[i]; leaf.GetDeletionTimestamp() == nil {
			parts = append(parts, fmt.Sprintf("%s=%v", strings.TrimPrefix(leaf.GetLabels()[workloadv1alpha1.ClusterLabel], s.namespace+"-"), of(leaf)))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " "), nil
}

// eventually waits for a condition. Meanwhile it simulates the clusters.
func (s *site) eventually(what string, check func(ctx context.Context) error) {
	s.Helper()
	poll.Until(s.T, timeout, what, func(ctx context.Context) error {
		if err := s.runLeaves(ctx); err != nil {
			return err
		}
		return check(ctx)
	})
}

// reports waits until the status of a root has the given numbers and its generation is observed.
func (s *site) reports(root string, want map[string]int64) {
	s.Helper()
	s.eventually(root+" reports what its parts add up to", func(ctx context.Context) error {
		object, err := s.objects.Resource(s.resource).Namespace(s.namespace).Get(ctx, root, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _, _ := unstructured.NestedMap(object.Object, "status")
		for name, n := range want {
			if got, _ := status[name].(int64); got != n {
				return fmt.Errorf("%s is %d, want %d: %v", name, got, n, status)
			}
		}
		if seen, _ := status["observedGeneration"].(int64); seen != object.GetGeneration() {
			return fmt.Errorf("generation %d is observed of %d: %v", seen, object.GetGeneration(), status)
		}
		return nil
	})
}

func object(resource schema.GroupVersionResource, kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion(resource.GroupVersion().String())
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// says waits until a root has a condition with a status and a reason.
func (s *site) says(root, kind, status, reason string) {
	s.Helper()
	s.eventually(fmt.Sprintf("%s says %s=%s, %s", root, kind, status, reason), func(ctx context.Context) error {
		object, err := s.objects.Resource(s.resource).Namespace(s.namespace).Get(ctx, root, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		for _, entry := range conditions {
			c, _ := entry.(map[string]any)
			if c["type"] == kind && c["status"] == status && c["reason"] == reason {
				return nil
			}
		}
		return fmt.Errorf("it says %v", conditions)
	})
}

// change merges a patch into a root or a leaf.
func (s *site) change(name string, patch map[string]any) {
	s.Helper()
	s.merge(s.resource, s.namespace, name, patch)
}

// hint sets annotations of a root. nil removes one.
func (s *site) hint(root string, annotations map[string]any) {
	s.Helper()
	s.change(root, map[string]any{"metadata": map[string]any{"annotations": annotations}})
}

// image changes the spec of a root.
func (s *site) image(root, version string) {
	s.Helper()
	s.change(root, map[string]any{"spec": map[string]any{"template": template(root, version)}})
}

// images waits until the leaves have the given images, as east=web:v1 west=web:v2.
func (s *site) images(root, want string) {
	s.Helper()
	s.eventually(fmt.Sprintf("%s has the images %s", root, want), func(ctx context.Context) error {
		got, err := s.leaves(ctx, root, func(leaf *unstructured.Unstructured) any {
			containers, _, _ := unstructured.NestedSlice(leaf.Object, "spec", "template", "spec", "containers")
			return containers[0].(map[string]any)["image"]
		})
		if err == nil && got != want {
			err = fmt.Errorf("they have %q", got)
		}
		return err
	})
}

// reported waits until an event about a root exists.
func (s *site) reported(root, reason, message string) {
	s.Helper()
	s.eventually("an event has the reason "+reason, func(ctx context.Context) error {
		events, err := s.server.Client.CoreV1().Events(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			if e.InvolvedObject.Name == root && e.Reason == reason && strings.Contains(e.Message, message) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("there are %q", seen)
	})
}

// rests fails if an object of the root's family is written although nothing happens.
func (s *site) rests(root string) {
	s.Helper()
	versions := func() string {
		objects, err := s.objects.Resource(s.resource).Namespace(s.namespace).List(s.Context(), metav1.ListOptions{})
		if err != nil {
			s.Fatal(err)
		}
		var out []string
		for _, o := range objects.Items {
			out = append(out, o.GetName()+"@"+o.GetResourceVersion())
		}
		return strings.Join(out, " ")
	}
	last, same := versions(), 0
	poll.Until(s.T, timeout, "nothing of "+root+" is written any more", func(context.Context) error {
		// A pass after an event takes some milliseconds. Ten checks take a quarter of a second.
		if now := versions(); now != last {
			last, same = now, 0
		}
		if same++; same < 10 {
			return fmt.Errorf("the last versions are %s", last)
		}
		return nil
	})
}

// connect restarts the simulation of a cluster after cut.
func (s *site) connect(name string) {
	s.Helper()
	s.is(name, true)
	s.syncers[name] = dynamic.NewForConfigOrDie(kcptest.AsSyncer(s.T, s.server, s.cluster(name)))
}

func (s *site) unregister(name string) {
	s.Helper()
	if err := s.objects.Resource(clusters).Delete(s.Context(), s.cluster(name), metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
}

// remove deletes a root or a leaf.
func (s *site) remove(name string) {
	s.Helper()
	if err := s.objects.Resource(s.resource).Namespace(s.namespace).Delete(s.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
}

// sameLeaf compares the fields of a leaf that come from its root.
func sameLeaf(before, now *unstructured.Unstructured) error {
	labels := cmp.Diff(before.GetLabels(), now.GetLabels())
	owners := cmp.Diff(before.GetOwnerReferences(), now.GetOwnerReferences())
	spec := cmp.Diff(before.Object["spec"], now.Object["spec"])
	if team := now.GetAnnotations()["team"]; team != before.GetAnnotations()["team"] || labels+owners+spec != "" {
		return fmt.Errorf("team %q%s%s%s", team, labels, owners, spec)
	}
	return nil
}
