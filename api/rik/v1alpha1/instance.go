package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Instance is one running copy of a Workload's revision. Only the controller writes it. A riklet
// reports observations to the controller.
type Instance struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	Spec              InstanceSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
	// +optional
	Status InstanceStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// InstanceList is a list of Instances.
type InstanceList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	Items           []Instance `json:"items" protobuf:"bytes,2,rep,name=items"`
}

// InstanceSpec names the revision and the node of an instance. It has names instead of copies,
// because a million instances must stay small.
type InstanceSpec struct {
	// workload is the name of the Workload in the same namespace.
	Workload string `json:"workload" protobuf:"bytes,1,opt,name=workload"`
	// revision is the name of the WorkloadRevision that the instance runs. If it is empty, the
	// server sets the workload's newest one.
	// +optional
	Revision string `json:"revision,omitempty" protobuf:"bytes,2,opt,name=revision"`
	// nodeName is the node of the instance. The binding sets it once. A replacement is a new
	// Instance.
	// +optional
	NodeName string `json:"nodeName,omitempty" protobuf:"bytes,3,opt,name=nodeName"`
	// replaces is the UID of the lost instance that this one replaces.
	// +optional
	Replaces string `json:"replaces,omitempty" protobuf:"bytes,4,opt,name=replaces"`
}

// InstancePhase is the one-word summary of an instance's state.
type InstancePhase string

// The phases of an instance.
const (
	// InstancePending means that the instance has no node yet. The reason says why.
	InstancePending InstancePhase = "Pending"
	// InstanceCreating means that its node is starting it.
	InstanceCreating InstancePhase = "Creating"
	// InstanceRunning means that its processes run.
	InstanceRunning InstancePhase = "Running"
	// InstanceCompleted means that it ended with exit code 0 and will not restart.
	InstanceCompleted InstancePhase = "Completed"
	// InstanceFailed means that it ended with an error, or could not be started.
	InstanceFailed InstancePhase = "Failed"
	// InstanceDestroying means that its node is removing it.
	InstanceDestroying InstancePhase = "Destroying"
	// InstanceTerminated means that nothing of it is left on its node. The object is deleted when
	// its finalizer is removed.
	InstanceTerminated InstancePhase = "Terminated"
	// InstanceUnknown means that its node does not report.
	InstanceUnknown InstancePhase = "Unknown"
)

// Conditions of an Instance.
const (
	// InstanceReady is True while every container is ready.
	InstanceReady = "Ready"
)

// ReasonSuspended is the reason of a Running instance that is suspended.
const ReasonSuspended = "Suspended"

// SuspendToDisk is a query parameter of a POST to an Instance's subresource suspend, true or
// false. If it is true, the microVM's memory is written to its node's disk instead of being kept.
const SuspendToDisk = "toDisk"

// InstanceStatus is the last observed state of an Instance.
type InstanceStatus struct {
	// +optional
	Phase InstancePhase `json:"phase,omitempty" protobuf:"bytes,1,opt,name=phase,casttype=InstancePhase"`
	// reason is one word in CamelCase.
	// +optional
	Reason string `json:"reason,omitempty" protobuf:"bytes,2,opt,name=reason"`
	// message is a description of the reason.
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,3,opt,name=message"`
	// ready is true while every container is ready.
	// +optional
	Ready bool `json:"ready,omitempty" protobuf:"varint,4,opt,name=ready"`
	// address is the instance's address in the pod network.
	// +optional
	Address string `json:"address,omitempty" protobuf:"bytes,5,opt,name=address"`
	// hostAddress is its node's internal address.
	// +optional
	HostAddress string `json:"hostAddress,omitempty" protobuf:"bytes,6,opt,name=hostAddress"`
	// hostPorts are the ports that are reserved on the node.
	// +optional
	// +listType=atomic
	HostPorts []int32 `json:"hostPorts,omitempty" protobuf:"varint,7,rep,name=hostPorts"`
	// startedAt is when its first container started.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty" protobuf:"bytes,8,opt,name=startedAt"`
	// finishedAt is when it reached Completed or Failed.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty" protobuf:"bytes,9,opt,name=finishedAt"`
	// sequence is the sequence number of the observation from which this status was made.
	// +optional
	Sequence int64 `json:"sequence,omitempty" protobuf:"varint,10,opt,name=sequence"`
	// +optional
	// +listType=map
	// +listMapKey=name
	Containers []ContainerStatus `json:"containers,omitempty" protobuf:"bytes,11,rep,name=containers"`
	// +optional
	// +listType=map
	// +listMapKey=name
	InitContainers []ContainerStatus `json:"initContainers,omitempty" protobuf:"bytes,12,rep,name=initContainers"`
	// suspended is true while the instance is suspended, for example by rikctl suspend.
	// +optional
	Suspended bool `json:"suspended,omitempty" protobuf:"varint,13,opt,name=suspended"`
	// conditions has the condition Ready, for clients that wait for it as for a Kubernetes pod.
	// The server derives it from phase and ready, after the binding.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []InstanceCondition `json:"conditions,omitempty" protobuf:"bytes,14,rep,name=conditions"`
}

// ConditionReady of an instance is True while every container is ready, and Unknown while its
// node does not report.
const ConditionReady = "Ready"

// InstanceCondition is one aspect of an instance's state: True, False or Unknown. It has no
// reason, because instances are many and must stay small. The status has the reason of the phase.
type InstanceCondition struct {
	Type string `json:"type" protobuf:"bytes,1,opt,name=type"`
	// status is True, False or Unknown.
	Status metav1.ConditionStatus `json:"status" protobuf:"bytes,2,opt,name=status,casttype=k8s.io/apimachinery/pkg/apis/meta/v1.ConditionStatus"`
	// lastTransitionTime is when the status last changed.
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty" protobuf:"bytes,3,opt,name=lastTransitionTime"`
}

// ContainerState is the state of a container.
type ContainerState string

// The states of a container.
const (
	ContainerWaiting ContainerState = "Waiting"
	ContainerRunning ContainerState = "Running"
	ContainerExited  ContainerState = "Exited"
)

// ContainerStatus is the last observed state of one container.
type ContainerStatus struct {
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// +optional
	State ContainerState `json:"state,omitempty" protobuf:"bytes,2,opt,name=state,casttype=ContainerState"`
	// reason such as Completed, Error, OOMKilled, CrashLoopBackOff or ImagePullFailed.
	// +optional
	Reason string `json:"reason,omitempty" protobuf:"bytes,3,opt,name=reason"`
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,4,opt,name=message"`
	// +optional
	Ready bool `json:"ready,omitempty" protobuf:"varint,5,opt,name=ready"`
	// restartCount is the number of starts after the first.
	// +optional
	RestartCount int32 `json:"restartCount,omitempty" protobuf:"varint,6,opt,name=restartCount"`
	// exitCode is the last exit code. It is 128+n for signal n.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty" protobuf:"varint,7,opt,name=exitCode"`
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty" protobuf:"bytes,8,opt,name=startedAt"`
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty" protobuf:"bytes,9,opt,name=finishedAt"`
	// imageDigest is the digest of the running image's manifest.
	// +optional
	ImageDigest string `json:"imageDigest,omitempty" protobuf:"bytes,10,opt,name=imageDigest"`
	// lastState is how the previous run of a container ended, if the container runs again or
	// waits for its restart. It stays when a restart clears the fields above. The reason
	// OOMKilled without a restart means that the kernel killed processes in a container that
	// continues.
	// +optional
	LastState *ContainerEnd `json:"lastState,omitempty" protobuf:"bytes,11,opt,name=lastState"`
}

// ContainerEnd is the end of one run of a container.
type ContainerEnd struct {
	// reason such as Completed, Error, OOMKilled or Unhealthy.
	// +optional
	Reason string `json:"reason,omitempty" protobuf:"bytes,1,opt,name=reason"`
	// +optional
	Message string `json:"message,omitempty" protobuf:"bytes,2,opt,name=message"`
	// exitCode is the exit code, or 128+n for signal n.
	ExitCode int32 `json:"exitCode" protobuf:"varint,3,opt,name=exitCode"`
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty" protobuf:"bytes,4,opt,name=startedAt"`
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty" protobuf:"bytes,5,opt,name=finishedAt"`
}

// +k8s:conversion-gen:explicit-from=net/url.Values
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// InstanceLogOptions are the query parameters of instances/log.
type InstanceLogOptions struct {
	metav1.TypeMeta `json:",inline"`
	// container is the name of the container. If it is empty, the first container is used.
	// +optional
	Container string `json:"container,omitempty" protobuf:"bytes,1,opt,name=container"`
	// +optional
	Follow bool `json:"follow,omitempty" protobuf:"varint,2,opt,name=follow"`
	// previous reads the log of the container's last run.
	// +optional
	Previous bool `json:"previous,omitempty" protobuf:"varint,3,opt,name=previous"`
	// tailLines is the number of lines from the end of the log. If it is not set, all lines are
	// returned.
	// +optional
	TailLines *int64 `json:"tailLines,omitempty" protobuf:"varint,4,opt,name=tailLines"`
	// sinceSeconds omits lines that are older than this many seconds.
	// +optional
	SinceSeconds *int64 `json:"sinceSeconds,omitempty" protobuf:"varint,5,opt,name=sinceSeconds"`
	// timestamps adds the time (RFC 3339) in front of each line.
	// +optional
	Timestamps bool `json:"timestamps,omitempty" protobuf:"varint,6,opt,name=timestamps"`
}

// +k8s:conversion-gen:explicit-from=net/url.Values
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// InstanceExecOptions are the query parameters of instances/exec.
type InstanceExecOptions struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	Stdin bool `json:"stdin,omitempty" protobuf:"varint,1,opt,name=stdin"`
	// +optional
	Stdout bool `json:"stdout,omitempty" protobuf:"varint,2,opt,name=stdout"`
	// +optional
	Stderr bool `json:"stderr,omitempty" protobuf:"varint,3,opt,name=stderr"`
	// +optional
	TTY bool `json:"tty,omitempty" protobuf:"varint,4,opt,name=tty"`
	// +optional
	Container string `json:"container,omitempty" protobuf:"bytes,5,opt,name=container"`
	// +listType=atomic
	Command []string `json:"command" protobuf:"bytes,6,rep,name=command"`
}
