package syncer

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"rik.dev/rik/internal/multicluster/bounded"
)

// Type is a type that both sides serve, in a version that both have.
type Type struct {
	Resource   schema.GroupVersionResource
	Kind       string
	Namespaced bool
	// Status is true if both sides serve the status subresource.
	Status bool
	// Written is the storage version upstream, if it differs from Resource. Objects are changed
	// through it. A write through Resource would drop fields that Resource does not have.
	Written schema.GroupVersionResource
}

// powerful are the API groups whose objects give control over a cluster. They are never copied,
// whatever a Cluster allows.
var powerful = []string{
	"rbac.authorization.k8s.io", "admissionregistration.k8s.io",
	"apiextensions.k8s.io", "apiregistration.k8s.io",
}

// missingType is a type that was requested and is not copied.
type missingType struct {
	resource schema.GroupResource
	why      string
	// unknown is true if the API group could not be read on one side. The side may serve the
	// type.
	unknown bool
}

// agree selects the wanted types that may be copied and that both sides serve in a common
// version. It chooses the first version, in the order of upstream, that downstream has too.
func agree(wanted []string, upstream, downstream []*metav1.APIResourceList, allowed []string) ([]Type, []missingType) {
	up, down := served(upstream), served(downstream)
	var types []Type
	var missing []missingType
	for _, name := range slices.Compact(slices.Sorted(slices.Values(wanted))) {
		resource := schema.ParseGroupResource(name)
		t, why := agreeOn(resource, up, down, slices.Contains(allowed, name))
		if why != "" {
			missing = append(missing, missingType{resource: resource, why: why})
			continue
		}
		types = append(types, t)
	}
	return types, missing
}

func agreeOn(resource schema.GroupResource, up, down []Type, allowed bool) (Type, string) {
	if slices.Contains(powerful, resource.Group) {
		return Type{}, "its objects give control over a cluster, so they are never copied"
	}
	if resource == (schema.GroupResource{Resource: "namespaces"}) {
		return Type{}, "the syncer creates namespaces by itself when it needs them"
	}
	why := "the kcp does not serve it"
	for _, u := range up {
		if u.Resource.GroupResource() != resource {
			continue
		}
		i := slices.IndexFunc(down, func(d Type) bool { return d.Resource == u.Resource })
		switch {
		case i < 0:
			why = "the cluster does not serve it in a version that the kcp has"
		case down[i].Kind != u.Kind || down[i].Namespaced != u.Namespaced:
			why = "its kind or scope differs in the cluster"
		case !u.Namespaced && !allowed:
			why = "it is cluster-scoped, and spec.clusterScopedResources of the Cluster does not list it"
		default:
			u.Status = u.Status && down[i].Status
			return u, ""
		}
	}
	return Type{}, why
}

// written sets the version through which the objects of each type are changed upstream. It asks
// only about types with several versions. It returns the types for which the server gave no
// answer, with the errors. They do not affect the others.
func written(server discovery.ServerResourcesInterface, types []Type, upstream []*metav1.APIResourceList) map[schema.GroupResource]error {
	all, unsure := served(upstream), map[schema.GroupResource]error{}
	for i := range types {
		t := &types[i]
		versions := map[string]Type{}
		for _, other := range all {
			if other.Resource.GroupResource() == t.Resource.GroupResource() {
				versions[other.Resource.Version] = other
			}
		}
		if len(versions) < 2 {
			continue
		}
		version, err := bounded.StoredIn(server, t.Resource, slices.Sorted(maps.Keys(versions)))
		if err != nil {
			unsure[t.Resource.GroupResource()] = err
			continue
		}
		if version != "" && version != t.Resource.Version {
			t.Written, t.Status = versions[version].Resource, t.Status && versions[version].Status
		}
	}
	return unsure
}

// served returns the types in a server's discovery that can be listed, watched and written.
func served(lists []*metav1.APIResourceList) []Type {
	var types []Type
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		status := map[string]bool{}
		for _, r := range list.APIResources {
			status[r.Name] = true
		}
		for _, r := range list.APIResources {
			if !hasVerbs(r, "get", "list", "watch", "patch", "create", "delete") {
				continue
			}
			types = append(types, Type{
				Resource: gv.WithResource(r.Name), Kind: r.Kind,
				Namespaced: r.Namespaced, Status: status[r.Name+"/status"],
			})
		}
	}
	return types
}

func hasVerbs(r metav1.APIResource, verbs ...string) bool {
	for _, verb := range verbs {
		if !slices.Contains(r.Verbs, verb) {
			return false
		}
	}
	return true
}
