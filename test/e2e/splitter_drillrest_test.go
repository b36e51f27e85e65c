package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// splitState is the state at one time, of the kcp and of the clusters.
type splitState struct {
	upstream *appsv1.DeploymentList
	below    map[string]*clusterState
}

// clusterState is the state of the drill's objects in one cluster.
type clusterState struct {
	deployments []appsv1.Deployment
	pods        []corev1.Pod
	needs       []string // of ConfigMaps and Secrets
}

func (b *clusterState) read(ctx context.Context, client kubernetes.Interface, namespace string) error {
	deployments, err := client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	maps, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{LabelSelector: workloadv1alpha1.ClusterLabel})
	if err != nil {
		return err
	}
	secrets, err := client.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{LabelSelector: workloadv1alpha1.ClusterLabel})
	if err != nil {
		return err
	}
	b.deployments, b.pods = deployments.Items, pods.Items
	for _, m := range maps.Items {
		b.needs = append(b.needs, "ConfigMap "+m.Name)
	}
	for _, s := range secrets.Items {
		b.needs = append(b.needs, "Secret "+s.Name)
	}
	return nil
}

func (s splitState) String() string {
	pods := 0
	for _, b := range s.below {
		pods += len(b.pods)
	}
	leaves := 0
	for i := range s.upstream.Items {
		if s.upstream.Items[i].Labels[workloadv1alpha1.OwnedByLabel] != "" {
			leaves++
		}
	}
	return fmt.Sprintf("%d roots, %d leaves, %d pods", len(s.upstream.Items)-leaves, leaves, pods)
}

// counts are the numbers of a status that are summed.
type counts struct{ Replicas, Updated, Ready, Available int32 }

func countsOf(s appsv1.DeploymentStatus) counts {
	return counts{s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas}
}

func (c counts) plus(d counts) counts {
	return counts{c.Replicas + d.Replicas, c.Updated + d.Updated, c.Ready + d.Ready, c.Available + d.Available}
}

// splitFamilies has the roots with their leaves, and the leaves of each cluster by name.
type splitFamilies struct {
	roots  map[types.UID]*appsv1.Deployment
	leaves map[types.UID][]*appsv1.Deployment
	wanted map[string]map[string]*appsv1.Deployment
}

// families sorts the kcp's objects, and reports leaves that are being deleted or have no root.
func (s splitState) families() (splitFamilies, []error) {
	f := splitFamilies{map[types.UID]*appsv1.Deployment{}, map[types.UID][]*appsv1.Deployment{}, map[string]map[string]*appsv1.Deployment{}}
	var problems []error
	for i := range s.upstream.Items {
		o := &s.upstream.Items[i]
		if o.Labels[workloadv1alpha1.OwnedByLabel] == "" {
			f.roots[o.UID] = o
			continue
		}
		cluster := o.Labels[workloadv1alpha1.ClusterLabel]
		if owner := metav1.GetControllerOf(o); owner != nil {
			f.leaves[owner.UID] = append(f.leaves[owner.UID], o)
		} else {
			problems = append(problems, fmt.Errorf("the leaf %s has no root", o.Name))
		}
		if f.wanted[cluster] == nil {
			f.wanted[cluster] = map[string]*appsv1.Deployment{}
		}
		f.wanted[cluster][workloadv1alpha1.NameInCluster(o)] = o
		if got, want := o.Finalizers, []string{workloadv1alpha1.FinalizerPrefix + cluster}; !slices.Equal(got, want) || o.DeletionTimestamp != nil {
			problems = append(problems, fmt.Errorf("the leaf %s has the finalizers %v, want %v, and was deleted at %v", o.Name, got, want, o.DeletionTimestamp))
		}
	}
	for uid, orphans := range f.leaves {
		if f.roots[uid] == nil {
			problems = append(problems, fmt.Errorf("%d leaves of the root %s, which is no more: %s", len(orphans), uid, orphans[0].Name))
		}
	}
	return f, problems
}

// check returns everything that is not correct at rest.
func (s splitState) check(c *splitChurn) []error {
	f, problems := s.families()
	if len(f.roots) != len(c.roots) {
		problems = append(problems, fmt.Errorf("there are %d roots, want %d", len(f.roots), len(c.roots)))
	}
	needs := map[string][]string{}
	for _, r := range c.roots {
		root := f.roots[r.uid]
		if root == nil {
			problems = append(problems, fmt.Errorf("the root %s (%s) is missing", r.name, r.uid))
			continue
		}
		problems = append(problems, r.divided(root, f.leaves[r.uid])...)
		problems = append(problems, s.summed(r, root, f.leaves[r.uid])...)
		for _, leaf := range f.leaves[r.uid] {
			if cluster := leaf.Labels[workloadv1alpha1.ClusterLabel]; r.hasNeeds() {
				needs[cluster] = append(needs[cluster], "ConfigMap "+r.name, "Secret "+r.name)
			}
		}
	}
	for cluster, b := range s.below {
		problems = append(problems, b.nothingElse(cluster, f.wanted[cluster], needs[cluster])...)
	}
	return firstLines(problems, 8)
}

// summed checks that each leaf is the same in its cluster and upstream, and that the root's
// status is the sum of the clusters' statuses.
func (s splitState) summed(r *splitRoot, root *appsv1.Deployment, leaves []*appsv1.Deployment) []error {
	var problems []error
	var sum counts
	for _, leaf := range leaves {
		cluster := leaf.Labels[workloadv1alpha1.ClusterLabel]
		below, found := s.below[cluster].deployment(leaf)
		if !found {
			problems = append(problems, fmt.Errorf("%s has nothing for the leaf %s", cluster, leaf.Name))
			continue
		}
		sum = sum.plus(countsOf(below.Status))
		problems = append(problems, r.carried(leaf, below, s.below[cluster].pods)...)
	}
	if got := countsOf(root.Status); got != sum || root.Status.ObservedGeneration != root.Generation {
		problems = append(problems, fmt.Errorf("the status of %s is %+v of generation %d, want %+v of %d", r.name, got, root.Status.ObservedGeneration, sum, root.Generation))
	}
	return problems
}

// divided checks that the parts and the unplaced replicas add up to the total.
func (r *splitRoot) divided(root *appsv1.Deployment, leaves []*appsv1.Deployment) []error {
	var sum int32
	var parts []string
	for _, leaf := range leaves {
		sum += *leaf.Spec.Replicas
		parts = append(parts, fmt.Sprintf("%s %d", leaf.Labels[workloadv1alpha1.ClusterLabel], *leaf.Spec.Replicas))
	}
	unplaced := unplacedOf(root)
	if allSplitSettings[r.wish].undivided {
		// For such a root, 1 or 0 is unplaced.
		unplaced *= r.whole
	}
	if *root.Spec.Replicas != r.whole || sum+unplaced != r.whole {
		return []error{fmt.Errorf("%s with %d replicas, want %d, has the parts [%s] and %d unplaced", r.name, *root.Spec.Replicas, r.whole, strings.Join(parts, ", "), unplaced)}
	}
	return nil
}

// unplacedOf returns the unplaced number in a root's status.
func unplacedOf(root *appsv1.Deployment) int32 {
	for _, c := range root.Status.Conditions {
		var n int32
		if c.Type == appsv1.DeploymentProgressing && c.Reason == "NoOpenCluster" {
			if _, err := fmt.Sscanf(c.Message, "no cluster takes %d of the whole", &n); err == nil {
				return n
			}
		}
	}
	return 0
}

func (b *clusterState) deployment(leaf *appsv1.Deployment) (*appsv1.Deployment, bool) {
	i := slices.IndexFunc(b.deployments, func(d appsv1.Deployment) bool {
		return d.Name == workloadv1alpha1.NameInCluster(leaf) && d.Annotations[workloadv1alpha1.UpstreamUIDAnnotation] == string(leaf.UID)
	})
	if i < 0 {
		return nil, false
	}
	return &b.deployments[i], true
}

// carried checks that a cluster has the leaf as it is upstream, and runs it.
func (r *splitRoot) carried(leaf, below *appsv1.Deployment, pods []corev1.Pod) []error {
	n := *leaf.Spec.Replicas
	version := fmt.Sprint(r.version)
	ran := int32(0)
	for i := range pods {
		if pods[i].Labels[splitRootLabel] == r.id() && isActive(&pods[i]) && pods[i].Annotations[splitVersion] == version {
			ran++
		}
	}
	type state struct {
		Replicas, Pods  int32
		Version         string
		Reported, Below counts
		Observed        bool
	}
	got := state{*below.Spec.Replicas, ran, below.Spec.Template.Annotations[splitVersion], countsOf(leaf.Status), countsOf(below.Status), below.Status.ObservedGeneration == below.Generation}
	all := counts{n, n, n, n}
	if diff := cmp.Diff(state{n, n, version, all, all, true}, got); diff != "" {
		return []error{fmt.Errorf("%s (-want +got):\n%s", leaf.Name, diff)}
	}
	return nil
}

// nothingElse checks that a cluster has nothing that upstream does not want there.
func (b *clusterState) nothingElse(cluster string, wanted map[string]*appsv1.Deployment, needs []string) []error {
	var problems []error
	var want int32
	for _, leaf := range wanted {
		want += *leaf.Spec.Replicas
	}
	for i := range b.deployments {
		if wanted[b.deployments[i].Name] == nil {
			problems = append(problems, fmt.Errorf("%s has %s, which should not be there", cluster, b.deployments[i].Name))
		}
	}
	if len(b.pods) != int(want) {
		problems = append(problems, fmt.Errorf("%s has %d pods, want %d", cluster, len(b.pods), want))
	}
	slices.Sort(needs)
	got := slices.Sorted(slices.Values(b.needs))
	if diff := cmp.Diff(needs, got); diff != "" {
		problems = append(problems, fmt.Errorf("%s has of ConfigMaps and Secrets (-want +got):\n%s", cluster, diff))
	}
	return problems
}
