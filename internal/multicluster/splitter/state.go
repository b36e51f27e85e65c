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

// State is the complete input of a decision. [Split] does not change it.
type State struct {
	Root   Root
	Policy Policy
	// Clusters are in any order. Each name occurs once.
	Clusters []Cluster
	// Leaves are in any order, at most one for each cluster. If the cluster of a leaf is not in
	// Clusters, it was removed.
	Leaves []Leaf
	// Follows is true if the root goes only to the clusters of the objects to which it refers.
	// Among are those clusters.
	Follows bool
	Among   []string
	// Progress is the progress that the last decision returned.
	Progress Progress
	Now      time.Time
}

// Root is the object that is divided.
type Root struct {
	Name string
	// Replicas is the number to divide, if the root is divided by replicas.
	Replicas int32
	// Requests are the resources of one replica, for the strategy capacity. If they are empty,
	// that strategy counts CPUs.
	Requests corev1.ResourceList
	// Finished is true if the root's own status shows that its work is finished.
	Finished bool
	// TerminationGrace is the time that a replica may take to stop.
	TerminationGrace time.Duration
}

// Cluster is what the splitter knows of a cluster, as far as it concerns the root.
type Cluster struct {
	Name   string
	Labels map[string]string
	Taints []workloadv1alpha1.ClusterTaint
	// Ready is true if the cluster accepts objects. Since is when Ready last changed.
	Ready bool
	Since time.Time
	// Silent is when the heartbeat of its syncer was found to be missing. It is zero while the
	// heartbeat arrives.
	Silent time.Time
	// Unschedulable is true if the cluster gets no new parts. EvictAfter is when its parts must
	// leave.
	Unschedulable bool
	EvictAfter    time.Time
	// Removing is true if the Cluster is being deleted. The syncer no longer writes to it.
	Removing bool
	// Serves is true if the syncer copies objects of the root's type to the cluster.
	Serves bool
	// Missing is when the cluster stopped serving the type, although it is configured for it. It
	// is zero while the cluster serves it. The objects of that type are gone or cannot be
	// changed.
	Missing time.Time
	// SameAs is the name of another Cluster that is the same physical cluster. It is empty for
	// other Clusters.
	SameAs string
	// Fences is true if the cluster stops fenced replicas by itself when it is disconnected.
	Fences      bool
	Allocatable corev1.ResourceList
}

// ClusterOf reads a [Cluster] from its object, for a root of the given type.
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
	// The condition changes after the last heartbeat. A fence that is measured from that change
	// takes effect late, never early.
	if beat := meta.FindStatusCondition(c.Status.Conditions, workloadv1alpha1.ConditionHeartbeatHealthy); beat != nil && beat.Status == metav1.ConditionFalse {
		out.Silent = beat.LastTransitionTime.Time
	}
	out.Fences = meta.IsStatusConditionTrue(c.Status.Conditions, workloadv1alpha1.ConditionFencing)
	if c.Spec.EvictAfter != nil {
		out.EvictAfter = c.Spec.EvictAfter.Time
	}
	if out.Removing && c.Annotations[workloadv1alpha1.OnRemovalAnnotation] == workloadv1alpha1.OnRemovalDelete &&
		slices.Contains(c.Finalizers, workloadv1alpha1.SplitterFinalizer) {
		// Its parts leave while the syncer can still stop them.
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

// Leaf is what a cluster has of the root, as the upstream object shows it.
type Leaf struct {
	Cluster string
	// Replicas is the number in its spec. It is 1 if the root is not divided.
	Replicas int32
	// Running and Ready are the numbers in its status. They are 1 or 0 if the root is not
	// divided.
	Running, Ready int32
	// AtMost is the number of replicas that could run when the spec was written. It is read from
	// [AtMostAnnotation].
	AtMost int32
	// Settled is true if the status describes the current spec.
	Settled bool
	// Autoscaled is true if an autoscaler in the cluster sets the replicas.
	Autoscaled bool
	// Deleting is true while the leaf is deleted but still exists downstream.
	Deleting bool
	// Bound is true if the cluster has data of the leaf. Either a claim to which it refers is
	// bound there, or claims were made there from its templates.
	Bound bool
	// Finished is true if its work is finished in the cluster, so that it must not run again. It
	// is always false if the root is divided by replicas.
	Finished bool
	// LostAt is when the removal of its cluster was found. It is read from [LostAtAnnotation].
	LostAt time.Time
	// Refused is true if the cluster refuses the current leaf. Never is true if the cluster has
	// never accepted it, so that no replica of it runs there.
	Refused, Never bool
	// RefusedAt is when the refusal was last found. It is read from [RefusedAtAnnotation].
	RefusedAt time.Time
}

// most returns how many replicas of the leaf can run.
func (l *Leaf) most() int64 {
	n := max(l.Replicas, l.Running)
	if !l.Settled {
		n = max(n, l.AtMost)
	}
	return int64(n)
}

// gone reports whether the cluster has confirmed that no replica of the leaf runs.
func (l *Leaf) gone() bool { return l.Replicas == 0 && l.Settled && l.Running == 0 }

// Progress is what a decision must remember for the next one. The caller writes it before the
// changes. After a crash between the two it is too strict, but later decisions correct it.
type Progress struct {
	// Since is when the interval of moves began, and Moves is the number of moves in it.
	Since time.Time `json:"since,omitzero"`
	Moves int32     `json:"moves,omitempty"`
	// Surged is the number of replicas that were added before the ones that they replace were
	// removed.
	Surged int32 `json:"surged,omitempty"`
	// LeafNames is true if clusters have data of the root that was made under the names of
	// leaves. An object with another name would not find that data.
	LeafNames bool `json:"leafNames,omitempty"`
	// Refused contains the clusters that have refused an undivided root, with the times, as a
	// comma-separated list of CLUSTER=TIME.
	Refused string `json:"refused,omitempty"`
}

// Action is what a change does to a leaf.
type Action string

// The actions.
const (
	// Create creates the leaf.
	Create Action = "create"
	// Scale sets its replicas.
	Scale Action = "scale"
	// Delete deletes it. Either nothing of it runs downstream, or all of it must leave.
	Delete Action = "delete"
	// Note writes LostAt to the annotation of the leaf.
	Note Action = "note"
)

// Change is one write of a leaf. The caller may write any of the changes of a decision, in any
// order.
type Change struct {
	Action  Action
	Cluster string
	// From and To are its parts before and after the change.
	From, To int32
	// AtMost, LostAt and RefusedAt are to be written to the annotations of the leaf.
	AtMost    int32
	LostAt    time.Time
	RefusedAt time.Time
}

// Result is a decision.
type Result struct {
	// Progress must be written first, if it differs from the Progress of the State.
	Progress Progress
	// Changes are sorted by the names of the clusters.
	Changes []Change
	// Unplaced is how much of the whole no cluster accepts.
	Unplaced int32
	// Stranded is how much of the whole stays in silent clusters because no other cluster accepts
	// it.
	Stranded int32
	// Refused is the cluster in which an undivided root stays although that cluster refuses it,
	// because no other cluster accepts it. It is empty for other roots.
	Refused string
	// Next is when to call Split again if nothing happens before. Zero means never.
	Next        time.Time
	Explanation Explanation
}
