package instance

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// AnnotationForce on an Instance that is being deleted ends the wait for its node, like a grace
// period of 0.
const AnnotationForce = "rik.dev/force"

// Reasons that the controller itself sets in a status.
const (
	ReasonNodeUnreachable = "NodeUnreachable"
	ReasonStoppedByNode   = "StoppedByNode"
	// ReasonNotHere is set by a riklet for an instance of which its node has no parts.
	ReasonNotHere = "NotHere"
	// ReasonSchedulerUnavailable is the reason of instances that are Pending or Unknown because
	// no scheduler is connected. It is also used for nodes.
	ReasonSchedulerUnavailable = "SchedulerUnavailable"
)

// messageNoScheduler contains no time, because that would change with each controller.
const messageNoScheduler = "no scheduler is connected to the controller, so instances are not placed until one connects"

// messageStoppedByNode is for users who find an ended instance that no user deleted.
const messageStoppedByNode = "its node lost the connection for so long that the instance may have been replaced, and stopped it (onDisconnect: Stop, or a fence)"

// Binding is the scheduler's proposal of a node.
type Binding struct {
	Node      string
	HostPorts []int32
}

// Unplaced is the scheduler's explanation of why no node accepts an instance.
type Unplaced struct {
	Reason, Message string
}

// Observation is what a node reported about an instance.
type Observation struct {
	Node            string
	Sequence        int64
	Phase           rikv1alpha1.InstancePhase
	Reason, Message string
	Status          *rikv1alpha1.InstanceStatus
}

// NodeFacts is the relevant state of the node to which an instance is bound, or is about to be
// bound.
type NodeFacts struct {
	// Exists means that there is a Node object that is not being deleted.
	Exists bool
	// Silent means that the scheduler reported the node as lost in this session. LastSeen means
	// that it reported the node as connected. If neither is set, it has not reported yet.
	Silent, LastSeen bool
	// Unheard means that the node's state is unknown because no scheduler has been connected for
	// the time after which a node would be lost.
	Unheard bool
	// Address is the node's internal address.
	Address string
}

// Facts is the input of Next in addition to the object.
type Facts struct {
	Binding     *Binding
	Unplaced    *Unplaced
	Observation *Observation
	Node        NodeFacts
	// Away means that there has been no scheduler for some seconds. Back means that there has
	// been one again for some seconds. If neither is set, that changed just now.
	Away, Back bool
	Now        metav1.Time
}

// Contact is whether a scheduler is connected, and since when.
type Contact struct {
	Connected bool
	Since     time.Time
}

// Step is the next write of an instance. The zero Step writes nothing.
type Step struct {
	// Bind is the node to bind to. Status is then part of the same write.
	Bind string
	// Refuse means that the proposed binding must not be made.
	Refuse bool
	// Release removes the finalizer rik.dev/node. If Tombstone is set, a tombstone is written
	// first.
	Release, Tombstone bool
	// Status replaces the current status. Nil leaves it unchanged. It shares slices and pointers
	// with the instance and the facts, so it must not be changed.
	Status *rikv1alpha1.InstanceStatus
}

// Next is the state machine of an instance. It is a function of the object and of the latest
// facts, so it gives the same result after any restart.
func Next(in *rikv1alpha1.Instance, f Facts) Step {
	switch {
	case in.DeletionTimestamp != nil:
		return ending(in, f)
	case in.Status.Phase.Ended():
		// The instance will never run again, even if a node that missed the end reports
		// otherwise.
		return Step{Refuse: f.Binding != nil}
	case in.Spec.NodeName == "":
		return waiting(in, f)
	default:
		step := placed(in, f)
		step.Refuse = f.Binding != nil && f.Binding.Node != in.Spec.NodeName
		return step
	}
}

// ending keeps an instance until no part of it can run any more. It does not write the phase:
// the deletion timestamp implies Destroying, and each write has a cost. It writes only what
// prevents the node from removing the instance.
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
		status := in.Status
		status.Reason, status.Message = seen.Reason, seen.Message
		step.Status = changed(in, status).Status
	}
	return step
}

// Forced reports whether a deletion does not wait for the node.
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
			Phase: rikv1alpha1.InstanceCreating, HostAddress: f.Node.Address, HostPorts: b.HostPorts,
		}}
	}
	step := unplaced(in, f)
	step.Refuse = b != nil
	return step
}

// unplaced explains in the status why the instance has no node yet.
func unplaced(in *rikv1alpha1.Instance, f Facts) Step {
	status := rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstancePending}
	switch u := f.Unplaced; {
	case f.Away:
		status.Reason, status.Message = ReasonSchedulerUnavailable, messageNoScheduler
	case u != nil:
		status.Reason, status.Message = u.Reason, u.Message
	case f.Back && in.Status.Reason == ReasonSchedulerUnavailable:
		// The scheduler has not sent an explanation yet.
	default:
		return Step{}
	}
	return changed(in, status)
}

func placed(in *rikv1alpha1.Instance, f Facts) Step {
	switch {
	case !f.Node.Exists:
	case f.Node.Silent:
		return lost(in, ReasonNodeUnreachable, "node "+in.Spec.NodeName+" has not reported for longer than --node-timeout")
	case f.Node.Unheard && in.Status.Phase == rikv1alpha1.InstanceUnknown:
		return Step{} // the known state is older
	case f.Node.Unheard:
		return lost(in, ReasonSchedulerUnavailable, "no scheduler is connected, so node "+in.Spec.NodeName+" cannot report")
	}
	if in.Status.Phase == rikv1alpha1.InstanceUnknown && !f.Node.LastSeen {
		// An observation from before the loss does not show the current state.
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
			status.HostPorts = b.HostPorts
		}
		return changed(in, status)
	}
	return Step{}
}

// lost keeps the last known status, and marks it as possibly outdated.
func lost(in *rikv1alpha1.Instance, reason, message string) Step {
	status := *in.Status.DeepCopy()
	status.Phase, status.Ready = rikv1alpha1.InstanceUnknown, false
	status.Reason, status.Message = reason, message
	return changed(in, status)
}

// observed builds the status from an observation.
func observed(in *rikv1alpha1.Instance, seen *Observation, f Facts) Step {
	status := rikv1alpha1.InstanceStatus{}
	if seen.Status != nil {
		status = *seen.Status
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
		// No deletion was requested: the node gave the instance up.
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

// keep copies the fields that only the controller sets.
func keep(status, before *rikv1alpha1.InstanceStatus, address string) {
	status.HostAddress = before.HostAddress
	if status.HostAddress == "" {
		status.HostAddress = address
	}
	if len(status.HostPorts) == 0 {
		status.HostPorts = before.HostPorts
	}
	if status.StartedAt == nil {
		status.StartedAt = before.StartedAt
	}
}

// quiet limits the writes until an instance is running to three: while it is being created,
// only trouble is written, and not each successful step.
func quiet(before, after *rikv1alpha1.InstanceStatus) bool {
	if before.Phase != rikv1alpha1.InstanceCreating || after.Phase != rikv1alpha1.InstanceCreating {
		return false
	}
	return !trouble(after) && !trouble(before)
}

// trouble reports whether a container was restarted or ended with an error, or whether the node
// set a reason with a message for the user.
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

// changed returns a step that writes the status if it has changed. A higher sequence number
// alone does not count.
func changed(in *rikv1alpha1.Instance, status rikv1alpha1.InstanceStatus) Step {
	same := status
	same.Sequence, same.Conditions = in.Status.Sequence, in.Status.Conditions // set by the server
	if equality.Semantic.DeepEqual(same, in.Status) {
		return Step{}
	}
	return Step{Status: &status}
}
