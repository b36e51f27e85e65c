// Package unsupported prevents the API server from silently accepting objects and fields that
// it does not honor.
//
// The server has many of Kubernetes' types, and not all of Kubernetes' controllers. An
// admission plugin checks each write. It refuses an object that could not work, or that sets
// a limit which is not enforced. It warns about a field that has no effect. Objects that
// were stored before stay. Their other fields can be changed, and they can be deleted.
//
// The rules are in rules.go, one for each type that needs one.
package unsupported

import (
	"context"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
)

// PluginName is the name under which the plugin is registered.
const PluginName = "RikHonored"

// Config configures the plugin.
type Config struct {
	// Carries means that objects are sent to other clusters, which may honor fields that this
	// server does not. It is set for a kcp.
	Carries bool
}

// Register registers the plugin.
func Register(plugins *admission.Plugins, cfg Config) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		return &plugin{Handler: admission.NewHandler(admission.Create, admission.Update), rules: rules(cfg)}, nil
	})
}

type plugin struct {
	*admission.Handler
	rules map[schema.GroupResource]rule
}

var _ admission.ValidationInterface = &plugin{}

// findings contains the refusals and warnings for an object.
type findings struct {
	refusals field.ErrorList
	warnings []string
}

// rule checks an object of a type. before is nil at creation. Problems that existed before the
// write are not reported again.
type rule func(now, before runtime.Object) findings

// Validate implements admission.ValidationInterface.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" || a.GetUserInfo().GetName() == user.APIServerUser {
		return nil // components in this process write only honored fields
	}
	validate, ok := p.rules[a.GetResource().GroupResource()]
	if !ok {
		return nil
	}
	v := validate(a.GetObject(), a.GetOldObject())
	for _, text := range v.warnings {
		warning.AddWarning(ctx, "", text)
	}
	if len(v.refusals) == 0 {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), nameOf(a), v.refusals)
}

func nameOf(a admission.Attributes) string {
	if object, err := meta.Accessor(a.GetObject()); err == nil && object.GetName() != "" {
		return object.GetName()
	}
	return a.GetName()
}
