package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Annotations on a root that set its own policy.
const (
	// HintPrefix and the name of a field of [PlacementPolicy] together are the annotation for
	// that field.
	HintPrefix = "placement.workloads.kcp.dev/"
	// NamesAnnotation selects the names of the copies of a root's leaves in their clusters. With
	// the value NamesRoot a copy has the name of the root, and with NamesLeaf that of the leaf.
	// It applies to copies that are created later.
	NamesAnnotation = HintPrefix + "names"
	NamesRoot       = "root"
	NamesLeaf       = "leaf"
	// FenceAfterAnnotation sets the field FenceAfter.
	FenceAfterAnnotation = "workloads.kcp.dev/fence-after"
)

// Placement is how roots of its namespace are split over the clusters. It applies to the root
// that TargetRef names, or to the roots that Selector selects. Annotations on a root
// ([HintPrefix]) set the same fields for that root alone. Each of them overrides the field of the
// Placement.
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

// PlacementSpec selects roots, and has the policy for them.
//
// +kubebuilder:validation:XValidation:rule="has(self.targetRef) != has(self.selector)",message="give targetRef or selector, and not both"
type PlacementSpec struct {
	// TargetRef names one root.
	//
	// +optional
	TargetRef *TargetReference `json:"targetRef,omitempty"`
	// Selector selects roots of any type by their labels. An empty selector selects all roots.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	PlacementPolicy `json:",inline"`
}

// TargetReference refers to an object of the Placement's namespace.
type TargetReference struct {
	// Group is the API group of the object's type. It is empty for the core group, for example
	// for a Service.
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

// PlacementPolicy is the policy for splitting a root. A field that is not set has the default
// that its description names.
//
// +kubebuilder:validation:XValidation:rule="(has(self.strategy) && self.strategy == 'spread') == has(self.topologyKey)",message="topologyKey goes with the strategy spread, which needs it"
// +kubebuilder:validation:XValidation:rule="!has(self.weights) || has(self.strategy) && self.strategy in ['weighted', 'spread']",message="weights go with the strategies weighted and spread"
// +kubebuilder:validation:XValidation:rule="!has(self.strategy) || self.strategy != 'weighted' || has(self.weights)",message="the strategy weighted needs weights"
type PlacementPolicy struct {
	// Divide is what is split. Either the root's replicas are split over clusters, or the whole
	// root goes to one cluster, or to every cluster. The default depends on the root's type.
	//
	// +optional
	Divide Division `json:"divide,omitempty"`
	// Strategy is how replicas are split: even by default.
	//
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`
	// TopologyKey is a label of Clusters. The strategy spread groups Clusters by its values.
	// Clusters without the label are one group.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey,omitempty"`
	// Weights are the weights of clusters. A cluster that is not in the list has the weight 1. A
	// cluster with the weight 0 gets no part.
	//
	// +optional
	// +listType=map
	// +listMapKey=cluster
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Weights []ClusterWeight `json:"weights,omitempty"`
	// Clusters selects the clusters that may have parts, by their labels. All clusters may by
	// default. For this selector, each Cluster has the label workloads.kcp.dev/cluster with its
	// own name, even if the object does not have it.
	//
	// +optional
	Clusters *metav1.LabelSelector `json:"clusters,omitempty"`
	// NotClusters selects clusters that get no part. It overrides Clusters.
	//
	// +optional
	NotClusters *metav1.LabelSelector `json:"notClusters,omitempty"`
	// Tolerations let the root's parts run on Clusters with these taints.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []ClusterToleration `json:"tolerations,omitempty"`
	// MaxSurge is how many replicas may exist above the total while parts move: a number, or a
	// percentage of the total, rounded up. With 0, replicas stop in the old cluster before they
	// start in the new one. The default is 25% if replicas are split, and 0 for a whole root.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=10
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 1000000 : self.matches('^([0-9]|[1-9][0-9]|100)%$')",message="a number from 0 to 1000000, or from 0% to 100%"
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
	// MaxMoves limits how many replicas move between clusters that are ready. Replicas of a lost
	// cluster are replaced without this limit. There is no limit by default.
	//
	// +optional
	MaxMoves *MoveLimit `json:"maxMoves,omitempty"`
	// GracePeriod is how long a cluster that is not ready keeps its parts. The default is 5m.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="a time of at most 2562047h"
	GracePeriod *metav1.Duration `json:"gracePeriod,omitempty"`
	// FenceAfter sets a fence. A disconnected cluster stops the root's replicas by itself after
	// this time. They are replaced only after it must have stopped them. Clusters that cannot do
	// this get no part. There is no fence by default. Without one, the parts of disconnected
	// clusters may run twice.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s')",message="at least 10s"
	FenceAfter *metav1.Duration `json:"fenceAfter,omitempty"`
}

// Division is what is split.
//
// +kubebuilder:validation:Enum=replicas;whole;everywhere
type Division string

// The divisions.
const (
	// DivideReplicas splits the replicas over clusters.
	DivideReplicas Division = "replicas"
	// DivideWhole sends the whole root to one cluster.
	DivideWhole Division = "whole"
	// DivideEverywhere sends the whole root to every cluster that may have it.
	DivideEverywhere Division = "everywhere"
)

// Strategy is how replicas are split over clusters.
//
// +kubebuilder:validation:Enum=even;weighted;capacity;spread
type Strategy string

// The strategies.
const (
	// StrategyEven gives each cluster the same number.
	StrategyEven Strategy = "even"
	// StrategyWeighted splits in proportion to Weights.
	StrategyWeighted Strategy = "weighted"
	// StrategyCapacity splits in proportion to the number of replicas for which the clusters'
	// allocatable resources are sufficient.
	StrategyCapacity Strategy = "capacity"
	// StrategySpread gives each value of a label of the clusters the same number. It splits that
	// number over the clusters with the value, evenly or by Weights.
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

// MoveLimit is a number of moves in a time interval.
type MoveLimit struct {
	// Count is a number of replicas. For whole roots it is a number of roots.
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

// TaintEffect is the effect of a Cluster's taint on parts that do not tolerate it.
//
// +kubebuilder:validation:Enum=NoSchedule;NoExecute
type TaintEffect string

// The effects of taints.
const (
	// TaintNoSchedule keeps new parts away. Existing parts stay.
	TaintNoSchedule TaintEffect = "NoSchedule"
	// TaintNoExecute also moves existing parts away.
	TaintNoExecute TaintEffect = "NoExecute"
)

// ClusterTaint keeps parts of roots that do not tolerate it away from a Cluster.
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
	// Key is the key of the taint. An empty key with the operator Exists matches every taint.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`
	// Operator is how the value is compared: Equal by default.
	//
	// +optional
	Operator TolerationOperator `json:"operator,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`
	// Effect is the effect of the taint. An empty effect matches both.
	//
	// +optional
	Effect TaintEffect `json:"effect,omitempty"`
}

// TolerationOperator is how a toleration compares a taint's value.
//
// +kubebuilder:validation:Enum=Equal;Exists
type TolerationOperator string

// The operators of tolerations.
const (
	TolerationEqual  TolerationOperator = "Equal"
	TolerationExists TolerationOperator = "Exists"
)

// Tolerates returns whether t tolerates a taint.
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
