package v1alpha1

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Labels and annotations that send objects to clusters, and name their origin.
const (
	// ClusterLabel on an object upstream sends it to the one cluster that it names. Downstream it
	// is the cluster for which the object was created.
	ClusterLabel = "workloads.kcp.dev/cluster"
	// TargetLabelPrefix and a cluster's name together are a label. With the value "true" it sends
	// an object to that cluster. An object with several targets has several such labels.
	TargetLabelPrefix = "sync.workloads.kcp.dev/"
	// OwnedByLabel on a leaf is the name of its root.
	OwnedByLabel = "kcp.dev/owned-by"
	// LocatorAnnotation on a namespace downstream is the JSON of the [Locator] of its namespace
	// upstream.
	LocatorAnnotation = "kcp.dev/namespace-locator"
	// UpstreamUIDAnnotation on an object downstream is the UID of its counterpart. An object
	// without it does not belong to a syncer.
	UpstreamUIDAnnotation = "workloads.kcp.dev/upstream-uid"
	// NameAnnotation on a leaf is the name of its copy in the cluster, which is the name of its
	// root. Without this annotation, the copy has the leaf's name.
	NameAnnotation = "workloads.kcp.dev/name-in-cluster"
	// UpstreamNameAnnotation on an object downstream is its counterpart's name, if that is
	// different.
	UpstreamNameAnnotation = "workloads.kcp.dev/upstream-name"
	// ProducesAnnotation on a CRD, or on one object, lists the Secrets and ConfigMaps that a
	// controller creates in a cluster for the object. An example is
	// Secret={spec.target.name}|{metadata.name}. Commas separate the entries. The object goes to
	// each cluster that needs one of them.
	ProducesAnnotation = "workloads.kcp.dev/produces"
	// SelectsAnnotation on a CRD lists the fields in which its objects select Pods or Services of
	// their namespace. An example is Service=spec.selector. Commas separate the entries. The
	// objects go to the clusters of the selected objects.
	SelectsAnnotation = "workloads.kcp.dev/selects"
	// YieldAnnotation lists the fields that are set when the object is created downstream, and
	// are then yielded to other writers. Commas separate them. The only possible field is
	// spec.replicas.
	YieldAnnotation = "workloads.kcp.dev/yield"
	// YieldNone as its value yields no field, also not the replicas to an autoscaler.
	YieldNone = "none"
	// DeleteDataAnnotation with the value "true" lets a PersistentVolumeClaim be deleted
	// downstream when it leaves a cluster.
	DeleteDataAnnotation = "workloads.kcp.dev/delete-data"
	// RecreateAnnotation with the value "true" lets an object be deleted and created again
	// downstream if an immutable field has changed.
	RecreateAnnotation = "workloads.kcp.dev/recreate"
	// AllowDeletesAnnotation on a Cluster is the go-ahead for a mass deletion that was paused.
	// Its value is the number in the condition DeletesPaused.
	AllowDeletesAnnotation = "workloads.kcp.dev/allow-deletes"
	// OwnClusterAnnotation with the value "true" on a Cluster makes it count as a separate
	// cluster, although another Cluster registers the same physical cluster. An example is that
	// each of them uses a part of it.
	OwnClusterAnnotation = "workloads.kcp.dev/own-cluster"
	// StatusAnnotationPrefix and a cluster's name together are an annotation. Its value is the
	// JSON of the object's status in that cluster. Objects with several targets have it.
	StatusAnnotationPrefix = "status.workloads.kcp.dev/"
	// ProblemAnnotationPrefix and a cluster's name together are an annotation. Its value is why
	// the object in that cluster does not match the one upstream.
	ProblemAnnotationPrefix = "problem.workloads.kcp.dev/"
	// FinalizerPrefix and a cluster's name together are a finalizer. It keeps an object upstream
	// until it is deleted in that cluster.
	FinalizerPrefix = "syncer.workloads.kcp.dev/"
	// SyncerUserPrefix and a cluster's name together are the user name of its syncer upstream.
	// The user's UID is the UID of the Cluster, so a later Cluster of the same name has a
	// different user.
	SyncerUserPrefix = "system:rik:syncer:"
	// SyncerSigner is the signer of CertificateSigningRequests for the users of syncers.
	SyncerSigner = "rik.dev/syncer"
	// FieldManager is the owner of the fields that a syncer sets downstream.
	FieldManager = "rik-syncer"
	// ClusterFinalizer keeps a Cluster until the finalizers of its syncer are removed from the
	// objects upstream.
	ClusterFinalizer = "workload.kcp.dev/cluster-controller"
	// FenceNamespace in a physical cluster has one Lease for each Cluster that registers it. See
	// [FenceLeaseName].
	FenceNamespace = "rik-syncer"
	// FenceChallengeAnnotation on that Lease is the last challenge of the cluster's own
	// controller. A new challenge after each answer shows that the controller fences.
	FenceChallengeAnnotation = "workloads.kcp.dev/fence-challenge"
	// FenceAnswerAnnotation on that Lease is the challenge that the syncer had read before the
	// kcp last answered it.
	FenceAnswerAnnotation = "workloads.kcp.dev/fence-answer"
	// OnRemovalAnnotation on a Cluster with the value [OnRemovalDelete] deletes the parts of
	// roots in that cluster when the Cluster is deleted. Otherwise they stay.
	OnRemovalAnnotation = "workloads.kcp.dev/on-removal"
	OnRemovalDelete     = "delete"
	// SplitterFinalizer keeps such a Cluster until they are deleted.
	SplitterFinalizer = "workload.kcp.dev/splitter"
	// FollowsAnnotation on an object lists the clusters to which the splitter sent it, because
	// other objects need it there. Commas separate them. The splitter also removes these targets.
	// Targets that a user set are not in the list, and stay.
	FollowsAnnotation = "workloads.kcp.dev/follows"
	// DeployVerb on clusters/NAME lets a user send objects to that cluster.
	DeployVerb = "deploy"
)

// Locator identifies the namespace and the kcp to which a namespace downstream belongs.
type Locator struct {
	// UpstreamUID is the UID of the kcp's kube-system namespace.
	UpstreamUID string `json:"upstreamUID"`
	// Cluster is the Cluster's name, and ClusterUID its UID.
	Cluster    string `json:"cluster"`
	ClusterUID string `json:"clusterUID"`
	// Namespace is the name upstream.
	Namespace string `json:"namespace"`
}

// FenceLeaseName returns the name of the Lease that a Cluster's syncer renews in the physical
// cluster.
func FenceLeaseName(clusterUID string) string { return "cluster-" + clusterUID }

// NameInCluster returns the name of an object's copy in its cluster. Only the copy of a leaf can
// have a different name, and only the name of its root. No other object can claim that name
// there.
func NameInCluster(object metav1.Object) string {
	wanted := object.GetAnnotations()[NameAnnotation]
	ref := metav1.GetControllerOfNoCopy(object)
	if wanted == "" || ref == nil || ref.Name != wanted || object.GetLabels()[OwnedByLabel] == "" {
		return object.GetName()
	}
	return wanted
}

// Follows returns the clusters in [FollowsAnnotation].
func Follows(annotations map[string]string) []string {
	if list := annotations[FollowsAnnotation]; list != "" {
		return strings.Split(list, ",")
	}
	return nil
}

// Targets returns the clusters to which labels send an object, sorted and without duplicates. It
// omits names that no Cluster can have.
func Targets(labels map[string]string) []string {
	var names []string
	add := func(name string) {
		if len(validation.IsDNS1123Label(name)) == 0 {
			names = append(names, name)
		}
	}
	if name := labels[ClusterLabel]; name != "" {
		add(name)
	}
	for label, value := range labels {
		if name, ok := strings.CutPrefix(label, TargetLabelPrefix); ok && value == "true" {
			add(name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
