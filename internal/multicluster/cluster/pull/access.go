package pull

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// The verbs that the agent needs downstream. It does not use update: it applies, which is patch,
// and deletes.
var (
	carriedVerbs   = []any{"get", "list", "watch", "create", "patch", "delete"}
	namespaceVerbs = []any{"get", "create"}
)

// clusterRole returns the permissions of the agent: its types, reading and creating namespaces,
// and on a rik cluster the one Lease by which the cluster fences. The admission policy restricts
// the namespaces in which the agent may write.
func (o *Options) clusterRole() *unstructured.Unstructured {
	rules := []any{rule("", []any{"namespaces"}, namespaceVerbs)}
	byGroup := map[string][]any{}
	carried := slices.Clone(o.Carried)
	slices.SortFunc(carried, func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
	var groups []string
	for _, resource := range slices.Compact(carried) {
		if byGroup[resource.Group] == nil {
			groups = append(groups, resource.Group)
		}
		byGroup[resource.Group] = append(byGroup[resource.Group], resource.Resource)
	}
	slices.Sort(groups)
	for _, group := range groups {
		rules = append(rules, rule(group, byGroup[group], carriedVerbs))
	}
	if o.Rik {
		lease := rule("coordination.k8s.io", []any{"leases"}, []any{"get", "patch"})
		lease["resourceNames"] = []any{workloadv1alpha1.FenceLeaseName(string(o.ClusterUID))}
		rules = append(rules, lease)
	}
	return o.object("rbac.authorization.k8s.io/v1", "ClusterRole", "", ClusterScoped(o.ClusterUID), map[string]any{"rules": rules})
}

func rule(group string, resources, verbs []any) map[string]any {
	return map[string]any{"apiGroups": []any{group}, "resources": resources, "verbs": verbs}
}

func (o *Options) clusterRoleBinding() *unstructured.Unstructured {
	return o.object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", ClusterScoped(o.ClusterUID), map[string]any{
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ClusterScoped(o.ClusterUID)},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": Name, "namespace": Namespace(o.ClusterUID)}},
	})
}

// policy restricts the agent's writes to namespaces that were made for this cluster, which RBAC
// cannot express. It allows the agent to create such a namespace, and to renew the Lease of its
// cluster's fence. It does not restrict cluster-scoped objects, because the ClusterRole lists
// their types one by one.
func (o *Options) policy() *unstructured.Unstructured {
	account := "request.userInfo.username == '" + Account(o.ClusterUID) + "'"
	isNamespace := "request.resource.group == '' && request.resource.resource == 'namespaces'"
	made := "request.operation == 'CREATE' && " + o.hasLocator("object")
	isLease := "request.resource.group == 'coordination.k8s.io' && request.namespace == '" + workloadv1alpha1.FenceNamespace +
		"' && request.name == '" + workloadv1alpha1.FenceLeaseName(string(o.ClusterUID)) + "'"
	within := "namespaceObject == null || (" + o.hasLocator("namespaceObject") + ")"
	return o.object("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "", PolicyName(o.ClusterUID), map[string]any{
		"spec": map[string]any{
			"failurePolicy": "Fail",
			"matchConstraints": map[string]any{"resourceRules": []any{map[string]any{
				"apiGroups": []any{"*"}, "apiVersions": []any{"*"}, "resources": []any{"*/*"},
				"operations": []any{"CREATE", "UPDATE", "DELETE"}, "scope": "*",
			}}},
			"matchConditions": []any{map[string]any{"name": "the-syncer", "expression": account}},
			"validations": []any{map[string]any{
				"expression": "(" + isNamespace + ") ? (" + made + ") : (" + isLease + ") || (" + within + ")",
				"message":    "the syncer writes only in namespaces that were made for its cluster",
				"reason":     "Forbidden",
			}},
		},
	})
}

func (o *Options) policyBinding() *unstructured.Unstructured {
	return o.object("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "", PolicyName(o.ClusterUID), map[string]any{
		"spec": map[string]any{"policyName": PolicyName(o.ClusterUID), "validationActions": []any{"Deny"}},
	})
}
