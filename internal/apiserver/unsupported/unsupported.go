// Package unsupported keeps the API server from accepting silently what it does not do.
//
// The server has many of Kubernetes' types and not all of Kubernetes' controllers. An
// admission plugin looks at what is written: it refuses an object that could not work, or
// that would promise a limit which nothing keeps, and warns of a part that has no effect.
// What was stored before stays, and may be changed elsewhere and deleted.
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

// PluginName is how the plugin is registered.
const PluginName = "RikHonored"

// Config of the plugin.
type Config struct {
	// Carries says that objects are sent to other clusters, which may do what this server
	// does not: a kcp.
	Carries bool
}

// Register makes the plugin known.
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

// verdict is what there is to say of an object.
type verdict struct {
	refusals field.ErrorList
	warnings []string
}

// rule judges an object of a type. The object before is nil at creation. What was so before
// is not said again.
type rule func(now, before runtime.Object) verdict

// Validate implements admission.ValidationInterface.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" || a.GetUserInfo().GetName() == user.APIServerUser {
		return nil // what is in this process knows what it writes
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
