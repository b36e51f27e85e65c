package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

const (
	// splitRoots is the number of names of roots. Every fourth has a claim, and every second a
	// ConfigMap and a Secret.
	splitRoots = 12
	// splitMost is the maximum number of replicas of a root.
	splitMost = 7
	// splitRootLabel is a label of pods with the root, and which one of those with its name.
	splitRootLabel = "drill.rik.dev/root"
	// splitVersion is an annotation of the template that changes.
	splitVersion = "drill.rik.dev/version"
)

// splitSettings is what a root's annotations ask for.
type splitSettings struct {
	hints map[string]string
	// surge returns how many replicas above the total may run.
	surge func(whole int32) int64
	// undivided roots are not split by replicas, so their parts are counted differently.
	undivided bool
}

func quarter(whole int32) int64 { return (int64(whole) + 3) / 4 }

func number(n int64) func(int32) int64 { return func(int32) int64 { return n } }

const hint = workloadv1alpha1.HintPrefix

// allSplitSettings are first those for roots that are split by replicas, and then those for other
// roots.
var allSplitSettings = []splitSettings{
	{surge: quarter},
	{hints: map[string]string{hint + "grace-period": "3s"}, surge: quarter},
	{hints: map[string]string{hint + "strategy": "weighted", hint + "weights": "east=3,west=1", hint + "grace-period": "3s"}, surge: quarter},
	{hints: map[string]string{hint + "clusters": workloadv1alpha1.ClusterLabel + " in (east,west)", hint + "max-surge": "0"}, surge: number(0)},
	{hints: map[string]string{hint + "max-surge": "2", hint + "max-moves": "1/1s", hint + "grace-period": "3s"}, surge: number(2)},
	{hints: map[string]string{hint + "strategy": "spread", hint + "topology-key": "side"}, surge: quarter},
	{hints: map[string]string{hint + "divide": "whole", hint + "grace-period": "3s"}, surge: number(0), undivided: true},
}

// splitRoot is a root as its owner wants it.
type splitRoot struct {
	name    string
	uid     types.UID
	born    int // which one of this name
	whole   int32
	version int
	wish    int
	// steady roots are never changed.
	steady bool
}

func (r *splitRoot) id() string { return fmt.Sprintf("%s.%d", r.name, r.born) }

func (r *splitRoot) number() int {
	var n int
	if _, err := fmt.Sscanf(r.name, "r%d", &n); err != nil {
		return 1 // of the steady ones: it needs nothing
	}
	return n
}

func (r *splitRoot) hasClaim() bool { return r.number()%4 == 0 }
func (r *splitRoot) hasNeeds() bool { return r.number()%2 == 0 }

func (r *splitRoot) ceiling() int64 { return int64(r.whole) + allSplitSettings[r.wish].surge(r.whole) }

// leaving is the steady root whose parts must leave south in every cut.
var leaving = splitRoot{name: "steady-1", whole: 6, wish: 1, steady: true}

// splitChurn changes roots, leaves and clusters. Its choices depend only on the seed.
type splitChurn struct {
	d     *splitDrill
	roots map[string]*splitRoot
	born  map[string]int
	// gone are the deleted roots.
	gone   map[types.UID]bool
	steps  int
	counts map[string]int
}

func newSplitChurn(d *splitDrill) *splitChurn {
	c := &splitChurn{
		d: d, roots: map[string]*splitRoot{}, born: map[string]int{}, gone: map[types.UID]bool{}, counts: map[string]int{},
	}
	d.t.Helper()
	for i := range splitRoots {
		r := &splitRoot{name: fmt.Sprintf("r%d", i)}
		c.makeNeeds(r)
	}
	steady := leaving
	for _, r := range []*splitRoot{{name: "steady-0", whole: 6}, &steady, {name: "steady-2", whole: 5, wish: 3}, {name: "steady-3", whole: 4, wish: 4}} {
		r.steady = true
		c.create(r)
	}
	return c
}

// makeNeeds creates the objects that the roots of a name need. They exist all the time, and
// follow the root.
func (c *splitChurn) makeNeeds(r *splitRoot) {
	core := c.d.up.CoreV1()
	ctx, meta := c.d.t.Context(), metav1.ObjectMeta{Name: r.name}
	if r.hasNeeds() {
		c.insist("making what "+r.name+" needs", func() error {
			_, err := core.ConfigMaps(splitNamespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"a": "1"}}, metav1.CreateOptions{})
			return ignoring(err, apierrors.IsAlreadyExists)
		})
		c.insist("making what "+r.name+" needs", func() error {
			_, err := core.Secrets(splitNamespace).Create(ctx, &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"a": "1"}}, metav1.CreateOptions{})
			return ignoring(err, apierrors.IsAlreadyExists)
		})
	}
	if r.hasClaim() {
		class := ""
		c.insist("making the claim of "+r.name, func() error {
			_, err := core.PersistentVolumeClaims(splitNamespace).Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			}}, metav1.CreateOptions{})
			return ignoring(err, apierrors.IsAlreadyExists)
		})
	}
}

func ignoring(err error, is func(error) bool) error {
	if is(err) {
		return nil
	}
	return err
}

func (c *splitChurn) insist(what string, request func() error) {
	c.d.t.Helper()
	insist(c.d.t, what, request)
}

// step makes one change. It draws all random numbers in the same order, whatever the state is.
func (c *splitChurn) step() {
	c.d.t.Helper()
	c.steps++
	name := fmt.Sprintf("r%d", c.d.rand.IntN(splitRoots))
	choice, whole := c.d.rand.IntN(20), int32(c.d.rand.IntN(splitMost+1))
	wish, cluster := c.d.rand.IntN(len(allSplitSettings)), c.d.clusters()[c.d.rand.IntN(3)]
	r := c.roots[name]
	switch {
	case choice >= 18:
		c.turn([]string{"east", "west"}[wish%2])
	case r == nil:
		c.create(&splitRoot{name: name, whole: whole, wish: wish})
	case choice < 2:
		c.delete(r)
	case choice < 4:
		c.delete(r)
		c.create(&splitRoot{name: name, whole: whole, wish: wish})
	case choice < 7:
		c.deleteLeaf(r, cluster)
	case choice < 8:
		c.touchLeaf(r, cluster)
	case choice < 11:
		r.version++
		c.change(r, "template changed")
	case choice < 13:
		if allSplitSettings[r.wish].undivided == allSplitSettings[wish].undivided {
			r.wish = wish
		}
		c.change(r, "hints changed")
	default:
		r.whole = whole
		c.change(r, "rescaled")
	}
	c.d.below.confirm()
}

func (c *splitChurn) create(r *splitRoot) {
	c.d.t.Helper()
	c.born[r.name]++
	r.born = c.born[r.name]
	c.roots[r.name] = r
	c.d.below.allow(r)
	c.insist("making the root "+r.name, func() error {
		made, err := c.d.up.AppsV1().Deployments(splitNamespace).Create(c.d.t.Context(), r.object(), metav1.CreateOptions{})
		// An earlier attempt made it in spite of an error, or it is a root that is being deleted.
		if apierrors.IsAlreadyExists(err) {
			if made, err = c.d.up.AppsV1().Deployments(splitNamespace).Get(c.d.t.Context(), r.name, metav1.GetOptions{}); err != nil {
				return err
			}
			if c.gone[made.UID] {
				return fmt.Errorf("the one before is still there: %v", made.Finalizers)
			}
		}
		if err == nil {
			r.uid = made.UID
		}
		return err
	})
	c.counts["made"]++
}

// object returns the root. Its pods are replaced one ReplicaSet after the other (Recreate), so
// that a leaf never runs more than its spec has.
func (r *splitRoot) object() *appsv1.Deployment {
	set := map[string]string{splitRootLabel: r.id()}
	pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "drill:1"}}}
	if r.hasNeeds() {
		ref := corev1.LocalObjectReference{Name: r.name}
		pod.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref}}, {SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref}}}
	}
	if r.hasClaim() {
		pod.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: r.name}}}}
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: r.name, Annotations: maps.Clone(allSplitSettings[r.wish].hints)},
		Spec: appsv1.DeploymentSpec{
			Replicas: &r.whole, Selector: &metav1.LabelSelector{MatchLabels: set},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: set, Annotations: map[string]string{splitVersion: fmt.Sprint(r.version)}}, Spec: pod},
		},
	}
}

// change writes all fields of a root that may have changed.
func (c *splitChurn) change(r *splitRoot, what string) {
	c.d.t.Helper()
	c.d.below.allow(r)
	hints := map[string]any{}
	for _, w := range allSplitSettings {
		for name := range w.hints {
			hints[name] = nil
		}
	}
	for name, value := range allSplitSettings[r.wish].hints {
		hints[name] = value
	}
	c.patch(r.name, map[string]any{
		"metadata": map[string]any{"uid": r.uid, "annotations": hints},
		"spec": map[string]any{"replicas": r.whole, "template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{splitVersion: fmt.Sprint(r.version)}}}},
	}, false)
	c.counts[what]++
}

func (c *splitChurn) patch(name string, patch map[string]any, mayBeMissing bool) {
	c.d.t.Helper()
	raw, err := json.Marshal(patch)
	if err != nil {
		c.d.t.Fatal(err)
	}
	c.insist("changing "+name, func() error {
		_, err := c.d.up.AppsV1().Deployments(splitNamespace).Patch(c.d.t.Context(), name, types.MergePatchType, raw, metav1.PatchOptions{})
		if mayBeMissing {
			err = ignoring(err, apierrors.IsNotFound)
		}
		return err
	})
}

func (c *splitChurn) delete(r *splitRoot) {
	c.d.t.Helper()
	delete(c.roots, r.name)
	c.gone[r.uid] = true
	c.remove(r.name, &metav1.Preconditions{UID: &r.uid})
	c.counts["deleted"]++
}

func (c *splitChurn) remove(name string, only *metav1.Preconditions) {
	c.d.t.Helper()
	c.insist("deleting "+name, func() error {
		policy := metav1.DeletePropagationBackground
		err := c.d.up.AppsV1().Deployments(splitNamespace).Delete(c.d.t.Context(), name, metav1.DeleteOptions{Preconditions: only, PropagationPolicy: &policy})
		return ignoring(err, apierrors.IsNotFound)
	})
}

// deleteLeaf deletes a leaf by hand, which users should not do.
func (c *splitChurn) deleteLeaf(r *splitRoot, cluster string) {
	c.d.t.Helper()
	c.remove(r.name+"--"+cluster, nil)
	c.counts["leaf deleted"]++
}

// touchLeaf changes a leaf by hand: fewer replicas, and another template.
func (c *splitChurn) touchLeaf(r *splitRoot, cluster string) {
	c.d.t.Helper()
	c.patch(r.name+"--"+cluster, map[string]any{"spec": map[string]any{"replicas": 0, "template": map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{splitVersion: "by hand"}}}}}, true)
	c.counts["leaf changed"]++
}

// turn sets a cluster to one of these states: normal, unschedulable, tainted, evicted.
func (c *splitChurn) turn(cluster string) {
	c.d.t.Helper()
	states := []string{"", "unschedulable", "tainted", "evicted"}
	c.set(cluster, states[c.d.rand.IntN(len(states))])
	c.counts["cluster turned"]++
}

func (c *splitChurn) set(cluster, state string) {
	c.d.t.Helper()
	spec := map[string]any{"unschedulable": nil, "taints": nil, "evictAfter": nil}
	switch state {
	case "unschedulable":
		spec["unschedulable"] = true
	case "tainted":
		spec["taints"] = []any{map[string]any{"key": "drill", "effect": "NoExecute"}}
	case "evicted":
		spec["evictAfter"] = time.Now().UTC().Format(time.RFC3339)
	}
	raw, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		c.d.t.Fatal(err)
	}
	c.insist("changing the cluster "+cluster, func() error {
		_, err := c.d.objects.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")).Patch(c.d.t.Context(), cluster, types.MergePatchType, raw, metav1.PatchOptions{})
		return err
	})
}

// lowerCeilings sets the limits for the state at rest: no more may run than is wanted now.
func (c *splitChurn) lowerCeilings() {
	c.d.below.forgetCeilings(slices.Collect(maps.Values(c.roots)))
}
