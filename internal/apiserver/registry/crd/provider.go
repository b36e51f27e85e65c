// Package crd serves CustomResourceDefinitions like Kubernetes, with two different rules.
// First, their group needs no dot. A kcp gets apps, batch and the other groups of Kubernetes by
// negotiation. Kubernetes forbids these groups for CRDs only because it serves them itself.
// Second, a CRD from negotiation is not changed or deleted if that would remove fields from a
// stored object. The [Gate] ensures that no object is stored during that check.
//
// The server of types defined by CRDs, which follows this one, acts on the same stored objects.
package crd

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"
)

// Provider creates the storage of CustomResourceDefinitions. It implements RESTStorageProvider
// of k8s.io/kubernetes/pkg/controlplane/apiserver.
type Provider struct {
	// Options are those of the server of types defined by CRDs, which reads the objects stored
	// here.
	Options generic.RESTOptionsGetter
	// Gate, Loss and Client protect the CRDs from negotiation. Gate is in front of the objects of
	// these types, and Client reads them. If Loss is nil, nothing is protected.
	Gate   *Gate
	Loss   Loss
	Client *restclient.Config
}

// GroupName returns apiextensions.k8s.io.
func (Provider) GroupName() string { return apiextensions.GroupName }

// NewRESTStorage creates the storage. It does not use the given options, which are for native
// types and cannot encode these types.
func (p Provider) NewRESTStorage(serverstorage.APIResourceConfigSource, generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(apiextensions.GroupName, apiextensionsapiserver.Scheme, metav1.ParameterCodec, apiextensionsapiserver.Codecs)
	storage, err := customresourcedefinition.NewREST(apiextensionsapiserver.Scheme, p.Options)
	if err != nil {
		return info, fmt.Errorf("creating the storage of customresourcedefinitions: %w", err)
	}
	strategy := dotless{customresourcedefinition.NewStrategy(apiextensionsapiserver.Scheme)}
	storage.CreateStrategy, storage.UpdateStrategy = strategy, strategy
	status := customresourcedefinition.NewStatusREST(apiextensionsapiserver.Scheme, storage)
	served := map[string]rest.Storage{"customresourcedefinitions": storage, "customresourcedefinitions/status": status}
	info.VersionedResourcesStorageMap[apiextensionsv1.SchemeGroupVersion.Version] = served
	if p.Loss == nil {
		return info, nil
	}
	client, err := dynamic.NewForConfig(p.Client)
	if err != nil {
		return info, fmt.Errorf("creating a client for the objects of customresourcedefinitions: %w", err)
	}
	whole := &guarded{REST: storage, keeper: guard{gate: p.Gate, loss: p.Loss, client: client}}
	served["customresourcedefinitions"], served["customresourcedefinitions/status"] = whole, &guardedStatus{StatusREST: status, whole: whole}
	return info, nil
}

// dotless is Kubernetes' strategy without the rule that a group needs a dot.
type dotless struct{ rest.RESTCreateUpdateStrategy }

// Validate implements rest.RESTCreateStrategy.
func (s dotless) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return without(s.RESTCreateUpdateStrategy.Validate(ctx, obj))
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s dotless) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return without(s.RESTCreateUpdateStrategy.ValidateUpdate(ctx, obj, old))
}

func without(problems field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(problems, func(problem *field.Error) bool {
		return problem.Type == field.ErrorTypeInvalid && problem.Field == "spec.group" && problem.Detail == "should be a domain with at least one dot"
	})
}
