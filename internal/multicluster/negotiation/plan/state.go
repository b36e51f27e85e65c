package plan

import (
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// State is the complete input of a decision about one resource. The decision does not change it.
type State struct {
	Resource schema.GroupResource
	// Imports are those of every version of the resource, from every cluster. Imports that are
	// being deleted do not count.
	Imports []*apiresourcev1alpha1.APIResourceImport
	// Negotiated are the negotiated resources of every version.
	Negotiated []*apiresourcev1alpha1.NegotiatedAPIResource
	// CRD is the CRD of the resource, created by negotiation or by a user. It is nil if it does not
	// exist.
	CRD *apiextensionsv1.CustomResourceDefinition
	// Native are the versions that the kcp itself serves.
	Native []apiresourcev1alpha1.CommonAPIResourceSpec
	// Founded is when each Cluster was created, by name. Clusters that are not in it are sorted
	// after the others.
	Founded map[string]time.Time
	// Anchor is an additional owner of every CRD, which is never deleted. Without it, the garbage
	// collector would delete a CRD and its objects with the last NegotiatedAPIResource that is
	// deleted in the foreground. It may be nil.
	Anchor *metav1.OwnerReference
	// AutoPublish publishes what is negotiated for the first time.
	AutoPublish bool
	// Answers are the answers to questions of earlier decisions on the same state.
	Answers Answers
	// Refused is the server's error from writing the CRD of this state. It is empty if there was
	// no error.
	Refused string
}

// Plan is what to write. Executing it again changes nothing.
type Plan struct {
	// Ask contains the questions that must be answered first. If it is not empty, nothing of the
	// plan may be written.
	Ask []Question
	// Versions are the versions of the resource, the most stable and highest first.
	Versions []Version
	// CRD is the next step toward the desired CRD. There is one step at a time, because the next
	// one depends on the server's reaction.
	CRD CRDChange
	// Recheck is true while a change waits for stored objects to be deleted or changed. There is
	// no event for that.
	Recheck bool
}

// Version is the result for one version of the resource.
type Version struct {
	// Name is the name of the version, such as v1beta1.
	Name string
	// Have is the current NegotiatedAPIResource, or nil if it does not exist.
	Have *apiresourcev1alpha1.NegotiatedAPIResource
	// Want is the desired one. Its conditions have no times. If it is nil, there must be none.
	Want *apiresourcev1alpha1.NegotiatedAPIResource
	// ImportResults are the results for the imports of the version, in the order in which they are
	// admitted.
	ImportResults []ImportResult
}

// ImportResult is the result for an import.
type ImportResult struct {
	Import *apiresourcev1alpha1.APIResourceImport
	// Status is the desired status. Its conditions have no times.
	Status apiresourcev1alpha1.APIResourceImportStatus
}

// CRDAction is a kind of write of a CRD.
type CRDAction string

// The writes of a CRD.
const (
	// CRDKeep writes nothing.
	CRDKeep CRDAction = ""
	// CRDCreate creates it.
	CRDCreate CRDAction = "create"
	// CRDUpdate updates it, with its resource version as a precondition.
	CRDUpdate CRDAction = "update"
	// CRDTrim writes its status, with the same precondition. It removes versions in which nothing
	// is stored from storedVersions, so that they can be removed from the CRD.
	CRDTrim CRDAction = "trim"
	// CRDDelete deletes it, if it still has its UID and resource version.
	CRDDelete CRDAction = "delete"
)

// CRDChange is one write of the resource's CRD.
type CRDChange struct {
	Action CRDAction
	// CRD is the CRD to write. For a deletion, it is the current one.
	CRD *apiextensionsv1.CustomResourceDefinition
}

// Question is a question about the stored objects of the resource.
type Question struct {
	// Key is the key of the answer.
	Key string
	// Spec is the spec that every stored object must fit. nil asks whether any object is stored.
	Spec *apiresourcev1alpha1.CommonAPIResourceSpec
}

// Answers are the answers to questions, by key. An answer is nil if no object is stored, or if
// every stored object fits. Otherwise it is the obstacle.
type Answers map[string]*apiresourcev1alpha1.Obstacle
