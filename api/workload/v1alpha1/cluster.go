package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cluster is a physical cluster, rik's own or Kubernetes, that work can be sent to.
// Its name is a DNS label, because labels and namespaces are made of it.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp,shortName=cl
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Synced API resources",type=string,JSONPath=`.status.syncedResources`
// +kubebuilder:printcolumn:name="Location",type=string,JSONPath=`.status.location`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name of a Cluster is a DNS label: at most 63 of a to z, 0 to 9 and -, beginning and ending with a letter or digit"
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec ClusterSpec `json:"spec,omitempty"`
	// +optional
	Status ClusterStatus `json:"status,omitempty"`
}

// ClusterSpec says how a cluster is reached and what may be sent to it.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.kubeconfig) && self.kubeconfig.size() > 0 && has(self.kubeconfigSecretRef))",message="give kubeconfig or kubeconfigSecretRef, not both"
type ClusterSpec struct {
	// Kubeconfig reaches the cluster. Whoever may read this object reads the
	// credentials in it; KubeconfigSecretRef is better.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=262144
	KubeConfig string `json:"kubeconfig,omitempty"`
	// KubeconfigSecretRef names a Secret that holds the kubeconfig. A change of it is
	// taken up at once.
	//
	// +optional
	KubeconfigSecretRef *SecretKeyReference `json:"kubeconfigSecretRef,omitempty"`
	// Unschedulable keeps new work away. What is there stays.
	//
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty"`
	// EvictAfter is when work that is there has to leave too.
	//
	// +optional
	EvictAfter *metav1.Time `json:"evictAfter,omitempty"`
	// Taints keep away the parts of split roots that do not tolerate them. Objects that a
	// label sends to this cluster go to it all the same.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Taints []ClusterTaint `json:"taints,omitempty"`
	// SyncMode says who carries objects: the cluster controller (push), an agent that
	// it installs in the cluster (pull), or one that somebody else runs (none). Empty
	// means what the cluster controller was started with.
	//
	// +optional
	SyncMode SyncMode `json:"syncMode,omitempty"`
	// ClusterScopedResources are the cluster-scoped types, as resource.group, that may
	// be synced to this cluster; none by default. Types that give power over a cluster
	// (RBAC, admission, CRDs, API services) never are.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=317
	ClusterScopedResources []string `json:"clusterScopedResources,omitempty"`
}

// SyncMode says who carries objects to a cluster and back.
//
// +kubebuilder:validation:Enum="";push;pull;none
type SyncMode string

// The modes of syncing.
const (
	SyncPush SyncMode = "push"
	SyncPull SyncMode = "pull"
	SyncNone SyncMode = "none"
)

// SecretKeyReference names one value of a Secret.
type SecretKeyReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Key in the Secret: kubeconfig by default.
	//
	// +optional
	// +kubebuilder:default=kubeconfig
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// ClusterStatus is what the cluster controller and the syncer have found.
type ClusterStatus struct {
	// Location is the host and port of the cluster's API server.
	//
	// +optional
	Location string `json:"location,omitempty"`
	// UID is that of the cluster's kube-system namespace: another one at the same
	// address is another cluster.
	//
	// +optional
	UID string `json:"uid,omitempty"`
	// Version of the cluster's API server.
	//
	// +optional
	Version string `json:"version,omitempty"`
	// Capacity and Allocatable are the sums over the cluster's nodes.
	//
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// Conditions: Ready, which sums up the others; APIImporterReady; SyncerReady;
	// HeartbeatHealthy; DeletesPaused while a mass deletion waits for a go-ahead; Fencing
	// while the cluster stops fenced workloads by itself when its syncer is cut off.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// LastHeartbeatTime is when the syncer last said that it works.
	//
	// +optional
	LastHeartbeatTime *metav1.Time `json:"lastHeartbeatTime,omitempty"`
	// SameAs is an older Cluster that stands for the same physical cluster. Nothing new is
	// placed here as long as both are registered: they fail together.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	SameAs string `json:"sameAs,omitempty"`
	// SyncedResources are the types, as resource.group, that are carried.
	//
	// +optional
	// +listType=set
	SyncedResources []string `json:"syncedResources,omitempty"`
	// ResourceProblems are faults that concern one type and not the whole cluster. Other
	// types are carried as before.
	//
	// +optional
	// +listType=map
	// +listMapKey=resource
	// +listMapKey=reason
	// +kubebuilder:validation:MaxItems=1024
	ResourceProblems []ResourceProblem `json:"resourceProblems,omitempty"`
}

// ResourceProblem is what is wrong with one type in one cluster.
type ResourceProblem struct {
	// Resource is the type, as resource.group.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Resource string `json:"resource"`
	// Reason is one word for it.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// Message says what happened, and what to do.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Message string `json:"message,omitempty"`
	// Since is when it was first seen.
	Since metav1.Time `json:"since"`
}

// The reasons of a ResourceProblem.
const (
	// ResourceNotReadable: objects of the type cannot be listed or watched. What is there
	// stays; nothing new is placed there.
	ResourceNotReadable = "NotReadable"
	// ResourceNotServed: one side does not serve the type, or not in a common version.
	ResourceNotServed = "NotServed"
	// ResourceRequestsWait: so many requests for objects of the type wait for an answer that
	// further ones have to wait.
	ResourceRequestsWait = "RequestsWait"
	// ResourceIncompatible: the cluster's schema of the type no longer takes every object
	// that is valid in the kcp. Objects that it takes are carried.
	ResourceIncompatible = "Incompatible"
)

// SyncerResourceReasons are the reasons of the ResourceProblems that a syncer writes. The
// cluster controller writes the others.
var SyncerResourceReasons = []string{ResourceNotReadable, ResourceNotServed, ResourceRequestsWait}

// The types of a Cluster's conditions.
const (
	ConditionReady            = "Ready"
	ConditionAPIImporterReady = "APIImporterReady"
	ConditionSyncerReady      = "SyncerReady"
	ConditionHeartbeatHealthy = "HeartbeatHealthy"
	ConditionDeletesPaused    = "DeletesPaused"
	// ConditionFencing is True while the cluster stops fenced workloads by itself when its
	// syncer is cut off.
	ConditionFencing = "Fencing"
)

// The reasons of a Cluster's conditions.
const (
	ReasonClusterReady          = "ClusterReady"
	ReasonInvalidKubeConfig     = "InvalidKubeConfig"
	ReasonErrorCreatingClient   = "ErrorCreatingClient"
	ReasonErrorStartingSyncer   = "ErrorStartingSyncer"
	ReasonErrorInstallingSyncer = "ErrorInstallingSyncer"
	ReasonErrorStartingImporter = "ErrorStartingAPIImporter"
	ReasonClusterNotReady       = "ClusterNotReady"
	ReasonClusterUnreachable    = "ClusterUnreachable"
	ReasonClusterStatusUnknown  = "ClusterStatusUnknown"
	ReasonHeartbeatMissed       = "ErrorHeartbeatMissed"
	ReasonNoHeartbeat           = "NoHeartbeat"
	ReasonOtherCluster          = "OtherCluster"
	ReasonOwnKCP                = "RegisteredInItself"
	ReasonNoSyncer              = "SyncerIsRunByHand"
	ReasonTooManyDeletes        = "TooManyDeletes"
	// ReasonOldGoAhead is TooManyDeletes beside a go-ahead that was not given for them.
	ReasonOldGoAhead      = "OldGoAhead"
	ReasonHeartbeat       = "Heartbeat"
	ReasonImported        = "Imported"
	ReasonSomeNotImported = "SomeTypesNotImported"
)

// ClusterList is a list of Clusters.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Cluster `json:"items"`
}
