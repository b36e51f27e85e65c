package splitter

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// State is all that a decision is made from. [Split] changes nothing of it.
type State struct {
	Root   Root
	Policy Policy
	// Clusters in any order, each name once.
	Clusters []Cluster
	// Leaves in any order, at most one for a cluster. A leaf whose cluster is not among
	// Clusters belongs to one that was removed.
	Leaves []Leaf
	// Follows is whether the root goes where the objects are that it refers to, and to no other
	// cluster; Among are the clusters in which these are.
	Follows bool
	Among   []string
	// Progress as the last decision left it.
	Progress Progress
	Now      time.Time
}

// Root is what is divided.
type Root struct {
	Name string
	// Replicas are the whole of a root that is divided.
	Replicas int32
	// Requests of one replica, for the strategy capacity; without them CPUs count.
	Requests corev1.ResourceList
	// Finished is whether the root's work is done, by its own status.
	Finished bool
	// TerminationGrace is how long a replica may go on after it was told to stop.
	TerminationGrace time.Duration
}

// Cluster is what is known of a cluster, with a view to the root.
type Cluster struct {
	Name   string
	Labels map[string]string
	Taints []workloadv1alpha1.ClusterTaint
	// Ready is whether it takes objects, and Since when that last changed.
	Ready bool
	Since time.Time
	// Silent is when its syncer was found to be silent; zero while it is heard of.
	Silent time.Time
	// Unschedulable keeps new parts away; EvictAfter is when those there have to leave.
	Unschedulable bool
	EvictAfter    time.Time
	// Removing is whether the Cluster is being deleted. Nothing is told to it any more.
	Removing bool
	// Serves is whether objects of the root's type are carried to it.
	Serves bool
	// Missing is since when the cluster, which takes the type otherwise, does not serve it any
	// more; zero while it does. What it had of the type is gone, or cannot be told anything.
	Missing time.Time
	// SameAs is another cluster that is the same physical one; empty if there is none.
	SameAs string
	// Fences is whether it stops fenced replicas by itself when it is cut off.
	Fences      bool
	Allocatable corev1.ResourceList
}

// ClusterOf is what a Cluster says of itself to a root of a type.
func ClusterOf(c *workloadv1alpha1.Cluster, resource schema.GroupResource) Cluster {
	out := Cluster{
		Name: c.Name, Labels: c.Labels, Taints: c.Spec.Taints,
		Unschedulable: c.Spec.Unschedulable, Removing: c.DeletionTimestamp != nil,
		Allocatable: c.Status.Allocatable,
	}
	if ready := meta.FindStatusCondition(c.Status.Conditions, workloadv1alpha1.ConditionReady); ready != nil {
		out.Ready, out.Since = ready.Status == metav1.ConditionTrue, ready.LastTransitionTime.Time
	} else {
		out.Since = c.CreationTimestamp.Time
	}
	// The condition turns after the last sign of life: a fence that is counted from then
	// on holds rather later than sooner.
	if beat := meta.FindStatusCondition(c.Status.Conditions, workloadv1alpha1.ConditionHeartbeatHealthy); beat != nil && beat.Status == metav1.ConditionFalse {
		out.Silent = beat.LastTransitionTime.Time
	}
	out.Fences = meta.IsStatusConditionTrue(c.Status.Conditions, workloadv1alpha1.ConditionFencing)
	if c.Spec.EvictAfter != nil {
		out.EvictAfter = c.Spec.EvictAfter.Time
	}
	if out.Removing && c.Annotations[workloadv1alpha1.OnRemovalAnnotation] == workloadv1alpha1.OnRemovalDelete &&
		slices.Contains(c.Finalizers, workloadv1alpha1.SplitterFinalizer) {
		// Its parts leave while it can still be told to stop them.
		out.Removing, out.EvictAfter = false, c.DeletionTimestamp.Time
	}
	out.SameAs = c.Status.SameAs
	for _, name := range c.Status.SyncedResources {
		out.Serves = out.Serves || name == resource.String()
	}
	for _, p := range c.Status.ResourceProblems {
		if p.Resource != resource.String() {
			continue
		}
		switch p.Reason {
		case workloadv1alpha1.ResourceNotServed:
			out.Missing = p.Since.Time
		case workloadv1alpha1.ResourceNotReadable, workloadv1alpha1.ResourceIncompatible:
			out.Serves = false
		}
	}
	return out
}

// Leaf is what a cluster has of the root, as the object upstream tells.
type Leaf struct {
	Cluster string
	// Replicas in its spec; 1 of what is not divided.
	Replicas int32
	// Running and Ready are how many its status counts; of what is not divided 1 or 0.
	Running, Ready int32
	// AtMost is how many could run when the spec was written, from [AtMostAnnotation].
	AtMost int32
	// Settled is whether the status is of the present spec.
	Settled bool
	// Autoscaled leaves' replicas are set by somebody else in the cluster.
	Autoscaled bool
	// Deleting leaves are there until they are gone downstream.
	Deleting bool
	// Bound is whether the cluster has data of the leaf: a claim that it names is bound
	// there, or claims were made there from its templates.
	Bound bool
	// Finished is whether its work is done in the cluster, so that it must not run again. A
	// leaf of a root whose replicas are divided does not finish.
	Finished bool
	// LostAt is when its cluster was found to be removed, from [LostAtAnnotation].
	LostAt time.Time
	// Refused is whether the cluster refuses the leaf as it is now, and Never whether it has
	// never taken it, so that nothing of it runs there.
	Refused, Never bool
	// RefusedAt is when that was last found, from [RefusedAtAnnotation].
	RefusedAt time.Time
}

// most is how many replicas of the leaf can run.
func (l *Leaf) most() int64 {
	n := max(l.Replicas, l.Running)
	if !l.Settled {
		n = max(n, l.AtMost)
	}
	return int64(n)
}

// gone says whether the cluster has said that nothing of the leaf runs.
func (l *Leaf) gone() bool { return l.Replicas == 0 && l.Settled && l.Running == 0 }

// Progress is what a decision has to remember for the next one. It is written before
// the changes are: after a crash between the two it is too careful, and mends itself.
type Progress struct {
	// Since is when the interval of moves began, and Moves how many were made in it.
	Since time.Time `json:"since,omitzero"`
	Moves int32     `json:"moves,omitempty"`
	// Surged is how many replicas were added ahead of those that they replace.
	Surged int32 `json:"surged,omitempty"`
	// LeafNames: clusters have data of the root that was made under names of leaves. What is made
	// under another name would not find it.
	LeafNames bool `json:"leafNames,omitempty"`
	// Refused are the clusters that have refused a whole root, each with the time, as
	// CLUSTER=TIME with commas between.
	Refused string `json:"refused,omitempty"`
}

// Action is what is done to a leaf.
type Action string

// The actions.
const (
	// Create makes the leaf.
	Create Action = "create"
	// Scale sets its replicas.
	Scale Action = "scale"
	// Delete deletes it: it is gone downstream, or has to go as a whole.
	Delete Action = "delete"
	// Note writes LostAt down.
	Note Action = "note"
)

// Change is one write of a leaf. Those of one decision may be made in any order, and
// any number of them.
type Change struct {
	Action  Action
	Cluster string
	// From and To are its parts before and after.
	From, To int32
	// AtMost, LostAt and RefusedAt are to be kept with the leaf.
	AtMost    int32
	LostAt    time.Time
	RefusedAt time.Time
}

// Result is a decision.
type Result struct {
	// Progress to write first, if it is another than that of the State.
	Progress Progress
	// Changes in the order of the clusters' names.
	Changes []Change
	// Unplaced is how much of the whole no cluster takes.
	Unplaced int32
	// Stranded is how much of the whole is left in clusters that are not heard of, because
	// no other cluster takes it.
	Stranded int32
	// Refused is the cluster in which a whole root stays although it refuses it, because no
	// other cluster takes it; empty if there is none.
	Refused string
	// Next is when to look again if nothing happens; zero: never.
	Next        time.Time
	Explanation Explanation
}
