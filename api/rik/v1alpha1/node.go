package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Node is a machine that runs instances.
type Node struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	// +optional
	Spec NodeSpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`
	// +optional
	Status NodeStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeList is a list of Nodes.
type NodeList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	Items           []Node `json:"items" protobuf:"bytes,2,rep,name=items"`
}

// NodeSpec is what an administrator asks of a node.
type NodeSpec struct {
	// unschedulable keeps new instances away.
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty" protobuf:"varint,1,opt,name=unschedulable"`
	// +optional
	// +listType=atomic
	Taints []Taint `json:"taints,omitempty" protobuf:"bytes,2,rep,name=taints"`
	// podCIDR is the range that its instances' addresses come from.
	// +optional
	PodCIDR string `json:"podCIDR,omitempty" protobuf:"bytes,3,opt,name=podCIDR"`
}

// Conditions of a Node.
const (
	// NodeReady is True while the node is heard of and can run instances.
	NodeReady = "Ready"
	// NodeDiskPressure is True while the node's disk is nearly full.
	NodeDiskPressure = "DiskPressure"
	// NodeConfirmationNeeded is True while the node waits for `rikctl node confirm`;
	// status.confirmation says for what.
	NodeConfirmationNeeded = "ConfirmationNeeded"
)

// Why a node waits for a confirmation.
const (
	// ConfirmUnknownInstances means that the node runs instances which the cluster has no
	// record of, as after a restore, and does not stop them before that is confirmed.
	ConfirmUnknownInstances = "UnknownInstances"
	// ConfirmOtherCluster means that the node has obeyed a cluster of another identity.
	ConfirmOtherCluster = "OtherCluster"
	// ConfirmLowerTerm means that the node has obeyed a controller of a higher term, as after
	// an older copy of the datastore was restored.
	ConfirmLowerTerm = "LowerTerm"
	// ConfirmUnknownNode means that the node has a certificate of this cluster's authority for
	// a Node that the cluster has no record of.
	ConfirmUnknownNode = "UnknownNode"
)

// FarTerm is how far above the controller's term a node's may be to count without an operator
// who names that node: it may be broken or hostile.
const FarTerm = 1000

// NodeStatus is what a node told of itself.
type NodeStatus struct {
	// capacity is all that the machine has.
	// +optional
	Capacity ResourceList `json:"capacity,omitempty" protobuf:"bytes,1,rep,name=capacity,casttype=ResourceList,castkey=ResourceName"`
	// allocatable is what instances may reserve.
	// +optional
	Allocatable ResourceList `json:"allocatable,omitempty" protobuf:"bytes,2,rep,name=allocatable,casttype=ResourceList,castkey=ResourceName"`
	// +optional
	Info NodeInfo `json:"info,omitempty" protobuf:"bytes,3,opt,name=info"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" protobuf:"bytes,4,rep,name=conditions"`
	// confirmation is what the node waits for; absent when it waits for nothing.
	// +optional
	Confirmation *NodeConfirmation `json:"confirmation,omitempty" protobuf:"bytes,5,opt,name=confirmation"`
}

// NodeConfirmation is what a node does not do before an operator confirms it.
type NodeConfirmation struct {
	// id of exactly this; it is what a confirmation names.
	ID string `json:"id" protobuf:"bytes,1,opt,name=id"`
	// reason is UnknownInstances, OtherCluster, LowerTerm or UnknownNode.
	Reason string `json:"reason" protobuf:"bytes,2,opt,name=reason"`
	// instances that the node stops once it is confirmed.
	// +optional
	Instances int32 `json:"instances,omitempty" protobuf:"varint,3,opt,name=instances"`
	// term is the highest that the node has obeyed; only with LowerTerm.
	// +optional
	Term int64 `json:"term,omitempty" protobuf:"varint,4,opt,name=term"`
	// controllerTerm is that of the active controller; only with LowerTerm.
	// +optional
	ControllerTerm int64 `json:"controllerTerm,omitempty" protobuf:"varint,5,opt,name=controllerTerm"`
	// cluster that the node belongs to; only with OtherCluster.
	// +optional
	Cluster string `json:"cluster,omitempty" protobuf:"bytes,6,opt,name=cluster"`
	// certificate is the UID of the Node that the node's certificate was given for, when the
	// cluster has no record of that one.
	// +optional
	Certificate string `json:"certificate,omitempty" protobuf:"bytes,7,opt,name=certificate"`
}

// NodeInfo holds the system facts of a node.
type NodeInfo struct {
	// machineID is /etc/machine-id; it tells two hosts of one name apart.
	// +optional
	MachineID string `json:"machineID,omitempty" protobuf:"bytes,1,opt,name=machineID"`
	// bootID changes with every boot.
	// +optional
	BootID string `json:"bootID,omitempty" protobuf:"bytes,2,opt,name=bootID"`
	// agentVersion is the riklet's.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty" protobuf:"bytes,3,opt,name=agentVersion"`
	// runtimeVersion of the default OCI runtime, such as "runc 1.5.2".
	// +optional
	RuntimeVersion string `json:"runtimeVersion,omitempty" protobuf:"bytes,4,opt,name=runtimeVersion"`
	// distribution and its version, such as Debian and 12.
	// +optional
	Distribution string `json:"distribution,omitempty" protobuf:"bytes,5,opt,name=distribution"`
	// +optional
	DistributionVersion string `json:"distributionVersion,omitempty" protobuf:"bytes,6,opt,name=distributionVersion"`
	// +optional
	OperatingSystem string `json:"operatingSystem,omitempty" protobuf:"bytes,7,opt,name=operatingSystem"`
	// +optional
	Architecture string `json:"architecture,omitempty" protobuf:"bytes,8,opt,name=architecture"`
	// +optional
	KernelVersion string `json:"kernelVersion,omitempty" protobuf:"bytes,9,opt,name=kernelVersion"`
	// +optional
	Hostname string `json:"hostname,omitempty" protobuf:"bytes,10,opt,name=hostname"`
	// +optional
	InternalAddress string `json:"internalAddress,omitempty" protobuf:"bytes,11,opt,name=internalAddress"`
	// +optional
	ExternalAddress string `json:"externalAddress,omitempty" protobuf:"bytes,12,opt,name=externalAddress"`
	// cpus is the number of logical cores.
	// +optional
	CPUs int32 `json:"cpus,omitempty" protobuf:"varint,13,opt,name=cpus"`
	// +optional
	MemoryBytes int64 `json:"memoryBytes,omitempty" protobuf:"varint,14,opt,name=memoryBytes"`
	// +optional
	DiskBytes int64 `json:"diskBytes,omitempty" protobuf:"varint,15,opt,name=diskBytes"`
	// kinds of workload that the node can run.
	// +optional
	// +listType=atomic
	Kinds []WorkloadKind `json:"kinds,omitempty" protobuf:"bytes,16,rep,name=kinds,casttype=WorkloadKind"`
	// runtimes that the node has.
	// +optional
	// +listType=atomic
	Runtimes []string `json:"runtimes,omitempty" protobuf:"bytes,17,rep,name=runtimes"`
	// installationID tells two riklets on one machine apart: the hash of a secret in the
	// node's state directory.
	// +optional
	InstallationID string `json:"installationID,omitempty" protobuf:"bytes,18,opt,name=installationID"`
}
