package plan

import (
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// State is everything that a decision about one resource looks at. Nothing in it
// is changed.
type State struct {
	Resource schema.GroupResource
	// Imports are those of every version of the resource, from every cluster. Those
	// that are being deleted count as gone.
	Imports []*apiresourcev1alpha1.APIResourceImport
	// Negotiated are the resource's, of every version.
	Negotiated []*apiresourcev1alpha1.NegotiatedAPIResource
	// CRD of the resource, whoever made it; nil when there is none.
	CRD *apiextensionsv1.CustomResourceDefinition
	// Native are the versions that the kcp serves itself.
	Native []apiresourcev1alpha1.CommonAPIResourceSpec
	// Founded is when each Cluster was created, by name. Clusters that are not in it
	// come after those that are.
	Founded map[string]time.Time
	// Anchor is a second owner of every CRD, which is never deleted: without it the
	// garbage collector would take a CRD, and its objects, with the last
	// NegotiatedAPIResource that is deleted in the foreground. None when nil.
	Anchor *metav1.OwnerReference
	// AutoPublish publishes what is negotiated for the first time.
	AutoPublish bool
	// Answers to the questions of earlier decisions on the same state.
	Answers Answers
	// Refused is what the server answered when the CRD of this state was written;
	// empty when it was not refused.
	Refused string
}

// Plan is what to write. Carrying it out twice changes nothing the second time.
type Plan struct {
	// Ask is what has to be known first. Nothing of a plan that asks may be written.
	Ask []Question
	// Versions of the resource, the most stable and highest first.
	Versions []Version
	// CRD is the next step toward what is to be served. One step at a time: the
	// next follows from what the server makes of it.
	CRD CRDChange
	// Recheck is set while something waits for stored objects to go away or to
	// change, of which nothing tells.
	Recheck bool
}

// Version is what becomes of one version of the resource.
type Version struct {
	// Name of the version, as in v1beta1.
	Name string
	// Have is the NegotiatedAPIResource as it is; nil when there is none.
	Have *apiresourcev1alpha1.NegotiatedAPIResource
	// Want is as it should be, its conditions without times; nil: there should be none.
	Want *apiresourcev1alpha1.NegotiatedAPIResource
	// Verdicts on the imports of the version, in the order in which they are admitted.
	Verdicts []Verdict
}

// Verdict is what was made of an import.
type Verdict struct {
	Import *apiresourcev1alpha1.APIResourceImport
	// Status as it should be, its conditions without times.
	Status apiresourcev1alpha1.APIResourceImportStatus
}

// CRDAction is a write of a CRD.
type CRDAction string

// The writes of a CRD.
const (
	// CRDKeep writes nothing.
	CRDKeep CRDAction = ""
	// CRDCreate makes it.
	CRDCreate CRDAction = "create"
	// CRDUpdate changes it, guarded by its resource version.
	CRDUpdate CRDAction = "update"
	// CRDTrim writes its status, guarded likewise: versions in which nothing is stored
	// leave storedVersions, which lets them leave the CRD.
	CRDTrim CRDAction = "trim"
	// CRDDelete deletes it, if it still has its UID and resource version.
	CRDDelete CRDAction = "delete"
)

// CRDChange is one write of the resource's CRD.
type CRDChange struct {
	Action CRDAction
	// CRD as it is to be written, or as it is when it is deleted.
	CRD *apiextensionsv1.CustomResourceDefinition
}

// Question is something about the stored objects of the resource.
type Question struct {
	// Key of the answer.
	Key string
	// Spec that every stored object has to fit; nil asks whether any is stored.
	Spec *apiresourcev1alpha1.CommonAPIResourceSpec
}

// Answers to questions, by their key: nil when no object is stored, or when every
// stored object fits; else what stands in the way.
type Answers map[string]*apiresourcev1alpha1.Obstacle
