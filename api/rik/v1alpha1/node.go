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

// NodeSpec is the desired state of a node.
type NodeSpec struct {
	// unschedulable keeps new instances away.
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty" protobuf:"varint,1,opt,name=unschedulable"`
	// +optional
	// +listType=atomic
	Taints []Taint `json:"taints,omitempty" protobuf:"bytes,2,rep,name=taints"`
	// podCIDR is the range of its instances' addresses.
	// +optional
	PodCIDR string `json:"podCIDR,omitempty" protobuf:"bytes,3,opt,name=podCIDR"`
}

// Conditions of a Node.
const (
	// NodeReady is True while the node reports and can run instances.
	NodeReady = "Ready"
	// NodeDiskPressure is True while the node's disk is nearly full.
	NodeDiskPressure = "DiskPressure"
	// NodeConfirmationNeeded is True while the node waits for `rikctl node confirm`.
	// status.confirmation describes what it waits for.
	NodeConfirmationNeeded = "ConfirmationNeeded"
)

// The reasons why a node waits for a confirmation.
const (
	// ConfirmUnknownInstances means that the node runs instances of which the cluster has no
	// record, for example after a restore. The node does not stop them before an operator
	// confirms it.
	ConfirmUnknownInstances = "UnknownInstances"
	// ConfirmOtherCluster means that the node has accepted a cluster with a different identity.
	ConfirmOtherCluster = "OtherCluster"
	// ConfirmLowerTerm means that the node has accepted a controller with a higher term. This
	// happens after an older copy of the datastore was restored.
	ConfirmLowerTerm = "LowerTerm"
	// ConfirmUnknownNode means that the node has a certificate of this cluster's authority, for a
	// Node of which the cluster has no record.
	ConfirmUnknownNode = "UnknownNode"
)

// FarTerm is how far a node's term may be above the controller's. A higher term counts only if an
// operator names that node, because the node may be broken or hostile.
const FarTerm = 1000

// NodeStatus is what a node has reported about itself.
type NodeStatus struct {
	// capacity is the total amount of the machine's resources.
	// +optional
	Capacity ResourceList `json:"capacity,omitempty" protobuf:"bytes,1,rep,name=capacity,casttype=ResourceList,castkey=ResourceName"`
	// allocatable is the amount that instances may reserve.
	// +optional
	Allocatable ResourceList `json:"allocatable,omitempty" protobuf:"bytes,2,rep,name=allocatable,casttype=ResourceList,castkey=ResourceName"`
	// +optional
	Info NodeInfo `json:"info,omitempty" protobuf:"bytes,3,opt,name=info"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" protobuf:"bytes,4,rep,name=conditions"`
	// confirmation is the confirmation for which the node waits. It is not set if the node waits
	// for none.
	// +optional
	Confirmation *NodeConfirmation `json:"confirmation,omitempty" protobuf:"bytes,5,opt,name=confirmation"`
}

// NodeConfirmation is an action that a node does not perform before an operator confirms it.
type NodeConfirmation struct {
	// id identifies this state of this action. A confirmation names it.
	ID string `json:"id" protobuf:"bytes,1,opt,name=id"`
	// reason is UnknownInstances, OtherCluster, LowerTerm or UnknownNode.
	Reason string `json:"reason" protobuf:"bytes,2,opt,name=reason"`
	// instances is the number of instances that the node stops after the confirmation.
	// +optional
	Instances int32 `json:"instances,omitempty" protobuf:"varint,3,opt,name=instances"`
	// term is the highest term that the node has accepted. It is set only with LowerTerm.
	// +optional
	Term int64 `json:"term,omitempty" protobuf:"varint,4,opt,name=term"`
	// controllerTerm is the term of the active controller. It is set only with LowerTerm.
	// +optional
	ControllerTerm int64 `json:"controllerTerm,omitempty" protobuf:"varint,5,opt,name=controllerTerm"`
	// cluster is the identity of the node's cluster. It is set only with OtherCluster.
	// +optional
	Cluster string `json:"cluster,omitempty" protobuf:"bytes,6,opt,name=cluster"`
	// certificate is the UID of the Node for which the node's certificate was issued, if the
	// cluster has no record of that Node.
	// +optional
	Certificate string `json:"certificate,omitempty" protobuf:"bytes,7,opt,name=certificate"`
	// unknown names instances that the node stops after the confirmation, at most 64 of them: the
	// namespace and the name, or the UID if the node does not know the name.
	// +optional
	// +listType=atomic
	Unknown []string `json:"unknown,omitempty" protobuf:"bytes,8,rep,name=unknown"`
}

// NodeInfo holds the system facts of a node.
type NodeInfo struct {
	// machineID is the content of /etc/machine-id. It distinguishes two hosts with the same name.
	// +optional
	MachineID string `json:"machineID,omitempty" protobuf:"bytes,1,opt,name=machineID"`
	// bootID changes with every boot.
	// +optional
	BootID string `json:"bootID,omitempty" protobuf:"bytes,2,opt,name=bootID"`
	// agentVersion is the version of the riklet.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty" protobuf:"bytes,3,opt,name=agentVersion"`
	// runtimeVersion is the version of the default OCI runtime, such as "runc 1.5.2".
	// +optional
	RuntimeVersion string `json:"runtimeVersion,omitempty" protobuf:"bytes,4,opt,name=runtimeVersion"`
	// distribution is the name of the Linux distribution, such as Debian.
	// +optional
	Distribution string `json:"distribution,omitempty" protobuf:"bytes,5,opt,name=distribution"`
	// distributionVersion is the version of the distribution, such as 12.
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
	// kinds are the kinds of workload that the node can run.
	// +optional
	// +listType=atomic
	Kinds []WorkloadKind `json:"kinds,omitempty" protobuf:"bytes,16,rep,name=kinds,casttype=WorkloadKind"`
	// runtimes are the OCI runtimes that the node has.
	// +optional
	// +listType=atomic
	Runtimes []string `json:"runtimes,omitempty" protobuf:"bytes,17,rep,name=runtimes"`
	// installationID is the hash of a secret in the node's state directory. It distinguishes two
	// riklets on one machine.
	// +optional
	InstallationID string `json:"installationID,omitempty" protobuf:"bytes,18,opt,name=installationID"`
}
