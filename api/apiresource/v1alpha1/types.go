package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// CommonAPIResourceSpec describes one version of one type.
type CommonAPIResourceSpec struct {
	// +required
	GroupVersion GroupVersion `json:"groupVersion"`
	// +kubebuilder:validation:Enum=Cluster;Namespaced
	Scope apiextensionsv1.ResourceScope `json:"scope"`
	// Names as discovery gives them.
	Names apiextensionsv1.CustomResourceDefinitionNames `json:"names"`
	// OpenAPIV3Schema is the structural schema of the type, as in a CRD. It has one owner
	// as a whole.
	//
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +mapType=atomic
	OpenAPIV3Schema runtime.RawExtension `json:"openAPIV3Schema"`
	// +optional
	// +listType=map
	// +listMapKey=name
	SubResources []SubResource `json:"subResources,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=name
	ColumnDefinitions []ColumnDefinition `json:"columnDefinitions,omitempty"`
}

// GroupVersion of a type; the group of the first types is empty.
type GroupVersion struct {
	// +optional
	Group string `json:"group,omitempty"`
	// +kubebuilder:validation:MinLength=1
	Version string `json:"version"`
}

// SubResource of a type: status or scale.
type SubResource struct {
	// +kubebuilder:validation:Enum=status;scale
	Name string `json:"name"`
	// Scale is how its numbers are found; only of scale.
	//
	// +optional
	Scale *apiextensionsv1.CustomResourceSubresourceScale `json:"scale,omitempty"`
}

// The subresources that a CRD can have.
const (
	SubResourceStatus = "status"
	SubResourceScale  = "scale"
)

// ColumnDefinition is a column that kubectl prints.
type ColumnDefinition struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// +optional
	Format string `json:"format,omitempty"`
	// +optional
	Description string `json:"description,omitempty"`
	// +optional
	Priority int32  `json:"priority,omitempty"`
	JSONPath string `json:"jsonPath"`
}

// SchemaUpdateStrategy says when an import may narrow what was negotiated.
//
// +kubebuilder:validation:Enum=UpdateNever;UpdateUnpublished;UpdatePublished
type SchemaUpdateStrategy string

// The strategies.
const (
	UpdateNever       SchemaUpdateStrategy = "UpdateNever"
	UpdateUnpublished SchemaUpdateStrategy = "UpdateUnpublished"
	UpdatePublished   SchemaUpdateStrategy = "UpdatePublished"
)

// APIResourceImport is one version of one type as one cluster offers it. Its name is
// PLURAL.CLUSTER.VERSION.GROUP, with core for the group of the first types.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Location",type=string,JSONPath=`.spec.location`
// +kubebuilder:printcolumn:name="Schema update strategy",type=string,JSONPath=`.spec.schemaUpdateStrategy`
// +kubebuilder:printcolumn:name="API version",type=string,JSONPath=`.metadata.annotations.apiresource\.kcp\.dev/apiVersion`
// +kubebuilder:printcolumn:name="API resource",type=string,JSONPath=`.spec.names.plural`
// +kubebuilder:printcolumn:name="Compatible",type=string,JSONPath=`.status.conditions[?(@.type=="Compatible")].status`
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
type APIResourceImport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec APIResourceImportSpec `json:"spec"`
	// +optional
	Status APIResourceImportStatus `json:"status,omitempty"`
}

// APIResourceImportSpec is what a cluster offers.
type APIResourceImportSpec struct {
	CommonAPIResourceSpec `json:",inline"`
	// +optional
	// +kubebuilder:default=UpdateUnpublished
	SchemaUpdateStrategy SchemaUpdateStrategy `json:"schemaUpdateStrategy,omitempty"`
	// Location is the name of the Cluster.
	//
	// +kubebuilder:validation:MinLength=1
	Location string `json:"location"`
}

// APIResourceImportStatus is what negotiation made of an import.
type APIResourceImportStatus struct {
	// Conditions: Compatible and Available.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Obstacles say where the import differs from what was negotiated so that it is not
	// compatible, and Dropped what was left out of the negotiated schema because of it.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Obstacles []Obstacle `json:"obstacles,omitempty"`
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Dropped []Obstacle `json:"dropped,omitempty"`
}

// Obstacle is one place where two schemas cannot agree.
type Obstacle struct {
	// Path of the field, as in .spec.template.spec.containers[*].name; "." is the object.
	Path string `json:"path"`
	// Reason in words.
	Reason string `json:"reason"`
	// Locations are the clusters that stand in the way; empty: what is served.
	//
	// +optional
	// +listType=atomic
	Locations []string `json:"locations,omitempty"`
	// CounterExample is a document, as JSON, that one accepts and the other does not.
	//
	// +optional
	CounterExample string `json:"counterExample,omitempty"`
}

// The types of an import's conditions.
const (
	ConditionCompatible = "Compatible"
	ConditionAvailable  = "Available"
)

// NegotiatedAPIResource is what the clusters agreed on for one version of one type.
// Its name is PLURAL.VERSION.GROUP, with core for the group of the first types.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kcp
// +kubebuilder:printcolumn:name="Publish",type=boolean,JSONPath=`.spec.publish`
// +kubebuilder:printcolumn:name="API version",type=string,JSONPath=`.metadata.annotations.apiresource\.kcp\.dev/apiVersion`
// +kubebuilder:printcolumn:name="API resource",type=string,JSONPath=`.spec.names.plural`
// +kubebuilder:printcolumn:name="Published",type=string,JSONPath=`.status.conditions[?(@.type=="Published")].status`
// +kubebuilder:printcolumn:name="Enforced",type=string,JSONPath=`.status.conditions[?(@.type=="Enforced")].status`
type NegotiatedAPIResource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NegotiatedAPIResourceSpec `json:"spec"`
	// +optional
	Status NegotiatedAPIResourceStatus `json:"status,omitempty"`
}

// NegotiatedAPIResourceSpec is what was agreed on, and whether it is to be served.
type NegotiatedAPIResourceSpec struct {
	CommonAPIResourceSpec `json:",inline"`
	// Publish serves the type as a CRD.
	//
	// +optional
	Publish bool `json:"publish,omitempty"`
}

// NegotiatedAPIResourceStatus says how far publishing has come.
type NegotiatedAPIResourceStatus struct {
	// Conditions: Submitted, Published, Enforced, and InUse while a type that no
	// cluster offers any more is kept for the objects that are stored.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// The types of a negotiated resource's conditions.
const (
	ConditionSubmitted = "Submitted"
	ConditionPublished = "Published"
	ConditionEnforced  = "Enforced"
	ConditionInUse     = "InUse"
)

// The reasons of the conditions of imports and negotiated resources.
const (
	ReasonIncompatibleSchema = "IncompatibleSchema"
	ReasonInvalidSchema      = "InvalidSchema"
	ReasonNegotiated         = "Negotiated"
	ReasonPublished          = "Published"
	ReasonEnforced           = "Enforced"
	ReasonInUse              = "InUse"
	ReasonNameConflict       = "NameConflict"
	ReasonNotEstablished     = "NotEstablished"
	ReasonNotServable        = "NotServable"
)

// APIVersionAnnotation on imports and negotiated resources is the type's group/version,
// for people.
const APIVersionAnnotation = "apiresource.kcp.dev/apiVersion"

// VersionsAnnotation on imports names the versions of the type that the cluster serves and
// that are not imported, one on each line, with the reason: a kcp converts nothing.
const VersionsAnnotation = "apiresource.kcp.dev/versions-not-imported"

// What negotiation notes down on negotiated resources and CRDs.
const (
	// AgreedByAnnotation lists, with commas, the clusters whose imports the schema is
	// good for. When one of them has left, the rest is negotiated anew.
	AgreedByAnnotation = "apiresource.kcp.dev/agreed-by"
	// EnforcedByAnnotation says who decides on the schema instead of the imports:
	// EnforcedByCRD or EnforcedByServer.
	EnforcedByAnnotation = "apiresource.kcp.dev/enforced-by"
	// NegotiatedAnnotation with the value "true" is on CRDs that negotiation has made.
	// An owner would not do: the garbage collector takes references away.
	NegotiatedAnnotation = "apiresource.kcp.dev/negotiated"
	// Finalizer holds a negotiated resource while objects of its type are stored.
	Finalizer = "apiresource.kcp.dev/negotiation"
)

// Who enforces a schema.
const (
	// EnforcedByCRD is a CustomResourceDefinition that somebody made by hand.
	EnforcedByCRD = "CustomResourceDefinition"
	// EnforcedByServer is the kcp, which serves the type itself.
	EnforcedByServer = "kcp"
)

// CoreGroup stands in names for the group of the first types, which is empty.
const CoreGroup = "core"

// ImportName is the name of an import.
func ImportName(gvr schema.GroupVersionResource, location string) string {
	return gvr.Resource + "." + location + "." + gvr.Version + "." + groupName(gvr.Group)
}

// NegotiatedName is the name of a negotiated resource.
func NegotiatedName(gvr schema.GroupVersionResource) string {
	return gvr.Resource + "." + gvr.Version + "." + groupName(gvr.Group)
}

func groupName(group string) string {
	if group == "" {
		return CoreGroup
	}
	return group
}

// GVR is the type that is described.
func (s *CommonAPIResourceSpec) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: s.GroupVersion.Group, Version: s.GroupVersion.Version, Resource: s.Names.Plural}
}

// APIResourceImportList is a list of imports.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type APIResourceImportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []APIResourceImport `json:"items"`
}

// NegotiatedAPIResourceList is a list of negotiated resources.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type NegotiatedAPIResourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NegotiatedAPIResource `json:"items"`
}
