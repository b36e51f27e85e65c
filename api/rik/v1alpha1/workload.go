package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Workload describes software that can run as instances. Creating one starts no instance, unless
// spec.deploy is Automatic.
type Workload struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	// spec is the desired state.
	Spec WorkloadSpec `json:"spec" protobuf:"bytes,2,opt,name=spec"`
	// status is the last observed state. The controller writes it.
	// +optional
	Status WorkloadStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// WorkloadList is a list of Workloads.
type WorkloadList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	Items           []Workload `json:"items" protobuf:"bytes,2,rep,name=items"`
}

// WorkloadKind is the kind of a workload's instances.
type WorkloadKind string

const (
	// KindPod is one or more containers that share a network.
	KindPod WorkloadKind = "Pod"
	// KindFunction is a microVM.
	KindFunction WorkloadKind = "Function"
	// KindApp is a plain process.
	KindApp WorkloadKind = "App"
)

// DeployMode is what starts the instances of a workload.
type DeployMode string

const (
	// DeployManual starts an instance only when a user creates it.
	DeployManual DeployMode = "Manual"
	// DeployAutomatic keeps spec.replicas instances of the newest revision.
	DeployAutomatic DeployMode = "Automatic"
)

// WorkloadSpec is the desired state of a Workload.
type WorkloadSpec struct {
	// deploy is Manual (default) or Automatic. With Manual, a user creates each instance. With
	// Automatic, the controller keeps the number of replicas.
	// +optional
	Deploy DeployMode `json:"deploy,omitempty" protobuf:"bytes,1,opt,name=deploy,casttype=DeployMode"`
	// replicas is the number of instances that an Automatic workload keeps.
	// Defaults to 1.
	// +optional
	Replicas *int32 `json:"replicas,omitempty" protobuf:"varint,2,opt,name=replicas"`
	// strategy is how an Automatic workload replaces instances of an older revision.
	// +optional
	Strategy UpdateStrategy `json:"strategy,omitempty" protobuf:"bytes,3,opt,name=strategy"`
	// disruption limits how many instances a drain may stop at once.
	// +optional
	Disruption Disruption `json:"disruption,omitempty" protobuf:"bytes,4,opt,name=disruption"`
	// revisionHistoryLimit is the number of unused revisions that are kept. Defaults to 10.
	// +optional
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty" protobuf:"varint,5,opt,name=revisionHistoryLimit"`
	// replaceAfterSeconds is the time after which an instance on a lost node is replaced by a new
	// one. Defaults to the cluster's setting (--replace-after).
	// +optional
	ReplaceAfterSeconds *int32 `json:"replaceAfterSeconds,omitempty" protobuf:"varint,6,opt,name=replaceAfterSeconds"`
	// paused pauses rollouts.
	// +optional
	Paused bool `json:"paused,omitempty" protobuf:"varint,7,opt,name=paused"`
	// The description of an instance. A change of it creates a new WorkloadRevision.
	InstanceTemplate `json:",inline" protobuf:"bytes,8,opt,name=instanceTemplate"`
}

// UpdateStrategyType is a way to replace instances.
type UpdateStrategyType string

const (
	// RollingUpdate replaces a few instances at a time.
	RollingUpdate UpdateStrategyType = "RollingUpdate"
	// Recreate stops all old instances before it starts new ones.
	Recreate UpdateStrategyType = "Recreate"
)

// UpdateStrategy limits a rollout.
type UpdateStrategy struct {
	// type is RollingUpdate (default) or Recreate.
	// +optional
	Type UpdateStrategyType `json:"type,omitempty" protobuf:"bytes,1,opt,name=type,casttype=UpdateStrategyType"`
	// maxSurge is how many instances above replicas may exist during a rolling
	// update: a number or a percentage, rounded up. Defaults to 25%.
	// +optional
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty" protobuf:"bytes,2,opt,name=maxSurge"`
	// maxUnavailable is how many of the replicas may be not ready during a rolling update: a
	// number or a percentage, rounded down. Defaults to 25%.
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty" protobuf:"bytes,3,opt,name=maxUnavailable"`
	// progressDeadlineSeconds is how long a rollout may make no progress before
	// the condition Progressing turns False. Defaults to 600.
	// +optional
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty" protobuf:"varint,4,opt,name=progressDeadlineSeconds"`
}

// Disruption limits voluntary evictions.
type Disruption struct {
	// maxUnavailable is how many instances may be not ready because of a drain:
	// a number or a percentage, rounded up. Defaults to 1.
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty" protobuf:"bytes,1,opt,name=maxUnavailable"`
}

// Conditions of a Workload.
const (
	// WorkloadAvailable is True while enough instances are ready.
	WorkloadAvailable = "Available"
	// WorkloadProgressing is True while a rollout makes progress or is complete.
	WorkloadProgressing = "Progressing"
	// WorkloadReplicaFailure is True while instances cannot be created.
	WorkloadReplicaFailure = "ReplicaFailure"
)

// WorkloadStatus is the last observed state of a Workload.
type WorkloadStatus struct {
	// observedGeneration is the generation of the spec from which this status was made.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty" protobuf:"varint,1,opt,name=observedGeneration"`
	// replicas is the number of instances that exist and are not ending.
	// +optional
	Replicas int32 `json:"replicas,omitempty" protobuf:"varint,2,opt,name=replicas"`
	// readyReplicas is the number of ready instances.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty" protobuf:"varint,3,opt,name=readyReplicas"`
	// updatedReplicas is the number of instances of the newest revision.
	// +optional
	UpdatedReplicas int32 `json:"updatedReplicas,omitempty" protobuf:"varint,4,opt,name=updatedReplicas"`
	// pendingReplicas is the number of instances that have no node yet.
	// +optional
	PendingReplicas int32 `json:"pendingReplicas,omitempty" protobuf:"varint,5,opt,name=pendingReplicas"`
	// failedReplicas is the number of instances in phase Failed.
	// +optional
	FailedReplicas int32 `json:"failedReplicas,omitempty" protobuf:"varint,6,opt,name=failedReplicas"`
	// completedReplicas is the number of instances in phase Completed.
	// +optional
	CompletedReplicas int32 `json:"completedReplicas,omitempty" protobuf:"varint,7,opt,name=completedReplicas"`
	// currentRevision is the name of the newest WorkloadRevision.
	// +optional
	CurrentRevision string `json:"currentRevision,omitempty" protobuf:"bytes,8,opt,name=currentRevision"`
	// selector is the label selector of the instances as text, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty" protobuf:"bytes,9,opt,name=selector"`
	// addresses are the virtual addresses of the workload.
	// +optional
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty" protobuf:"bytes,10,rep,name=addresses"`
	// +optional
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type" protobuf:"bytes,11,rep,name=conditions"`
}

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// WorkloadRevision is an immutable copy of a Workload's instance template, named
// <workload>-<hash>.
type WorkloadRevision struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	// revision increases by one for each new template of the workload. A rollback gives an old
	// revision a new, highest number.
	Revision int64 `json:"revision" protobuf:"varint,2,opt,name=revision"`
	// template describes an instance.
	Template InstanceTemplate `json:"template" protobuf:"bytes,3,opt,name=template"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// WorkloadRevisionList is a list of WorkloadRevisions.
type WorkloadRevisionList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	Items           []WorkloadRevision `json:"items" protobuf:"bytes,2,rep,name=items"`
}
