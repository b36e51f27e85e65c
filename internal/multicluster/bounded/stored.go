package bounded

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apidiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/client-go/discovery"
)

// StoredIn gives the version in which a server stores the objects of a resource, out of
// some that it serves; "" if it is none of those. The version is the only one through which
// a write loses no field: CRDs without conversion drop what the version of a request lacks.
func StoredIn(server discovery.ServerResourcesInterface, resource schema.GroupVersionResource, versions []string) (string, error) {
	list, err := server.ServerResourcesForGroupVersion(resource.GroupVersion().String())
	if err != nil {
		return "", fmt.Errorf("asking in which version %s is stored: %w", resource.GroupResource(), err)
	}
	for i := range list.APIResources {
		r := &list.APIResources[i]
		if r.Name != resource.Resource {
			continue
		}
		for _, version := range versions {
			if r.StorageVersionHash == apidiscovery.StorageVersionHash(resource.Group, version, r.Kind) {
				return version, nil
			}
		}
	}
	return "", nil
}
