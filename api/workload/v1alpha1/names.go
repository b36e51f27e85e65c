package v1alpha1

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Labels and annotations that send objects to clusters and tell where they came from.
const (
	// ClusterLabel on an object upstream sends it to the one cluster that it names.
	// Downstream it says for which cluster the object was made.
	ClusterLabel = "workloads.kcp.dev/cluster"
	// TargetLabelPrefix before a cluster's name, with the value "true", sends an object
	// to that cluster; a shared object has several.
	TargetLabelPrefix = "sync.workloads.kcp.dev/"
	// OwnedByLabel names the root of an object that was split.
	OwnedByLabel = "kcp.dev/owned-by"
	// LocatorAnnotation on a namespace downstream says, as JSON of [Locator], which
	// namespace upstream it stands for.
	LocatorAnnotation = "kcp.dev/namespace-locator"
	// UpstreamUIDAnnotation on an object downstream is its counterpart's UID: without
	// it an object is somebody else's.
	UpstreamUIDAnnotation = "workloads.kcp.dev/upstream-uid"
	// NameAnnotation on a leaf is the name that its copy has in the cluster: that of its root. A
	// copy without it has the leaf's name.
	NameAnnotation = "workloads.kcp.dev/name-in-cluster"
	// UpstreamNameAnnotation on an object downstream is its counterpart's name, where that is
	// another one.
	UpstreamNameAnnotation = "workloads.kcp.dev/upstream-name"
	// ProducesAnnotation on a CRD, or on one object, says which Secrets and ConfigMaps are made in
	// a cluster for an object that is there: Secret={spec.target.name}|{metadata.name}, with
	// commas. The object goes where these are needed.
	ProducesAnnotation = "workloads.kcp.dev/produces"
	// SelectsAnnotation on a CRD says in which field its objects select Pods or Services of their
	// namespace: Service=spec.selector, with commas. The objects go where these are.
	SelectsAnnotation = "workloads.kcp.dev/selects"
	// YieldAnnotation lists, with commas, the fields that are applied when the object
	// is made downstream and then left to others: spec.replicas.
	YieldAnnotation = "workloads.kcp.dev/yield"
	// YieldNone as its value gives nothing away, the replicas to an autoscaler included.
	YieldNone = "none"
	// DeleteDataAnnotation with the value "true" lets a PersistentVolumeClaim be deleted
	// downstream when it leaves a cluster.
	DeleteDataAnnotation = "workloads.kcp.dev/delete-data"
	// RecreateAnnotation with the value "true" lets an object be deleted and made again
	// downstream when a field that cannot change has changed.
	RecreateAnnotation = "workloads.kcp.dev/recreate"
	// AllowDeletesAnnotation on a Cluster is the go-ahead for a mass deletion that was
	// paused: the value is the number that the condition DeletesPaused names.
	AllowDeletesAnnotation = "workloads.kcp.dev/allow-deletes"
	// OwnClusterAnnotation with the value "true" on a Cluster says that it counts as one of its
	// own though another stands for the same physical cluster, as when each has a part of it.
	OwnClusterAnnotation = "workloads.kcp.dev/own-cluster"
	// StatusAnnotationPrefix before a cluster's name keeps, as JSON, the status that a
	// shared object has in that cluster.
	StatusAnnotationPrefix = "status.workloads.kcp.dev/"
	// ProblemAnnotationPrefix before a cluster's name says why the object is not as
	// upstream wants it in that cluster.
	ProblemAnnotationPrefix = "problem.workloads.kcp.dev/"
	// FinalizerPrefix before a cluster's name holds an object upstream until it is gone
	// from that cluster.
	FinalizerPrefix = "syncer.workloads.kcp.dev/"
	// SyncerUserPrefix before a cluster's name is the user that its syncer is upstream. The
	// user's UID is that of the Cluster: another of the same name has another syncer.
	SyncerUserPrefix = "system:rik:syncer:"
	// SyncerSigner is the signer of CertificateSigningRequests for the users of syncers.
	SyncerSigner = "rik.dev/syncer"
	// FieldManager is the owner of the fields that a syncer sets downstream.
	FieldManager = "rik-syncer"
	// ClusterFinalizer holds a Cluster until what its syncer left upstream is released.
	ClusterFinalizer = "workload.kcp.dev/cluster-controller"
	// FenceNamespace holds in a physical cluster one Lease for each Cluster that it is:
	// see [FenceLeaseName].
	FenceNamespace = "rik-syncer"
	// FenceChallengeAnnotation on that Lease is the challenge that the cluster's own
	// controller has set last. That there is always a new one after an answer is its
	// acknowledgement that it fences.
	FenceChallengeAnnotation = "workloads.kcp.dev/fence-challenge"
	// FenceAnswerAnnotation on that Lease is the challenge that the syncer has read before
	// it last had a sign of life from the kcp.
	FenceAnswerAnnotation = "workloads.kcp.dev/fence-answer"
	// OnRemovalAnnotation on a Cluster with the value [OnRemovalDelete] has what roots
	// have there deleted when the Cluster is. Otherwise it stays.
	OnRemovalAnnotation = "workloads.kcp.dev/on-removal"
	OnRemovalDelete     = "delete"
	// SplitterFinalizer holds such a Cluster until that is done.
	SplitterFinalizer = "workload.kcp.dev/splitter"
	// FollowsAnnotation on an object lists, with commas, the clusters to which the splitter
	// sent it because others need it there, and from which it takes it away again. Targets
	// that somebody else gave the object are not among them, and stay.
	FollowsAnnotation = "workloads.kcp.dev/follows"
	// DeployVerb on clusters/NAME lets a user send objects to that cluster.
	DeployVerb = "deploy"
)

// Locator says which namespace of which kcp a namespace downstream stands for.
type Locator struct {
	// UpstreamUID is that of the kcp's kube-system namespace.
	UpstreamUID string `json:"upstreamUID"`
	// Cluster is the Cluster's name, and ClusterUID its UID.
	Cluster    string `json:"cluster"`
	ClusterUID string `json:"clusterUID"`
	// Namespace is the name upstream.
	Namespace string `json:"namespace"`
}

// FenceLeaseName is the Lease that a Cluster's syncer renews in the physical cluster.
func FenceLeaseName(clusterUID string) string { return "cluster-" + clusterUID }

// NameInCluster is what the copy of an object is called in its cluster. Only a leaf can be called
// otherwise than it is, and only as its root: no other object can claim that name there.
func NameInCluster(object metav1.Object) string {
	wanted := object.GetAnnotations()[NameAnnotation]
	ref := metav1.GetControllerOfNoCopy(object)
	if wanted == "" || ref == nil || ref.Name != wanted || object.GetLabels()[OwnedByLabel] == "" {
		return object.GetName()
	}
	return wanted
}

// Follows are the clusters in [FollowsAnnotation].
func Follows(annotations map[string]string) []string {
	if list := annotations[FollowsAnnotation]; list != "" {
		return strings.Split(list, ",")
	}
	return nil
}

// Targets are the clusters that labels send an object to, sorted, each once. Names
// that no Cluster can have are left out.
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
