package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cluster registers a physical cluster, of rik or Kubernetes, to which objects can be sent. Its
// name is a DNS label, because labels and namespaces contain it.
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

// ClusterSpec is how to connect to a cluster, and what may be sent to it.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.kubeconfig) && self.kubeconfig.size() > 0 && has(self.kubeconfigSecretRef))",message="give kubeconfig or kubeconfigSecretRef, not both"
type ClusterSpec struct {
	// Kubeconfig is the kubeconfig for the cluster. Every user who may read this object can read
	// its credentials. Use KubeconfigSecretRef instead.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=262144
	KubeConfig string `json:"kubeconfig,omitempty"`
	// KubeconfigSecretRef refers to a Secret with the kubeconfig. A change of the Secret takes
	// effect at once.
	//
	// +optional
	KubeconfigSecretRef *SecretKeyReference `json:"kubeconfigSecretRef,omitempty"`
	// Unschedulable keeps new objects away. Existing objects stay.
	//
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty"`
	// EvictAfter is the time after which existing parts move away too.
	//
	// +optional
	EvictAfter *metav1.Time `json:"evictAfter,omitempty"`
	// Taints keep parts of roots that do not tolerate them away. Objects that a user's label
	// sends to this cluster still go there.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Taints []ClusterTaint `json:"taints,omitempty"`
	// SyncMode is which syncer copies the objects. With push it runs in the cluster controller.
	// With pull it is an agent that the cluster controller installs in the cluster. With none the
	// administrator runs a syncer. Defaults to the setting of the cluster controller.
	//
	// +optional
	SyncMode SyncMode `json:"syncMode,omitempty"`
	// ClusterScopedResources are the cluster-scoped types that may be synced to this cluster, as
	// resource.group. There are none by default. Types that control a cluster (RBAC, admission,
	// CRDs, API services) are never synced.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=317
	ClusterScopedResources []string `json:"clusterScopedResources,omitempty"`
}

// SyncMode is which syncer copies objects to a cluster, and their status back.
//
// +kubebuilder:validation:Enum="";push;pull;none
type SyncMode string

// The modes of syncing.
const (
	SyncPush SyncMode = "push"
	SyncPull SyncMode = "pull"
	SyncNone SyncMode = "none"
)

// SecretKeyReference refers to one value of a Secret.
type SecretKeyReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Key is the key in the Secret: kubeconfig by default.
	//
	// +optional
	// +kubebuilder:default=kubeconfig
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// ClusterStatus is what the cluster controller and the syncer have observed.
type ClusterStatus struct {
	// Location is the host and port of the cluster's API server.
	//
	// +optional
	Location string `json:"location,omitempty"`
	// UID is the UID of the cluster's kube-system namespace. A different UID at the same address
	// means that it is a different cluster.
	//
	// +optional
	UID string `json:"uid,omitempty"`
	// Version is the version of the cluster's API server.
	//
	// +optional
	Version string `json:"version,omitempty"`
	// Capacity and Allocatable are the sums over the cluster's nodes.
	//
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// Conditions are Ready, which summarizes the others, APIImporterReady, SyncerReady and
	// HeartbeatHealthy. DeletesPaused is True while a mass deletion waits for a go-ahead. Fencing
	// is True if the cluster stops fenced workloads by itself when its syncer is disconnected.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// LastHeartbeatTime is when the syncer sent its last heartbeat.
	//
	// +optional
	LastHeartbeatTime *metav1.Time `json:"lastHeartbeatTime,omitempty"`
	// SameAs is the name of an older Cluster that registers the same physical cluster. While both
	// are registered, no new part is placed here, because both fail together.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	SameAs string `json:"sameAs,omitempty"`
	// SyncedResources are the types that are synced, as resource.group.
	//
	// +optional
	// +listType=set
	SyncedResources []string `json:"syncedResources,omitempty"`
	// ResourceProblems are problems that affect one type and not the whole cluster. Other types
	// are synced as before.
	//
	// +optional
	// +listType=map
	// +listMapKey=resource
	// +listMapKey=reason
	// +kubebuilder:validation:MaxItems=1024
	ResourceProblems []ResourceProblem `json:"resourceProblems,omitempty"`
	// PausedDeletes are the deletions that wait for a go-ahead. It is not set if there are none.
	// The next syncer of this cluster continues the same pauses.
	//
	// +optional
	PausedDeletes *PausedDeletes `json:"pausedDeletes,omitempty"`
}

// PausedDeletes are deletions that wait for a go-ahead, because there were too many at once.
type PausedDeletes struct {
	// AllNamespaces is true if the deletions of every namespace wait, because all namespaces
	// together exceeded their limit. It is also true if more namespaces are paused than the list
	// can contain.
	//
	// +optional
	AllNamespaces bool `json:"allNamespaces,omitempty"`
	// Namespaces are the namespaces whose deletions wait.
	//
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +kubebuilder:validation:MaxItems=256
	Namespaces []PausedNamespace `json:"namespaces,omitempty"`
}

// MaxPausedNamespaces is how many namespaces a PausedDeletes can contain.
const MaxPausedNamespaces = 256

// PausedNamespace contains the deletions of one namespace that wait for a go-ahead.
type PausedNamespace struct {
	// Namespace is the namespace in the kcp. It is empty for objects without a namespace.
	//
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Deletes is how many deletions wait.
	Deletes int64 `json:"deletes"`
}

// ResourceProblem is a problem of one type in one cluster.
type ResourceProblem struct {
	// Resource is the type, as resource.group.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Resource string `json:"resource"`
	// Reason is one word in CamelCase.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// Message is what happened, and what to do.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Message string `json:"message,omitempty"`
	// Since is when the problem was first observed.
	Since metav1.Time `json:"since"`
}

// The reasons of a ResourceProblem.
const (
	// ResourceNotReadable means that objects of the type cannot be listed or watched. Existing
	// objects stay. No new ones are placed there.
	ResourceNotReadable = "NotReadable"
	// ResourceNotServed means that one side does not serve the type, or that the sides serve no
	// common version.
	ResourceNotServed = "NotServed"
	// ResourceRequestsWait means that so many requests for objects of the type wait for an answer
	// that further requests are delayed.
	ResourceRequestsWait = "RequestsWait"
	// ResourceIncompatible means that the cluster's schema no longer accepts every object that is
	// valid in the kcp. Objects that it accepts are synced.
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
	// ConditionFencing is True if the cluster stops fenced workloads by itself when its syncer is
	// disconnected.
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
	// ReasonOldGoAhead is like TooManyDeletes, and means that the existing go-ahead was not given
	// for these deletions.
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
