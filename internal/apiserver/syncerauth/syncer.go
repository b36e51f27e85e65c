package syncerauth

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// syncerOf reports whether a user is a syncer, and of which cluster. The cluster is empty if
// its name is invalid. Such a user has no permissions.
func syncerOf(who user.Info) (cluster string, ok bool) {
	if who == nil {
		return "", false
	}
	name, ok := strings.CutPrefix(who.GetName(), workloadv1alpha1.SyncerUserPrefix)
	if !ok || len(validation.IsDNS1123Label(name)) > 0 {
		return "", ok
	}
	return name, true
}

// decision is the decision on a syncer's request without reading the object.
type decision int

const (
	refused decision = iota
	allowed
	// dependent means allowed if the object is sent to the syncer's cluster.
	dependent
)

// openToSyncers are the paths of discovery and health checks.
var openToSyncers = []string{"/api", "/apis", "/openapi", "/version", "/healthz", "/readyz", "/livez"}

// closedGroups contain types that control the kcp itself, or that are never sent to a cluster.
var closedGroups = sets.New(
	workloadv1alpha1.GroupName, "apiresource.kcp.dev",
	"rbac.authorization.k8s.io", "authorization.k8s.io", "authentication.k8s.io", "certificates.k8s.io",
	"admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io",
	"flowcontrol.apiserver.k8s.io", "coordination.k8s.io",
)

// authorize decides on a request of a cluster's syncer.
func authorize(cluster string, a authorizer.Attributes) decision {
	switch {
	case cluster == "":
		return refused
	case !a.IsResourceRequest():
		return authorizePath(a)
	case a.GetAPIGroup() == workloadv1alpha1.GroupName && a.GetResource() == "clusters":
		return authorizeCluster(cluster, a)
	case isEvents(a.GetAPIGroup(), a.GetResource()):
		return when(a.GetVerb() == "create" && a.GetSubresource() == "", allowed)
	case isIdentity(a), isType(a):
		return allowed
	case closedGroups.Has(a.GetAPIGroup()):
		return refused
	default:
		return authorizeObject(cluster, a)
	}
}

func when(condition bool, v decision) decision {
	if condition {
		return v
	}
	return refused
}

func authorizePath(a authorizer.Attributes) decision {
	under := slices.ContainsFunc(openToSyncers, func(path string) bool {
		return a.GetPath() == path || strings.HasPrefix(a.GetPath(), path+"/")
	})
	return when(a.GetVerb() == "get" && under, allowed)
}

// authorizeCluster allows a syncer to read its own Cluster and write its status. A list or
// watch has a name if its field selector requires that name.
func authorizeCluster(cluster string, a authorizer.Attributes) decision {
	if a.GetName() != cluster {
		return refused
	}
	switch a.GetSubresource() {
	case "":
		return when(slices.Contains([]string{"get", "list", "watch"}, a.GetVerb()), allowed)
	case "status":
		return when(slices.Contains([]string{"get", "patch"}, a.GetVerb()), allowed)
	default:
		return refused
	}
}

// isIdentity reports whether a request reads kube-system, whose UID identifies a kcp.
func isIdentity(a authorizer.Attributes) bool {
	return a.GetAPIGroup() == "" && a.GetResource() == "namespaces" && a.GetName() == "kube-system" && a.GetSubresource() == "" && a.GetVerb() == "get"
}

// isType reports whether a request reads the definition of one type. A syncer does not delete
// objects because their type was deleted, so it must be able to see whether the type still
// exists. The definition is also public in OpenAPI.
func isType(a authorizer.Attributes) bool {
	return a.GetAPIGroup() == "apiextensions.k8s.io" && a.GetResource() == "customresourcedefinitions" &&
		a.GetName() != "" && a.GetSubresource() == "" && a.GetVerb() == "get"
}

func authorizeObject(cluster string, a authorizer.Attributes) decision {
	switch a.GetVerb() {
	case "list", "watch":
		return when(a.GetSubresource() == "" && demands(a, cluster), allowed)
	case "get", "patch":
		return when(a.GetName() != "" && (a.GetSubresource() == "" || a.GetSubresource() == "status"), dependent)
	default:
		return refused
	}
}

// demands reports whether the label selector matches only objects that are sent to the cluster.
// All requirements of a selector must hold, so one such requirement is enough.
func demands(a authorizer.Attributes, cluster string) bool {
	requirements, err := a.GetLabelSelector()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(requirements, func(r labels.Requirement) bool {
		return exactly(r, workloadv1alpha1.ClusterLabel, cluster) || exactly(r, workloadv1alpha1.TargetLabelPrefix+cluster, "true")
	})
}

func exactly(r labels.Requirement, key, value string) bool {
	operators := []selection.Operator{selection.Equals, selection.DoubleEquals, selection.In}
	return r.Key() == key && slices.Contains(operators, r.Operator()) && r.Values().Equal(sets.NewString(value))
}

func isEvents(group, resource string) bool {
	return resource == "events" && (group == "" || group == "events.k8s.io")
}
