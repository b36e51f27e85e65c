package instance

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// AnnotationForce on an Instance that is being deleted gives up waiting for its
// node, like a grace period of 0.
const AnnotationForce = "rik.dev/force"

// Reasons that the controller itself gives to a status.
const (
	ReasonNodeUnreachable = "NodeUnreachable"
	ReasonStoppedByNode   = "StoppedByNode"
	// ReasonNotHere is a riklet's, of an instance of which its node has nothing.
	ReasonNotHere = "NotHere"
	// ReasonSchedulerUnavailable is of what is Pending because nobody places it, and
	// of what is Unknown because nobody hears of its node; also of nodes.
	ReasonSchedulerUnavailable = "SchedulerUnavailable"
)

// messageNobodyPlaces says no time, which would change with each controller.
const messageNobodyPlaces = "no scheduler is connected to the controller: no instance is placed until one is"

// messageStoppedByNode is for users who find an ended instance that nobody deleted.
const messageStoppedByNode = "its node stopped it, after so long without contact that it might have been replaced (onDisconnect: Stop, or a fence)"

// Binding is the scheduler's proposal of a node.
type Binding struct {
	Node      string
	HostPorts []int32
}

// Unplaced is the scheduler's word on why no node takes an instance.
type Unplaced struct {
	Reason, Message string
}

// Observation is what a node saw of an instance.
type Observation struct {
	Node            string
	Sequence        int64
	Phase           rikv1alpha1.InstancePhase
	Reason, Message string
	Status          *rikv1alpha1.InstanceStatus
}

// NodeFacts is what matters of the node that an instance is bound to, or is
// about to be.
type NodeFacts struct {
	// Exists: there is a Node object that is not being deleted.
	Exists bool
	// Silent and Heard: the scheduler said in this session that it hears nothing
	// of it, or that it does. Neither: the scheduler has not said yet.
	Silent, LastSeen bool
	// Unheard: nobody hears of it, because no scheduler has been connected for so
	// long that a node would count as lost.
	Unheard bool
	// Address is the node's internal address.
	Address string
}

// Facts is all that the next step of an instance depends on beside its object.
type Facts struct {
	Binding     *Binding
	Unplaced    *Unplaced
	Observation *Observation
	Node        NodeFacts
	// Away and Back: for some seconds there has been no scheduler, or has again been
	// one. Neither: that changed just now.
	Away, Back bool
	Now        metav1.Time
}

// Contact is whether a scheduler is connected, and since when it is or is not.
type Contact struct {
	Connected bool
	Since     time.Time
}

// Step is the one write that an instance needs next. The zero Step is none.
type Step struct {
	// Bind is the node to bind to; Status is then part of the same write.
	Bind string
	// Refuse says that the binding must not be made.
	Refuse bool
	// Release removes the finalizer of the node, after a tombstone if Tombstone.
	Release, Tombstone bool
	// Status replaces the present one; nil leaves it.
	Status *rikv1alpha1.InstanceStatus
}

// Next is the state machine of an instance: a function of the object and of
// the latest that is known, so that it gives the same answer after any restart.
func Next(in *rikv1alpha1.Instance, f Facts) Step {
	switch {
	case in.DeletionTimestamp != nil:
		return ending(in, f)
	case in.Status.Phase.Ended():
		// It will never run again, whatever a node that missed that says.
		return Step{Refuse: f.Binding != nil}
	case in.Spec.NodeName == "":
		return waiting(in, f)
	default:
		step := placed(in, f)
		step.Refuse = f.Binding != nil && f.Binding.Node != in.Spec.NodeName
		return step
	}
}

// ending holds an instance until nothing of it can run any more. The phase is
// not written: the deletion timestamp says Destroying, and each write counts. Only
// what keeps the node from taking it away is worth one.
func ending(in *rikv1alpha1.Instance, f Facts) Step {
	step := Step{Refuse: f.Binding != nil}
	if !slices.Contains(in.Finalizers, rikv1alpha1.FinalizerNode) {
		return step
	}
	seen := f.Observation
	switch {
	case in.Spec.NodeName == "":
		step.Release = true
	case seen != nil && seen.Node == in.Spec.NodeName && seen.Phase == rikv1alpha1.InstanceTerminated:
		step.Release = true
	case !f.Node.Exists || Forced(in):
		step.Release, step.Tombstone = true, true
	case seen != nil && seen.Node == in.Spec.NodeName && seen.Phase == rikv1alpha1.InstanceDestroying && seen.Message != "":
		status := *in.Status.DeepCopy()
		status.Reason, status.Message = seen.Reason, seen.Message
		step.Status = changed(in, status).Status
	}
	return step
}

// Forced says whether a deletion does not wait for the node.
func Forced(in *rikv1alpha1.Instance) bool {
	if in.DeletionTimestamp == nil {
		return false
	}
	if _, ok := in.Annotations[AnnotationForce]; ok {
		return true
	}
	grace := in.DeletionGracePeriodSeconds
	return grace != nil && *grace == 0
}

func waiting(in *rikv1alpha1.Instance, f Facts) Step {
	b := f.Binding
	if b != nil && f.Node.Exists {
		return Step{Bind: b.Node, Status: &rikv1alpha1.InstanceStatus{
			Phase: rikv1alpha1.InstanceCreating, HostAddress: f.Node.Address, HostPorts: slices.Clone(b.HostPorts),
		}}
	}
	step := unplaced(in, f)
	step.Refuse = b != nil
	return step
}

// unplaced says why no node has the instance yet.
func unplaced(in *rikv1alpha1.Instance, f Facts) Step {
	status := rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstancePending}
	switch u := f.Unplaced; {
	case f.Away:
		status.Reason, status.Message = ReasonSchedulerUnavailable, messageNobodyPlaces
	case u != nil:
		status.Reason, status.Message = u.Reason, u.Message
	case f.Back && in.Status.Reason == ReasonSchedulerUnavailable:
		// It has not said yet.
	default:
		return Step{}
	}
	return changed(in, status)
}

func placed(in *rikv1alpha1.Instance, f Facts) Step {
	switch {
	case !f.Node.Exists:
	case f.Node.Silent:
		return lost(in, ReasonNodeUnreachable, "node "+in.Spec.NodeName+" is not heard of")
	case f.Node.Unheard && in.Status.Phase == rikv1alpha1.InstanceUnknown:
		return Step{} // what is known of it is older
	case f.Node.Unheard:
		return lost(in, ReasonSchedulerUnavailable, "nobody hears of node "+in.Spec.NodeName+", because no scheduler is connected")
	}
	if in.Status.Phase == rikv1alpha1.InstanceUnknown && !f.Node.LastSeen {
		// An observation from before the silence says nothing of now.
		return Step{}
	}
	if seen := f.Observation; seen != nil && seen.Node == in.Spec.NodeName && seen.Sequence >= in.Status.Sequence {
		return observed(in, seen, f)
	}
	if in.Status.Phase == "" || in.Status.Phase == rikv1alpha1.InstancePending {
		// The binding was stored without its phase.
		status := rikv1alpha1.InstanceStatus{
			Phase: rikv1alpha1.InstanceCreating, HostAddress: f.Node.Address, Sequence: in.Status.Sequence,
		}
		if b := f.Binding; b != nil && b.Node == in.Spec.NodeName {
			status.HostPorts = slices.Clone(b.HostPorts)
		}
		return changed(in, status)
	}
	return Step{}
}

// lost keeps what was last seen, and says that it may no longer be so.
func lost(in *rikv1alpha1.Instance, reason, message string) Step {
	status := *in.Status.DeepCopy()
	status.Phase, status.Ready = rikv1alpha1.InstanceUnknown, false
	status.Reason, status.Message = reason, message
	return changed(in, status)
}

// observed makes the status of what the node saw.
func observed(in *rikv1alpha1.Instance, seen *Observation, f Facts) Step {
	status := rikv1alpha1.InstanceStatus{}
	if seen.Status != nil {
		status = *seen.Status.DeepCopy()
	}
	status.Phase, status.Reason, status.Message = seen.Phase, seen.Reason, seen.Message
	switch seen.Phase {
	case rikv1alpha1.InstanceCreating, rikv1alpha1.InstanceRunning:
		status.FinishedAt = nil
		if status.Suspended {
			status.Ready = false
			status.Reason = cmp.Or(status.Reason, rikv1alpha1.ReasonSuspended)
		}
	case rikv1alpha1.InstanceCompleted, rikv1alpha1.InstanceFailed:
		finish(&status, f.Now)
	case rikv1alpha1.InstanceTerminated:
		// Nobody asked for its end: the node gave it up.
		status.Phase = rikv1alpha1.InstanceFailed
		if status.Reason == "" {
			status.Reason, status.Message = ReasonStoppedByNode, messageStoppedByNode
		}
		finish(&status, f.Now)
	default:
		return Step{}
	}
	if status.Phase != rikv1alpha1.InstanceRunning {
		status.Ready, status.Suspended = false, false
	}
	status.Sequence = seen.Sequence
	keep(&status, &in.Status, f.Node.Address)
	if quiet(&in.Status, &status) {
		return Step{}
	}
	return changed(in, status)
}

func finish(status *rikv1alpha1.InstanceStatus, now metav1.Time) {
	if status.FinishedAt == nil {
		status.FinishedAt = &now
	}
}

// keep carries over what only the controller knows.
func keep(status, before *rikv1alpha1.InstanceStatus, address string) {
	status.HostAddress = before.HostAddress
	if status.HostAddress == "" {
		status.HostAddress = address
	}
	if len(status.HostPorts) == 0 {
		status.HostPorts = slices.Clone(before.HostPorts)
	}
	if status.StartedAt == nil {
		status.StartedAt = before.StartedAt
	}
}

// quiet keeps the way up at three writes: while an instance is being made,
// only trouble is worth a write, not each step that goes well.
func quiet(before, after *rikv1alpha1.InstanceStatus) bool {
	if before.Phase != rikv1alpha1.InstanceCreating || after.Phase != rikv1alpha1.InstanceCreating {
		return false
	}
	return !trouble(after) && !trouble(before)
}

// trouble says whether a container was started again or ended badly, or the
// node gave a reason of which it wants the user to know: one with a message.
func trouble(s *rikv1alpha1.InstanceStatus) bool {
	if s.Reason != "" && s.Message != "" {
		return true
	}
	bad := func(c rikv1alpha1.ContainerStatus) bool {
		return c.RestartCount > 0 || c.ExitCode != nil && *c.ExitCode != 0 ||
			c.State == rikv1alpha1.ContainerWaiting && c.Reason != "" && c.Message != ""
	}
	return slices.ContainsFunc(s.Containers, bad) || slices.ContainsFunc(s.InitContainers, bad)
}

// changed is a step that writes the status if it says anything new. A higher
// sequence number alone does not.
func changed(in *rikv1alpha1.Instance, status rikv1alpha1.InstanceStatus) Step {
	same := status
	same.Sequence, same.Conditions = in.Status.Sequence, in.Status.Conditions // the server's
	if equality.Semantic.DeepEqual(same, in.Status) {
		return Step{}
	}
	return Step{Status: &status}
}
