// Package core serves services and persistentvolumeclaims of the core group as plain stores,
// with Kubernetes' own types, defaults, validation and status, and without controllers that act
// on them. A kcp needs such stores, because it has neither networks nor disks, and a CRD cannot
// be in the core group.
//
// Fields that Kubernetes sets at creation, above all the addresses and ports of services, stay
// empty unless a client sets them. The cluster to which an object is sent sets its own.
package core

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	claimstorage "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
)

// Provider adds the two types to the storage of the core group. It implements
// RESTStorageProvider of k8s.io/kubernetes/pkg/controlplane/apiserver.
type Provider struct {
	// RESTStorageProvider creates the rest of the core group.
	controlplaneapiserver.RESTStorageProvider
}

// NewRESTStorage creates the storage of the whole core group.
func (p Provider) NewRESTStorage(source serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info, err := p.RESTStorageProvider.NewRESTStorage(source, getter)
	if err != nil {
		return info, err
	}
	services, err := newServices(getter)
	if err != nil {
		return info, fmt.Errorf("creating the storage of services: %w", err)
	}
	claims, claimStatus, err := claimstorage.NewREST(getter)
	if err != nil {
		return info, fmt.Errorf("creating the storage of persistentvolumeclaims: %w", err)
	}
	version := corev1.SchemeGroupVersion.Version
	if info.VersionedResourcesStorageMap[version] == nil {
		info.VersionedResourcesStorageMap[version] = map[string]rest.Storage{}
	}
	storage := info.VersionedResourcesStorageMap[version]
	storage["services"], storage["services/status"] = services, services.status()
	storage["persistentvolumeclaims"], storage["persistentvolumeclaims/status"] = claims, claimStatus
	return info, nil
}
