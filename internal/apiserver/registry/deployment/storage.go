// Package deployment serves Deployments of apps/v1 in a cluster. It uses Kubernetes' own type,
// defaults, validation, columns and subresources. It also refuses fields that a rik cluster
// would not honor, with their paths. The controller runs Deployments as Workloads.
package deployment

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	kubernetes "k8s.io/kubernetes/pkg/registry/apps/deployment/storage"

	translation "rik.dev/rik/api/rik/deployment"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/registry/workload"
)

// Provider creates the storage of the group apps. It implements RESTStorageProvider of
// k8s.io/kubernetes/pkg/controlplane/apiserver.
type Provider struct {
	// Authorizer decides who may write templates with access beyond an instance's sandbox. If it
	// is nil, all such templates are refused.
	Authorizer authorizer.Authorizer
	// NodePorts is the range of node ports that workloads may use. Zero means all.
	NodePorts validation.NodePorts
}

// GroupName returns apps.
func (Provider) GroupName() string { return apps.GroupName }

// NewRESTStorage creates the storage of deployments, their status and their scale.
func (p Provider) NewRESTStorage(_ serverstorage.APIResourceConfigSource, getter generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(apps.GroupName, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	s, err := kubernetes.NewStorage(getter)
	if err != nil {
		return info, fmt.Errorf("creating the storage of deployments: %w", err)
	}
	// The scale shares this store. The status has a copy with another strategy.
	s.Deployment.CreateStrategy, s.Deployment.UpdateStrategy = ours, ours
	info.VersionedResourcesStorageMap[appsv1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"deployments":        &REST{REST: s.Deployment, authorizer: p.Authorizer, nodePorts: p.NodePorts},
		"deployments/status": s.Status,
		"deployments/scale":  s.Scale,
	}
	return info, nil
}

// REST is the store of deployments. It checks whether the writer has the permissions for the
// deployment's access to a node, because the controller, which has all permissions, writes the
// Workload.
type REST struct {
	*kubernetes.REST
	authorizer authorizer.Authorizer
	nodePorts  validation.NodePorts
}

// Create stores a new deployment.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if err := r.permit(ctx, obj.(*apps.Deployment), nil); err != nil {
		return nil, err
	}
	return r.REST.Create(ctx, obj, validate, options)
}

// Update stores a changed deployment, or a new one through server-side apply.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.REST.Update(ctx, name, workload.Permitted(info, r.permit), create, update, forceCreate, options)
}

// permit checks the permissions that the deployment's workload would need. The validation that
// follows refuses fields that cannot be translated.
func (r *REST) permit(ctx context.Context, d, old *apps.Deployment) error {
	if old != nil && apiequality.Semantic.DeepEqual(d.Spec.Template, old.Spec.Template) {
		return nil
	}
	w, err := workloadOf(d)
	if err != nil {
		return err
	}
	var before *rik.InstanceTemplate
	if old != nil {
		earlier, err := workloadOf(old)
		if err != nil {
			return err
		}
		before = &earlier.Spec.InstanceTemplate
	}
	if errs := r.nodePorts.Validate(field.NewPath("spec"), &w.Spec.InstanceTemplate, before); len(errs) > 0 {
		for _, e := range errs {
			e.Field = translation.Path(e.Field)
		}
		return apierrors.NewInvalid(apps.Kind("Deployment"), d.Name, errs)
	}
	needs := validation.Privileges(field.NewPath("spec"), &w.Spec.InstanceTemplate)
	for _, n := range needs {
		n.Field = translation.Path(n.Field)
	}
	return workload.Permit(ctx, r.authorizer, apps.Resource("deployments"), d.Name, needs)
}

func workloadOf(d *apps.Deployment) (*rik.Workload, error) {
	published, err := publish(d)
	if err != nil {
		return nil, err
	}
	return translate(published)
}
