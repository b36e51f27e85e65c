package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Annotations on a root that say what is wished for it alone.
const (
	// HintPrefix stands before the name of a field of [PlacementPolicy].
	HintPrefix = "placement.workloads.kcp.dev/"
	// NamesAnnotation says what the copies of a root's leaves are called in their clusters, with
	// the value NamesRoot as the root, and with NamesLeaf as the leaf. It is for those that are
	// made from then on.
	NamesAnnotation = HintPrefix + "names"
	NamesRoot       = "root"
	NamesLeaf       = "leaf"
	// FenceAfterAnnotation is the field FenceAfter.
	FenceAfterAnnotation = "workloads.kcp.dev/fence-after"
)

// Placement says how roots of its namespace are divided over the clusters: those that
// TargetRef names or that Selector selects. Annotations on a root
// ([HintPrefix]) say the same for that root alone, and go before this, field by field.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,categories=kcp,shortName=pl
// +kubebuilder:printcolumn:name="Strategy",type=string,JSONPath=`.spec.strategy`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.targetRef.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Placement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec PlacementSpec `json:"spec"`
}

// PlacementSpec says which roots are meant, and what is wished for them.
//
// +kubebuilder:validation:XValidation:rule="has(self.targetRef) != has(self.selector)",message="give targetRef or selector, and not both"
type PlacementSpec struct {
	// TargetRef names one root.
	//
	// +optional
	TargetRef *TargetReference `json:"targetRef,omitempty"`
	// Selector selects roots by their labels, of any type; an empty one selects all.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	PlacementPolicy `json:",inline"`
}

// TargetReference names an object of the Placement's namespace.
type TargetReference struct {
	// Group of the object's type; empty for the first types, as Service.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// PlacementPolicy is what is wished for a root. What is not set has the default that its
// field names.
//
// +kubebuilder:validation:XValidation:rule="(has(self.strategy) && self.strategy == 'spread') == has(self.topologyKey)",message="topologyKey goes with the strategy spread, which needs it"
// +kubebuilder:validation:XValidation:rule="!has(self.weights) || has(self.strategy) && self.strategy in ['weighted', 'spread']",message="weights go with the strategies weighted and spread"
// +kubebuilder:validation:XValidation:rule="!has(self.strategy) || self.strategy != 'weighted' || has(self.weights)",message="the strategy weighted needs weights"
type PlacementPolicy struct {
	// Divide says whether the root's replicas are divided, or the root as a whole goes
	// to one cluster or to every one. By default its type says.
	//
	// +optional
	Divide Division `json:"divide,omitempty"`
	// Strategy of dividing: even by default.
	//
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`
	// TopologyKey is the label of Clusters by whose values the strategy spread groups
	// them. Those without it are one group.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey,omitempty"`
	// Weights of clusters. One that is not named has the weight 1; one with the weight 0
	// gets no part.
	//
	// +optional
	// +listType=map
	// +listMapKey=cluster
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Weights []ClusterWeight `json:"weights,omitempty"`
	// Clusters selects, by their labels, the clusters that may have parts; all by
	// default. Each Cluster has the label workloads.kcp.dev/cluster with its name here,
	// whether it is written on it or not.
	//
	// +optional
	Clusters *metav1.LabelSelector `json:"clusters,omitempty"`
	// NotClusters selects clusters that have no part, also of those that Clusters selects.
	//
	// +optional
	NotClusters *metav1.LabelSelector `json:"notClusters,omitempty"`
	// Tolerations of taints of Clusters.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []ClusterToleration `json:"tolerations,omitempty"`
	// MaxSurge is how many replicas there may be above the whole while parts are moved: a
	// number, or a part of the whole in percent, rounded up. With 0 a part is taken away
	// before it is given to another cluster. By default it is 25% for what is divided, and
	// 0 for what is whole.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 1000000 : self.matches('^([0-9]|[1-9][0-9]|100)%$')",message="a number from 0 to 1000000, or from 0% to 100%"
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
	// MaxMoves limits how many replicas are moved between clusters that work. What was
	// lost with a cluster is replaced without a limit. By default there is none.
	//
	// +optional
	MaxMoves *MoveLimit `json:"maxMoves,omitempty"`
	// GracePeriod is how long a cluster that is not ready keeps its parts: 5m by default.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="a time of at most 2562047h"
	GracePeriod *metav1.Duration `json:"gracePeriod,omitempty"`
	// FenceAfter asks for a fence: a cluster that is cut off stops the root's replicas
	// after this time by itself, and they are replaced only when it must have done so.
	// Clusters that cannot do that get no part. There is no fence by default, and at most
	// the parts of the clusters that are cut off run twice.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s')",message="at least 10s"
	FenceAfter *metav1.Duration `json:"fenceAfter,omitempty"`
}

// Division says what is done with a root.
//
// +kubebuilder:validation:Enum=replicas;whole;everywhere
type Division string

// The divisions.
const (
	// DivideReplicas gives each cluster a part of the replicas.
	DivideReplicas Division = "replicas"
	// DivideWhole sends the root as it is to one cluster.
	DivideWhole Division = "whole"
	// DivideEverywhere sends the root as it is to every cluster that may have it.
	DivideEverywhere Division = "everywhere"
)

// Strategy says by what measure a root is divided.
//
// +kubebuilder:validation:Enum=even;weighted;capacity;spread
type Strategy string

// The strategies.
const (
	// StrategyEven gives each cluster the same.
	StrategyEven Strategy = "even"
	// StrategyWeighted divides in proportion to Weights.
	StrategyWeighted Strategy = "weighted"
	// StrategyCapacity divides in proportion to how many replicas the clusters'
	// allocatable resources are enough for.
	StrategyCapacity Strategy = "capacity"
	// StrategySpread gives each value of a label of the clusters the same, and divides
	// that among the clusters that have it, evenly or by Weights.
	StrategySpread Strategy = "spread"
)

// ClusterWeight is the weight of one cluster.
type ClusterWeight struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Cluster string `json:"cluster"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight int32 `json:"weight"`
}

// MoveLimit is a number of moves in a time.
type MoveLimit struct {
	// Count of replicas; of whole roots, of roots.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Count int32 `json:"count"`
	// Interval begins with a move and is 10m by default.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="a time of at most 2562047h"
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// TaintEffect says what a taint of a Cluster does to what does not tolerate it.
//
// +kubebuilder:validation:Enum=NoSchedule;NoExecute
type TaintEffect string

// The effects of taints.
const (
	// TaintNoSchedule keeps new parts away. What is there stays.
	TaintNoSchedule TaintEffect = "NoSchedule"
	// TaintNoExecute makes what is there leave too.
	TaintNoExecute TaintEffect = "NoExecute"
)

// ClusterTaint keeps away from a Cluster the parts of roots that do not tolerate it.
type ClusterTaint struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Value  string      `json:"value,omitempty"`
	Effect TaintEffect `json:"effect"`
}

// ClusterToleration tolerates the taints that it matches.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) || has(self.operator) && self.operator == 'Exists'",message="without a key the operator has to be Exists"
// +kubebuilder:validation:XValidation:rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value)",message="the operator Exists takes no value"
type ClusterToleration struct {
	// Key of the taint; every one if it is empty, with the operator Exists.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`
	// Operator compares the value: Equal by default.
	//
	// +optional
	Operator TolerationOperator `json:"operator,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`
	// Effect of the taint; both if it is empty.
	//
	// +optional
	Effect TaintEffect `json:"effect,omitempty"`
}

// TolerationOperator says how a toleration looks at a taint's value.
//
// +kubebuilder:validation:Enum=Equal;Exists
type TolerationOperator string

// The operators of tolerations.
const (
	TolerationEqual  TolerationOperator = "Equal"
	TolerationExists TolerationOperator = "Exists"
)

// Tolerates says whether a taint is tolerated.
func (t ClusterToleration) Tolerates(taint ClusterTaint) bool {
	switch {
	case t.Effect != "" && t.Effect != taint.Effect, t.Key != "" && t.Key != taint.Key:
		return false
	case t.Operator == TolerationExists:
		return true
	}
	return t.Key != "" && t.Value == taint.Value
}

// PlacementList is a list of Placements.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type PlacementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Placement `json:"items"`
}
