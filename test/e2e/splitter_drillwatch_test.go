package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// splitWatch watches all changes in the clusters directly at their API servers.
type splitWatch struct {
	d      *splitDrill
	cancel context.CancelFunc
	group  errgroup.Group

	mu sync.Mutex
	// ceilings are the limits of pods for each root.
	ceilings map[string]int64
	// near and far are the running pods, by root.
	near, far map[string]map[types.UID]bool
	// came is how often the Deployment of a leaf was created in its cluster.
	came map[types.UID]int
	// claims has every claim ever seen.
	claims map[types.UID]string
	// cut means that south was cut since the last rest. unready has the clusters that were not
	// ready.
	cut     bool
	unready map[string]bool

	problems []error
	pods     int
	// atCeiling counts how often the limit was reached. excused counts how often it was exceeded
	// while clusters were not ready.
	atCeiling, excused int
	below              map[string]string
}

func watchSplit(d *splitDrill) *splitWatch {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	w := &splitWatch{
		d: d, cancel: cancel, ceilings: map[string]int64{}, near: map[string]map[types.UID]bool{}, far: map[string]map[types.UID]bool{},
		came: map[types.UID]int{}, claims: map[types.UID]string{}, unready: map[string]bool{}, below: map[string]string{},
	}
	d.t.Cleanup(func() {
		cancel()
		_ = w.group.Wait() // its error is checked earlier, where it matters
	})
	for _, side := range []struct {
		config *rest.Config
		pods   map[string]map[types.UID]bool
	}{{d.near.Aside(), w.near}, {d.far.Aside(), w.far}} {
		core := schema.GroupVersion{Version: "v1"}
		w.follow(ctx, side.config, core.WithResource("pods"), splitRootLabel, func(e watch.EventType, o *unstructured.Unstructured) { w.pod(side.pods, e, o) })
		w.follow(ctx, side.config, core.WithResource("persistentvolumeclaims"), "", w.claim)
		w.follow(ctx, side.config, schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, workloadv1alpha1.ClusterLabel, w.deployment)
	}
	w.follow(ctx, d.upstream, workloadv1alpha1.SchemeGroupVersion.WithResource("clusters"), "", w.cluster)
	return w
}

// follow starts at the present objects, and restarts a watch that ends.
func (w *splitWatch) follow(ctx context.Context, config *rest.Config, resource schema.GroupVersionResource, selector string, note func(watch.EventType, *unstructured.Unstructured)) {
	w.d.t.Helper()
	client := dynamic.NewForConfigOrDie(config).Resource(resource)
	list, err := client.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		w.d.t.Fatal(err)
	}
	for i := range list.Items {
		note(watch.Added, &list.Items[i])
	}
	changes, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = selector
			return client.Watch(ctx, options)
		},
	})
	if err != nil {
		w.d.t.Fatal(err)
	}
	w.group.Go(func() error {
		defer changes.Stop()
		for change := range changes.ResultChan() {
			o, ok := change.Object.(*unstructured.Unstructured)
			if !ok {
				return fmt.Errorf("the watch of %s ended: %v", resource.Resource, change.Object)
			}
			note(change.Type, o)
		}
		if ctx.Err() == nil {
			return fmt.Errorf("the watch of %s ended", resource.Resource)
		}
		return nil
	})
}

func (w *splitWatch) problem(format string, args ...any) {
	w.problems = append(w.problems, fmt.Errorf(format, args...))
}

// isActive reports whether a pod counts. A pod that is being deleted does not.
func isActive(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

func (w *splitWatch) pod(side map[string]map[types.UID]bool, e watch.EventType, o *unstructured.Unstructured) {
	var p corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p); err != nil {
		p.Labels = o.GetLabels()
	}
	root := p.Labels[splitRootLabel]
	w.mu.Lock()
	defer w.mu.Unlock()
	if side[root] == nil {
		side[root] = map[types.UID]bool{}
	}
	before := len(side[root])
	if e == watch.Deleted || !isActive(&p) {
		delete(side[root], p.UID)
		return
	}
	side[root][p.UID] = true
	if len(side[root]) == before {
		return
	}
	w.pods++
	ceiling, known := w.ceilings[root]
	n := int64(len(w.near[root]))
	switch {
	case !known:
		w.problem("a pod of %s came (%s), which was deleted before the last rest", root, p.Name)
	case n == ceiling:
		w.atCeiling++
	case n > ceiling && (w.unready["east"] || w.unready["west"]):
		w.excused++
	case n > ceiling:
		w.problem("%d pods of %s run in east and west, and %d may", n, root, ceiling)
	}
}

func (w *splitWatch) claim(e watch.EventType, o *unstructured.Unstructured) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claims[o.GetUID()] = o.GetNamespace() + "/" + o.GetName()
	if e == watch.Deleted || o.GetDeletionTimestamp() != nil {
		w.problem("the claim %s/%s was deleted: %s", o.GetNamespace(), o.GetName(), e)
	}
}

func (w *splitWatch) deployment(e watch.EventType, o *unstructured.Unstructured) {
	if e != watch.Added {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	uid := types.UID(o.GetAnnotations()[workloadv1alpha1.UpstreamUIDAnnotation])
	if w.came[uid]++; w.came[uid] > 1 {
		w.problem("%s came to %s for the %d. time: it was brought back", o.GetName(), o.GetLabels()[workloadv1alpha1.ClusterLabel], w.came[uid])
	}
}

func (w *splitWatch) cluster(_ watch.EventType, o *unstructured.Unstructured) {
	var c workloadv1alpha1.Cluster
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &c); err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !meta.IsStatusConditionTrue(c.Status.Conditions, workloadv1alpha1.ConditionReady) {
		w.unready[c.Name] = true
	}
}

// allow sets the limit of pods of a root. It never lowers the limit.
func (w *splitWatch) allow(r *splitRoot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ceilings[r.id()] = max(w.ceilings[r.id()], r.ceiling())
}

// forgetCeilings sets the limits to the present wishes. It is called only at rest.
func (w *splitWatch) forgetCeilings(roots []*splitRoot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ceilings = map[string]int64{}
	for _, r := range roots {
		w.ceilings[r.id()] = r.ceiling()
	}
	w.unready, w.cut = map[string]bool{}, false
}

func (w *splitWatch) isCut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
}

// suspects returns the roots that seem to exceed their limit in all clusters together. The order
// of events from two watches is not defined, so this proves nothing yet.
func (w *splitWatch) suspects() map[string]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut || len(w.unready) > 0 {
		return nil
	}
	found := map[string]int64{}
	for root, ceiling := range w.ceilings {
		if int64(len(w.near[root])+len(w.far[root])) > ceiling {
			found[root] = ceiling
		}
	}
	return found
}

// confirm lists the pods of suspects at the API servers: pods that south had before and after
// the list of the other clusters also existed during it.
func (w *splitWatch) confirm() {
	for root, ceiling := range w.suspects() {
		var lists [3][]types.UID
		for i, client := range []kubernetes.Interface{w.d.farAside, w.d.nearAside, w.d.farAside} {
			pods, err := client.CoreV1().Pods("").List(w.d.t.Context(), metav1.ListOptions{LabelSelector: splitRootLabel + "=" + root})
			if err != nil {
				w.d.t.Fatal(err)
			}
			for i2 := range pods.Items {
				if isActive(&pods.Items[i2]) {
					lists[i] = append(lists[i], pods.Items[i2].UID)
				}
			}
		}
		stayed := slices.DeleteFunc(lists[0], func(uid types.UID) bool { return !slices.Contains(lists[2], uid) })
		w.mu.Lock()
		if n := int64(len(stayed) + len(lists[1])); n > ceiling && len(w.unready) == 0 {
			w.problem("%d pods of %s ran at once in the three clusters, and %d may", n, root, ceiling)
		}
		w.mu.Unlock()
	}
}

// namespaceOf returns the drill's namespace in a cluster.
func (w *splitWatch) namespaceOf(cluster string) string {
	if w.below[cluster] == "" {
		w.below[cluster] = w.d.in(w.d.t).awaitBelow(w.d.physical(cluster), cluster, splitNamespace)
	}
	return w.below[cluster]
}

// complain fails the test if a problem was recorded.
func (w *splitWatch) complain() {
	w.d.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range firstLines(w.problems, 10) {
		w.d.t.Error(p)
	}
	w.problems = nil
}

// conclude ends the watches, and logs what they have seen.
func (w *splitWatch) conclude() {
	t := w.d.t
	t.Helper()
	w.cancel()
	if err := w.group.Wait(); err != nil {
		t.Error(err)
	}
	w.complain()
	t.Logf("seen in the clusters: %d pods, of their roots %d times as many as may be; %d times more while a cluster was not ready; %d Deployments; %d claims",
		w.pods, w.atCeiling, w.excused, len(w.came), len(w.claims))
	if w.pods == 0 || w.atCeiling == 0 || len(w.came) == 0 || len(w.claims) == 0 {
		t.Error("the drill shows nothing")
	}
	found := map[types.UID]bool{}
	var errs []error
	for _, client := range []kubernetes.Interface{w.d.nearAside, w.d.farAside} {
		list, err := client.CoreV1().PersistentVolumeClaims("").List(t.Context(), metav1.ListOptions{})
		errs = append(errs, err)
		if err == nil {
			for _, claim := range list.Items {
				found[claim.UID] = true
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for uid, name := range w.claims {
		if !found[uid] {
			t.Errorf("the claim %s (%s) is no more", name, uid)
		}
	}
}
