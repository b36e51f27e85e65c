package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// splitCase is a case of a test, with its own namespace.
type splitCase struct {
	*fleet
	namespace string
	below     map[string]string // its namespace in each cluster
}

// newCase creates a namespace. A case removes what it created. After a failure, the deletion of
// the namespace removes the rest, so that the next case starts with empty clusters.
func (f *fleet) newCase(t *testing.T, namespace string) *splitCase {
	t.Helper()
	c := &splitCase{fleet: f.in(t), namespace: namespace, below: map[string]string{}}
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}}
	if _, err := f.up.Resource(namespaces).Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.site["west"].Plug()
			_ = c.try("kubectl", "delete", "namespace", namespace, "--timeout=60s")
		}
	})
	return c
}

// do runs a program in the namespace.
func (c *splitCase) do(program string, args ...string) string {
	c.tb.Helper()
	return c.fleet.do(program, append([]string{"-n", c.namespace}, args...)...)
}

func (c *splitCase) kubectl(args ...string) string { c.tb.Helper(); return c.do("kubectl", args...) }

// create creates an object from a manifest.
func (c *splitCase) create(resource schema.GroupVersionResource, manifest string) *unstructured.Unstructured {
	c.tb.Helper()
	made, err := c.up.Resource(resource).Namespace(c.namespace).Create(c.tb.Context(), decode(c.tb, manifest), metav1.CreateOptions{})
	if err != nil {
		c.tb.Fatal(err)
	}
	return made
}

// patch changes an object of the namespace.
func (c *splitCase) patch(resource schema.GroupVersionResource, name, patch string) {
	c.tb.Helper()
	mergePatch(c.tb, c.up.Resource(resource).Namespace(c.namespace), name, patch)
}

// hints sets annotations on a Deployment. An empty value removes the annotation.
func (c *splitCase) hints(name string, hints map[string]string) {
	c.tb.Helper()
	notes := map[string]any{}
	for hint, value := range hints {
		notes[hintName(hint)] = value
		if value == "" {
			notes[hintName(hint)] = nil
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": notes}})
	if err != nil {
		c.tb.Fatal(err)
	}
	c.patch(deployments, name, string(patch))
}

func hintName(hint string) string {
	if strings.Contains(hint, "/") {
		return hint
	}
	return workloadv1alpha1.HintPrefix + hint
}

// root returns a Deployment of rik's hello. The Kubernetes clusters only report that they run
// it.
func (c *splitCase) root(name string, replicas int, hints map[string]string) string {
	notes := map[string]string{}
	for hint, value := range hints {
		notes[hintName(hint)] = value
	}
	raw, err := json.Marshal(notes)
	if err != nil {
		c.tb.Fatal(err)
	}
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata:
  name: %[1]s
  labels: {app: %[1]s}
  annotations: %[3]s
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: hello
          image: %[4]q
          args: ["-listen", ":8080"]
`, name, replicas, raw, c.image)
}

// deploy creates such a Deployment.
func (c *splitCase) deploy(name string, replicas int, hints map[string]string) {
	c.tb.Helper()
	c.create(deployments, c.root(name, replicas, hints))
}

func (c *splitCase) scale(name string, replicas int) {
	c.tb.Helper()
	c.patch(deployments, name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

// parts are the replicas of a root's leaves by cluster, without leaves with 0.
type parts map[string]int

// leaves returns the leaves of a root, by cluster.
func (c *splitCase) leaves(resource schema.GroupVersionResource, root string) (map[string]*unstructured.Unstructured, error) {
	list, err := c.up.Resource(resource).Namespace(c.namespace).List(c.tb.Context(), metav1.ListOptions{LabelSelector: workloadv1alpha1.OwnedByLabel + "=" + root})
	if err != nil {
		return nil, err
	}
	found := map[string]*unstructured.Unstructured{}
	for i := range list.Items {
		found[list.Items[i].GetLabels()[workloadv1alpha1.ClusterLabel]] = &list.Items[i]
	}
	return found, nil
}

func (c *splitCase) parts(resource schema.GroupVersionResource, root string, path ...string) (parts, error) {
	leaves, err := c.leaves(resource, root)
	if err != nil {
		return nil, err
	}
	got := parts{}
	for cluster, leaf := range leaves {
		n := int64(1)
		if len(path) > 0 {
			n, _, _ = unstructured.NestedInt64(leaf.Object, path...)
		}
		if n > 0 {
			got[cluster] = int(n)
		}
	}
	return got, nil
}

// rests waits until a Deployment is split as wanted, each cluster really runs its part, and the
// root's status is the sum.
func (c *splitCase) rests(name string, want parts) {
	c.tb.Helper()
	c.divided(name, want)
	c.eventually(func() error {
		for cluster := range c.down {
			n, err := c.running(cluster, name)
			if err != nil {
				return err
			}
			if n != want[cluster] {
				return fmt.Errorf("%d of %s run in %s, want %v", n, name, cluster, want)
			}
		}
		return c.summed(name, want)
	})
}

// divided waits until the leaves of a Deployment have the wanted replicas.
func (c *splitCase) divided(name string, want parts) {
	c.tb.Helper()
	c.eventually(func() error { return c.isDivided(name, want) })
}

func (c *splitCase) isDivided(name string, want parts) error {
	got, err := c.parts(deployments, name, "spec", "replicas")
	if err == nil && !maps.Equal(got, want) {
		err = fmt.Errorf("%s is divided %v, want %v", name, got, want)
	}
	return err
}

// summed returns an error unless the root's status is the sum of parts that are all ready.
func (c *splitCase) summed(name string, want parts) error {
	root, err := c.up.Resource(deployments).Namespace(c.namespace).Get(c.tb.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	sum := int64(0)
	for _, n := range want {
		sum += int64(n)
	}
	numbers := map[string]int64{"observedGeneration": root.GetGeneration()}
	got := map[string]int64{}
	for _, field := range []string{"observedGeneration", "replicas", "readyReplicas", "updatedReplicas", "availableReplicas", "unavailableReplicas"} {
		if n, found, _ := unstructured.NestedInt64(root.Object, "status", field); found && n != 0 {
			got[field] = n
		}
		if sum > 0 && field != "unavailableReplicas" && field != "observedGeneration" {
			numbers[field] = sum
		}
	}
	if diff := cmp.Diff(numbers, got); diff != "" {
		return fmt.Errorf("the status of %s (-want +got):\n%s", name, diff)
	}
	return nil
}

// running returns what runs in a cluster: in a rik cluster the number of processes, of any root,
// and in Kubernetes the number of the Deployment's pods.
func (c *splitCase) running(cluster, name string) (int, error) {
	if rik := c.rik[cluster]; rik != nil {
		n := 0
		for _, processes := range rik.InstanceProcesses("hello") {
			n += len(processes)
		}
		return n, nil
	}
	namespace, err := c.namespaceIn(cluster)
	if namespace == "" || err != nil {
		return 0, err
	}
	list, err := c.down[cluster].Resource(pods).Namespace(namespace).List(c.tb.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return 0, err
	}
	n := 0
	for i := range list.Items {
		if phase, _, _ := unstructured.NestedString(list.Items[i].Object, "status", "phase"); phase == "Running" {
			n++
		}
	}
	return n, nil
}

// namespaceIn returns the namespace in a cluster that belongs to that of the case, or "" while
// it does not exist.
func (c *splitCase) namespaceIn(cluster string) (string, error) {
	if found := c.below[cluster]; found != "" {
		return found, nil
	}
	list, err := c.down[cluster].Resource(namespaces).List(c.tb.Context(), metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	registered, err := c.cluster(cluster)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for i := range list.Items {
		var at workloadv1alpha1.Locator
		raw := list.Items[i].GetAnnotations()[workloadv1alpha1.LocatorAnnotation]
		if raw != "" && json.Unmarshal([]byte(raw), &at) == nil && at.ClusterUID == string(registered.UID) && at.Namespace == c.namespace {
			c.below[cluster] = list.Items[i].GetName()
		}
	}
	return c.below[cluster], nil
}

// has returns the object in a cluster that belongs to one of the case, or nil.
func (c *splitCase) has(cluster string, resource schema.GroupVersionResource, name string) (*unstructured.Unstructured, error) {
	namespace, err := c.namespaceIn(cluster)
	if namespace == "" || err != nil {
		return nil, err
	}
	found, err := c.down[cluster].Resource(resource).Namespace(namespace).Get(c.tb.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return found, err
}

// awaitHas waits until exactly these clusters have an object.
func (c *splitCase) awaitHas(resource schema.GroupVersionResource, name string, where ...string) {
	c.tb.Helper()
	c.eventually(func() error {
		for _, cluster := range []string{"north", "south", "east", "west"} {
			want := slices.Contains(where, cluster)
			found, err := c.has(cluster, resource, name)
			if err != nil && (want || c.rik[cluster] == nil) {
				return err // a rik cluster does not serve every type
			}
			if (found != nil) != want {
				return fmt.Errorf("%s has %s %s: %v, want it in %v", cluster, resource.Resource, name, found != nil, where)
			}
		}
		return nil
	})
}

// remove deletes roots and waits until nothing of them is left.
func (c *splitCase) remove(names ...string) {
	c.tb.Helper()
	c.kubectl(append([]string{"delete", "deployment", "--timeout=120s"}, names...)...)
	c.eventually(func() error {
		for _, name := range names {
			if err := c.gone(name); err != nil {
				return err
			}
		}
		return nil
	})
}

// gone returns an error unless nothing of a root is left.
func (c *splitCase) gone(name string) error {
	leaves, err := c.leaves(deployments, name)
	if err != nil || len(leaves) > 0 {
		return fmt.Errorf("%d leaves of %s are left (%w)", len(leaves), name, err)
	}
	for cluster := range c.down {
		if n, err := c.running(cluster, name); err != nil || n > 0 {
			return fmt.Errorf("%d of %s run in %s after it was deleted (%w)", n, name, cluster, err)
		}
		if left, err := c.has(cluster, deployments, name+"--"+cluster); err != nil || left != nil {
			return fmt.Errorf("%s has %s--%s still (%w)", cluster, name, cluster, err)
		}
	}
	return nil
}

// condition returns a condition of a root, as STATUS REASON.
func (c *splitCase) condition(name, which string) string {
	root, err := c.up.Resource(deployments).Namespace(c.namespace).Get(c.tb.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	conditions, _, _ := unstructured.NestedSlice(root.Object, "status", "conditions")
	for _, entry := range conditions {
		if condition, ok := entry.(map[string]any); ok && condition["type"] == which {
			return fmt.Sprintf("%v %v", condition["status"], condition["reason"])
		}
	}
	return ""
}

func (c *splitCase) awaitCondition(name, which, want string) {
	c.tb.Helper()
	c.eventually(func() error {
		if got := c.condition(name, which); got != want {
			return fmt.Errorf("%s of %s is %q, want %q", which, name, got, want)
		}
		return nil
	})
}

// why logs the output of rikctl why for a root, if the test fails.
func (c *splitCase) why(root string) {
	c.tb.Helper()
	c.tb.Cleanup(func() {
		if c.tb.Failed() {
			c.tb.Logf("why:\n%s", c.try("rikctl", "-n", c.namespace, "why", root).Stdout)
		}
	})
}
