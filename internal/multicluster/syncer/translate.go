package syncer

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"rik.dev/rik/api/inherit"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/terminal"
)

// translate returns the downstream object for an upstream object. It copies the labels and
// annotations, except those for syncing and the marks of tools. It copies every field except
// metadata and status. It leaves out values that only the cluster itself can determine. It also
// leaves out nulls where the cluster does not keep them.
func translate(upstream *unstructured.Unstructured, identity Identity) *unstructured.Unstructured {
	content, keepsNulls := map[string]any{}, keepsNulls(upstream.GroupVersionKind())
	for field, value := range upstream.DeepCopy().Object {
		switch {
		case field == "metadata" || field == "status":
		case keepsNulls:
			content[field] = value
		case value != nil:
			content[field] = withoutNulls(value)
		}
	}
	desired := &unstructured.Unstructured{Object: content}
	desired.SetName(upstream.GetName())
	if upstream.GetNamespace() != "" {
		desired.SetNamespace(identity.Namespace(upstream.GetNamespace()))
	}
	labels := carriedLabels(upstream.GetLabels())
	labels[workloadv1alpha1.ClusterLabel] = identity.Cluster
	desired.SetLabels(labels)
	annotations := carriedAnnotations(upstream.GetAnnotations())
	annotations[workloadv1alpha1.UpstreamUIDAnnotation] = string(upstream.GetUID())
	desired.SetAnnotations(annotations)
	if clean, ok := cleaners[desired.GroupVersionKind().GroupKind()]; ok {
		clean(desired)
	}
	return desired
}

func carriedLabels(labels map[string]string) map[string]string {
	carried := map[string]string{}
	for name, value := range labels {
		if !strings.HasPrefix(name, workloadv1alpha1.TargetLabelPrefix) && !inherit.IsMark(name, value) {
			carried[name] = value
		}
	}
	return carried
}

// localAnnotations are annotations that are true only for the upstream object.
var localAnnotations = map[string]bool{
	workloadv1alpha1.LocatorAnnotation:      true,
	workloadv1alpha1.NameAnnotation:         true,
	workloadv1alpha1.UpstreamNameAnnotation: true,
	workloadv1alpha1.RecreateAnnotation:     true,
	"pv.kubernetes.io/bind-completed":       true,
	"pv.kubernetes.io/bound-by-controller":  true,
}

func carriedAnnotations(annotations map[string]string) map[string]string {
	carried := map[string]string{}
	for name, value := range annotations {
		switch {
		case localAnnotations[name], inherit.IsMark(name, value),
			strings.HasPrefix(name, workloadv1alpha1.StatusAnnotationPrefix),
			strings.HasPrefix(name, workloadv1alpha1.ProblemAnnotationPrefix):
		default:
			carried[name] = value
		}
	}
	return carried
}

// keepsNulls reports whether clusters keep a null in objects of a kind. They do so where a CRD
// has nullable fields. Without the null, such a field would get its default. The types of
// Kubernetes drop nulls. A null there would only claim the ownership of a field.
func keepsNulls(kind schema.GroupVersionKind) bool {
	return !scheme.Scheme.Recognizes(kind) && kind.Group != rikv1alpha1.GroupName
}

func withoutNulls(value any) any {
	switch v := value.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(_ string, field any) bool { return field == nil })
		for name, field := range v {
			v[name] = withoutNulls(field)
		}
	case []any:
		for i := range v {
			v[i] = withoutNulls(v[i])
		}
	}
	return value
}

// cleaners remove from an object what each cluster generates itself.
var cleaners = map[schema.GroupKind]func(*unstructured.Unstructured){
	{Kind: "Service"}:        cleanService,
	{Kind: "ServiceAccount"}: cleanServiceAccount,
	terminal.Job:             cleanJob,
}

// cleanService leaves the addresses to the cluster, which has its own range. The user chooses a
// Service without an address ("None"), and chooses node ports. The kcp allocates neither.
func cleanService(service *unstructured.Unstructured) {
	address, _, _ := unstructured.NestedString(service.Object, "spec", "clusterIP")
	if address != corev1.ClusterIPNone {
		unstructured.RemoveNestedField(service.Object, "spec", "clusterIP")
		unstructured.RemoveNestedField(service.Object, "spec", "clusterIPs")
	}
	ports, _, _ := unstructured.NestedSlice(service.Object, "spec", "ports")
	for _, port := range ports {
		if p, ok := port.(map[string]any); ok && p["nodePort"] == int64(0) {
			delete(p, "nodePort")
		}
	}
	if len(ports) > 0 {
		// spec is an object, because it has ports
		_ = unstructured.SetNestedSlice(service.Object, ports, "spec", "ports")
	}
}

// cleanJob removes the time to live, which only counts upstream. If the cluster deleted a Job by
// itself, it would look like one that has not run.
func cleanJob(job *unstructured.Unstructured) {
	unstructured.RemoveNestedField(job.Object, terminal.TTLField...)
}

// cleanServiceAccount removes tokens, because each cluster makes its own.
func cleanServiceAccount(account *unstructured.Unstructured) { delete(account.Object, "secrets") }

// isClaim reports whether deleting objects of a type also deletes data.
func isClaim(resource schema.GroupResource) bool {
	return resource == schema.GroupResource{Resource: "persistentvolumeclaims"}
}

// isExcluded reports whether an object is never copied. These are objects that each cluster makes
// for itself, and credentials for the API of one side.
func isExcluded(resource schema.GroupResource, object *unstructured.Unstructured) bool {
	if resource.Group != "" {
		return false
	}
	is := func(name string) bool {
		return object.GetName() == name || workloadv1alpha1.NameInCluster(object) == name
	}
	switch resource.Resource {
	case "serviceaccounts":
		return is("default")
	case "configmaps":
		return is("kube-root-ca.crt")
	case "secrets":
		kind, _, _ := unstructured.NestedString(object.Object, "type")
		return kind == string(corev1.SecretTypeServiceAccountToken) || kind == string(corev1.SecretTypeBootstrapToken)
	}
	return false
}

// isTargeted reports whether the labels of an object send it to the cluster.
func isTargeted(object *unstructured.Unstructured, cluster string) bool {
	labels := object.GetLabels()
	return labels[workloadv1alpha1.ClusterLabel] == cluster ||
		labels[workloadv1alpha1.TargetLabelPrefix+cluster] == "true"
}
