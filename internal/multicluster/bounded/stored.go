package bounded

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apidiscovery "k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/client-go/discovery"
)

// StoredIn returns the version in which a server stores the objects of a resource, out of the
// given served versions. It is empty if none of them is the storage version. Only a write through
// the storage version loses no fields: CRDs without conversion drop fields that the version of a
// request lacks.
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
