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
	// Names are the names of the type in discovery.
	Names apiextensionsv1.CustomResourceDefinitionNames `json:"names"`
	// OpenAPIV3Schema is the structural schema of the type, as in a CRD. Server-side apply treats
	// it as one field.
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

// GroupVersion is the API group and version of a type. The core group is empty.
type GroupVersion struct {
	// +optional
	Group string `json:"group,omitempty"`
	// +kubebuilder:validation:MinLength=1
	Version string `json:"version"`
}

// SubResource is a subresource of a type: status or scale.
type SubResource struct {
	// +kubebuilder:validation:Enum=status;scale
	Name string `json:"name"`
	// Scale has the paths of the replica fields. Only the subresource scale has it.
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

// SchemaUpdateStrategy is when an import may narrow the negotiated schema.
//
// +kubebuilder:validation:Enum=UpdateNever;UpdateUnpublished;UpdatePublished
type SchemaUpdateStrategy string

// The strategies.
const (
	UpdateNever       SchemaUpdateStrategy = "UpdateNever"
	UpdateUnpublished SchemaUpdateStrategy = "UpdateUnpublished"
	UpdatePublished   SchemaUpdateStrategy = "UpdatePublished"
)

// APIResourceImport is one version of one type in one cluster. Its name is
// PLURAL.CLUSTER.VERSION.GROUP, with core for the core group.
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

// APIResourceImportSpec describes the type in the cluster.
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

// APIResourceImportStatus is the result of the negotiation for an import.
type APIResourceImportStatus struct {
	// Conditions are Compatible and Available.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Obstacles are the places that make the import incompatible with the negotiated schema.
	// Dropped are the fields that the negotiated schema lacks because of this import.
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

// Obstacle is one place where two schemas do not agree.
type Obstacle struct {
	// Path is the path of the field, such as .spec.template.spec.containers[*].name. The path "."
	// is the object.
	Path string `json:"path"`
	// Reason is a description of the difference.
	Reason string `json:"reason"`
	// Locations are the clusters whose schemas cause the obstacle. An empty list means the schema
	// that the kcp serves.
	//
	// +optional
	// +listType=atomic
	Locations []string `json:"locations,omitempty"`
	// CounterExample is a document in JSON that one schema accepts and the other does not.
	//
	// +optional
	CounterExample string `json:"counterExample,omitempty"`
}

// The types of an import's conditions.
const (
	ConditionCompatible = "Compatible"
	ConditionAvailable  = "Available"
)

// NegotiatedAPIResource is the schema on which the clusters agree for one version of one type.
// Its name is PLURAL.VERSION.GROUP, with core for the core group.
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

// NegotiatedAPIResourceSpec is the schema on which the clusters agree, and whether the kcp serves
// it.
type NegotiatedAPIResourceSpec struct {
	CommonAPIResourceSpec `json:",inline"`
	// Publish makes the kcp serve the type as a CRD.
	//
	// +optional
	Publish bool `json:"publish,omitempty"`
}

// NegotiatedAPIResourceStatus is the state of the publication.
type NegotiatedAPIResourceStatus struct {
	// Conditions are Submitted, Published, Enforced and InUse. InUse is True while a type that no
	// cluster offers any more is kept for its stored objects.
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

// APIVersionAnnotation on imports and negotiated resources is the type's group/version, for users
// to read.
const APIVersionAnnotation = "apiresource.kcp.dev/apiVersion"

// VersionsAnnotation on imports lists the versions that the cluster serves and that are not
// imported, because a kcp does not convert objects. Each line has a version and the reason.
const VersionsAnnotation = "apiresource.kcp.dev/versions-not-imported"

// Annotations and the finalizer that negotiation sets on negotiated resources and CRDs.
const (
	// AgreedByAnnotation lists the clusters with whose imports the schema is compatible. Commas
	// separate them. When one of them is removed, the others negotiate again.
	AgreedByAnnotation = "apiresource.kcp.dev/agreed-by"
	// EnforcedByAnnotation is what determines the schema instead of the imports: EnforcedByCRD or
	// EnforcedByServer.
	EnforcedByAnnotation = "apiresource.kcp.dev/enforced-by"
	// NegotiatedAnnotation with the value "true" marks CRDs that negotiation has created. An
	// owner reference cannot mark them, because the garbage collector removes owner references.
	NegotiatedAnnotation = "apiresource.kcp.dev/negotiated"
	// Finalizer keeps a negotiated resource while objects of its type are stored.
	Finalizer = "apiresource.kcp.dev/negotiation"
)

// The values of EnforcedByAnnotation.
const (
	// EnforcedByCRD is a CustomResourceDefinition that a user created.
	EnforcedByCRD = "CustomResourceDefinition"
	// EnforcedByServer is the kcp, which serves the type itself.
	EnforcedByServer = "kcp"
)

// CoreGroup is in names instead of the core group, which is empty.
const CoreGroup = "core"

// ImportName returns the name of an import.
func ImportName(gvr schema.GroupVersionResource, location string) string {
	return gvr.Resource + "." + location + "." + gvr.Version + "." + groupName(gvr.Group)
}

// NegotiatedName returns the name of a negotiated resource.
func NegotiatedName(gvr schema.GroupVersionResource) string {
	return gvr.Resource + "." + gvr.Version + "." + groupName(gvr.Group)
}

func groupName(group string) string {
	if group == "" {
		return CoreGroup
	}
	return group
}

// GVR returns the type that s describes.
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
