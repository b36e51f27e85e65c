package cluster

import (
	"fmt"
	"maps"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/excerpt"
)

// native are the synced types that every kcp serves. Imports of them are only checked.
var native = []string{"configmaps", "persistentvolumeclaims", "secrets", "serviceaccounts", "services"}

// powerful are the API groups whose types give control over a cluster. own are the types that a
// cluster or a syncer needs for itself.
var (
	powerful = []string{"rbac.authorization.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io",
		"apiregistration.k8s.io", "certificates.k8s.io", "authentication.k8s.io", "authorization.k8s.io"}
	own = []schema.GroupResource{{Resource: "namespaces"}, {Resource: "nodes"}}
)

// neverSynced returns why a type is never synced, even on request. It is empty for all other
// types.
func neverSynced(resource schema.GroupResource) string {
	switch {
	case slices.Contains(powerful, resource.Group):
		return "its objects give control over the cluster"
	case slices.Contains(own, resource):
		return "the cluster keeps it itself"
	}
	return ""
}

// wanted returns the names of the types to import from a cluster, sorted.
func wanted(requested []string, cluster *workloadv1alpha1.Cluster) []string {
	names := slices.Concat(native, requested)
	for _, name := range cluster.Spec.ClusterScopedResources {
		if neverSynced(schema.ParseGroupResource(name)) == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// synced returns the types whose objects are copied to a cluster, as resource.group, sorted.
// Their imports are compatible with what the kcp serves, and the kcp serves them. Cluster-scoped
// types are included only if the Cluster allows them by name.
//
// If a synced type becomes incompatible because the cluster has changed its schema, it stays
// synced: objects that are valid are updated, and all objects can be deleted. synced also returns
// the problems, without their times.
func synced(requested []string, cluster *workloadv1alpha1.Cluster, imports []*apiresourcev1alpha1.APIResourceImport) (carried []string, problems []workloadv1alpha1.ResourceProblem) {
	names := wanted(requested, cluster)
	incompatible := map[string]string{}
	for _, i := range imports {
		resource := i.Spec.GVR().GroupResource()
		named := slices.Contains(names, resource.String()) || slices.Contains(names, resource.Resource)
		allowed := i.Spec.Scope == apiextensionsv1.NamespaceScoped || slices.Contains(cluster.Spec.ClusterScopedResources, resource.String())
		if i.Spec.Location != cluster.Name || !named || !allowed || neverSynced(resource) != "" || i.DeletionTimestamp != nil {
			continue
		}
		compatible := meta.FindStatusCondition(i.Status.Conditions, apiresourcev1alpha1.ConditionCompatible)
		switch was := slices.Contains(cluster.Status.SyncedResources, resource.String()); {
		case served(i):
			carried = append(carried, resource.String())
		case was && compatible != nil && compatible.Status == metav1.ConditionFalse:
			incompatible[resource.String()] = fmt.Sprintf("version %s: %s", i.Spec.GroupVersion.Version, compatible.Message)
		}
	}
	for _, resource := range slices.Sorted(maps.Keys(incompatible)) {
		if !slices.Contains(carried, resource) {
			carried = append(carried, resource)
			problems = append(problems, workloadv1alpha1.ResourceProblem{
				Resource: resource, Reason: workloadv1alpha1.ResourceIncompatible, Message: excerpt.Of(incompatible[resource], maxProblem),
			})
		}
	}
	slices.Sort(carried)
	return slices.Compact(carried), problems
}

// maxProblem limits the message of a ResourceProblem, in bytes.
const maxProblem = 2 << 10

// since sets the time at which each problem was first seen.
func since(problems, before []workloadv1alpha1.ResourceProblem, now metav1.Time) []workloadv1alpha1.ResourceProblem {
	for i := range problems {
		problems[i].Since = now
		for _, b := range before {
			if b.Resource == problems[i].Resource && b.Reason == problems[i].Reason {
				problems[i].Since = b.Since
			}
		}
	}
	return problems
}

// served reports whether every object of an import's type can be copied.
func served(i *apiresourcev1alpha1.APIResourceImport) bool {
	return meta.IsStatusConditionTrue(i.Status.Conditions, apiresourcev1alpha1.ConditionCompatible) &&
		meta.IsStatusConditionTrue(i.Status.Conditions, apiresourcev1alpha1.ConditionAvailable)
}
