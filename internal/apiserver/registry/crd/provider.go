// Package crd serves CustomResourceDefinitions as Kubernetes does but for two
// rules. Their group needs no dot: a kcp gets apps, batch and the other groups of
// Kubernetes' own by negotiation, and Kubernetes keeps those from CRDs only because
// it serves them itself. And one that negotiation has made is not changed or deleted if
// that would take something from an object that is stored: the [Gate] sees to it that
// none is stored while that is looked at.
//
// The server of types defined by CRDs, which stands behind this one, goes on to act
// on the same stored objects.
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

// Provider makes the storage of CustomResourceDefinitions. It implements
// RESTStorageProvider of k8s.io/kubernetes/pkg/controlplane/apiserver.
type Provider struct {
	// Options are those of the server of types defined by CRDs, which reads what is
	// stored here.
	Options generic.RESTOptionsGetter
	// Gate before the objects of these types, Loss and the configuration of a client
	// that reads them guard what negotiation has made. Nothing is guarded when Loss is nil.
	Gate   *Gate
	Loss   Loss
	Client *restclient.Config
}

// GroupName is apiextensions.k8s.io.
func (Provider) GroupName() string { return apiextensions.GroupName }

// NewRESTStorage makes the storage. The options of the native types, which it is
// given, do not know how to encode these.
func (p Provider) NewRESTStorage(serverstorage.APIResourceConfigSource, generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(apiextensions.GroupName, apiextensionsapiserver.Scheme, metav1.ParameterCodec, apiextensionsapiserver.Codecs)
	storage, err := customresourcedefinition.NewREST(apiextensionsapiserver.Scheme, p.Options)
	if err != nil {
		return info, fmt.Errorf("making the storage of customresourcedefinitions: %w", err)
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
		return info, fmt.Errorf("making a client for the objects of customresourcedefinitions: %w", err)
	}
	whole := &guarded{REST: storage, keeper: keeper{gate: p.Gate, loss: p.Loss, client: client}}
	served["customresourcedefinitions"], served["customresourcedefinitions/status"] = whole, &guardedStatus{StatusREST: status, whole: whole}
	return info, nil
}

// dotless is Kubernetes' strategy without its one rule.
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
