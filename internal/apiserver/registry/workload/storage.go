// Package workload stores Workloads with their status and scale.
package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/registry/store"
)

// VerbPrivileged is the verb on workloads that allows a user to write templates with access
// beyond an instance's sandbox. Such access is host paths, the host network, privileged
// containers, added capabilities, and images and programs of the node itself.
//
// It is checked at cluster scope, with the namespace as the name of the resource. A Role in a
// namespace does not grant it, even for every verb. Only a ClusterRoleBinding does.
const VerbPrivileged = "privileged"

// Storage serves workloads and their subresources.
type Storage struct {
	Workload *REST
	Status   *store.Status
	Scale    *Scale
}

// REST is the store of workloads. It checks whether the writer has the permissions for the
// workload's access to a node.
type REST struct {
	*store.REST
	authorizer authorizer.Authorizer
	nodePorts  validation.NodePorts
	// Revisions are those to which a workload can be rolled back. It is nil if there are none. It
	// is set before the first request.
	Revisions interface {
		Templates(ctx context.Context, workload string) ([]*rik.InstanceTemplate, error)
	}
}

// NewStorage creates the storage. Without an authorizer, no user is privileged.
func NewStorage(getter generic.RESTOptionsGetter, a authorizer.Authorizer, ports validation.NodePorts) (*Storage, error) {
	s, err := store.New(getter, store.Options[*rik.Workload]{
		Plural: "workloads", Singular: "workload",
		New:      func() runtime.Object { return &rik.Workload{} },
		NewList:  func() runtime.Object { return &rik.WorkloadList{} },
		Strategy: strategy,
		Table:    table,
	})
	if err != nil {
		return nil, err
	}
	main := &REST{REST: &store.REST{Store: s, Short: []string{"wl"}, All: true}, authorizer: a, nodePorts: ports}
	return &Storage{Workload: main, Status: store.NewStatus(s, statusStrategy), Scale: &Scale{store: s}}, nil
}

var strategy = store.NewStrategy(store.Rules[*rik.Workload]{
	Namespaced: true,
	Create: func(_ context.Context, w *rik.Workload) {
		w.Status = rik.WorkloadStatus{}
		w.Generation = 1
		// Set it here and not in the controller, which would need another write.
		if !slices.Contains(w.Finalizers, rikv1alpha1.FinalizerWorkload) {
			w.Finalizers = append(w.Finalizers, rikv1alpha1.FinalizerWorkload)
		}
	},
	Update: func(_ context.Context, w, old *rik.Workload) {
		w.Status = old.Status
		w.Generation = old.Generation
		if !apiequality.Semantic.DeepEqual(w.Spec, old.Spec) {
			w.Generation++
		}
		rememberCascade(w, old)
	},
	ValidateCreate: func(_ context.Context, w *rik.Workload) field.ErrorList {
		return append(validation.Workload(w), validateCascade(w)...)
	},
	ValidateUpdate: func(_ context.Context, w, old *rik.Workload) field.ErrorList {
		return append(validation.WorkloadUpdate(w, old), validateCascade(w)...)
	},
	Warnings: func(w *rik.Workload) []string { return validation.Warnings(&w.Spec) },
	Reset:    []string{"status"},
})

// rememberCascade stores the propagation policy of a deletion, in the same write that removes
// the finalizer with that policy. The controller that acts on it later therefore finds it, even
// after a restart.
func rememberCascade(w, old *rik.Workload) {
	if old.DeletionTimestamp == nil || !slices.Contains(w.Finalizers, rikv1alpha1.FinalizerWorkload) {
		return
	}
	for finalizer, cascade := range map[string]string{
		metav1.FinalizerOrphanDependents: rikv1alpha1.CascadeOrphan,
		metav1.FinalizerDeleteDependents: rikv1alpha1.CascadeForeground,
	} {
		if slices.Contains(old.Finalizers, finalizer) && !slices.Contains(w.Finalizers, finalizer) {
			metav1.SetMetaDataAnnotation(&w.ObjectMeta, rikv1alpha1.AnnotationCascade, cascade)
		}
	}
}

// validateCascade prevents users from setting the policy of a later deletion.
func validateCascade(w *rik.Workload) field.ErrorList {
	if _, set := w.Annotations[rikv1alpha1.AnnotationCascade]; !set || w.DeletionTimestamp != nil {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata", "annotations").Key(rikv1alpha1.AnnotationCascade),
		"is set by the server during a deletion; use kubectl delete --cascade=orphan")}
}

var statusStrategy = store.NewStrategy(store.Rules[*rik.Workload]{
	Namespaced: true,
	Update: func(_ context.Context, w, old *rik.Workload) {
		status, managed, version := w.Status, w.ManagedFields, w.ResourceVersion
		old.DeepCopyInto(w)
		w.Status, w.ManagedFields, w.ResourceVersion = status, managed, version
	},
	ValidateUpdate: func(_ context.Context, w, old *rik.Workload) field.ErrorList {
		return validation.WorkloadStatusUpdate(w, old)
	},
	Reset: []string{"spec", "metadata"},
})

// Create stores a new workload.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if err := r.permit(ctx, obj.(*rik.Workload), nil); err != nil {
		return nil, err
	}
	return r.Store.Create(ctx, obj, validate, options)
}

// Update stores a changed workload, or a new one through server-side apply.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.Store.Update(ctx, name, Permitted(info, r.permit), create, update, forceCreate, options)
}

// Permitted returns an update that fails unless the writer has permission. For an object that
// the update creates, permit gets the zero T as the old object.
func Permitted[T interface {
	runtime.Object
	metav1.Object
}](info rest.UpdatedObjectInfo, permit func(ctx context.Context, obj, old T) error) rest.UpdatedObjectInfo {
	return rest.WrapUpdatedObjectInfo(info, func(ctx context.Context, obj, old runtime.Object) (runtime.Object, error) {
		before, ok := old.(T)
		if !ok || before.GetResourceVersion() == "" {
			var none T
			before = none
		}
		return obj, permit(ctx, obj.(T), before)
	})
}

// permit checks whether the writer has the permissions for a new or changed template. A user
// who changes any part of a template that an administrator wrote needs the permissions too,
// because another image in it would run with the same privileges.
func (r *REST) permit(ctx context.Context, w, old *rik.Workload) error {
	var needs field.ErrorList
	if old == nil || !apiequality.Semantic.DeepEqual(w.Spec.InstanceTemplate, old.Spec.InstanceTemplate) {
		needs = validation.Privileges(field.NewPath("spec"), &w.Spec.InstanceTemplate)
		var before *rik.InstanceTemplate
		if old != nil {
			before = &old.Spec.InstanceTemplate
		}
		if errs := r.nodePorts.Validate(field.NewPath("spec"), &w.Spec.InstanceTemplate, before); len(errs) > 0 {
			return apierrors.NewInvalid(rik.Kind("Workload"), w.Name, errs)
		}
	}
	rollback, err := r.rollback(ctx, w, old)
	if err != nil {
		return err
	}
	return Permit(ctx, r.authorizer, rik.Resource("workloads"), w.Name, append(needs, rollback...))
}

// rollback returns the privileges of the templates to which a requested rollback may lead. The
// controller later writes the template without a check. All templates count, because the
// selected one depends on revision numbers and on the time of the controller's pass.
func (r *REST) rollback(ctx context.Context, w, old *rik.Workload) (field.ErrorList, error) {
	const key = rikv1alpha1.AnnotationRollback
	asked := w.Annotations[key]
	if asked == "" || old != nil && old.Annotations[key] == asked || r.Revisions == nil {
		return nil, nil
	}
	templates, err := r.Revisions.Templates(ctx, w.Name)
	if err != nil {
		return nil, err
	}
	var needs field.ErrorList
	for _, t := range templates {
		for _, n := range validation.Privileges(field.NewPath("spec"), t) {
			n.Field = field.NewPath("metadata", "annotations").Key(key).String() + ": " + n.Field
			needs = append(needs, n)
		}
	}
	return needs, nil
}

// Permit refuses the writer of an object that needs a privilege that the writer lacks. needs
// are the privileges of the workload that the object is or becomes, at the paths of the object.
// Without an authorizer, no user is privileged.
func Permit(ctx context.Context, a authorizer.Authorizer, resource schema.GroupResource, name string, needs field.ErrorList) error {
	if len(needs) == 0 {
		return nil
	}
	user, ok := genericapirequest.UserFrom(ctx)
	namespace := genericapirequest.NamespaceValue(ctx)
	if ok && a != nil {
		decision, _, err := a.Authorize(ctx, authorizer.AttributesRecord{
			User: user, Verb: VerbPrivileged, Name: namespace,
			APIGroup: rik.GroupName, APIVersion: rikv1alpha1.SchemeGroupVersion.Version,
			Resource: "workloads", ResourceRequest: true,
		})
		if err != nil && decision != authorizer.DecisionAllow {
			return apierrors.NewInternalError(fmt.Errorf("checking whether the workload may be privileged: %w", err))
		}
		if decision == authorizer.DecisionAllow {
			return nil
		}
	}
	var fields []string
	for _, n := range needs {
		fields = append(fields, n.Field+" ("+n.Detail+")")
	}
	return apierrors.NewForbidden(resource, name, fmt.Errorf(
		"%s: only administrators and users who may use the verb %q on workloads.rik.dev for namespace %q may set this field",
		strings.Join(fields, ", "), VerbPrivileged, namespace))
}

var table = store.Table[*rik.Workload]{
	Columns: []metav1.TableColumnDefinition{
		store.Name(),
		store.Column("Kind", "string", "Kind of its instances: Pod, Function or App."),
		store.Column("Deploy", "string", "How instances start: Manual or Automatic."),
		store.Column("Ready", "string", "Ready instances and requested instances."),
		store.Column("Up-to-date", "integer", "Instances of the newest revision."),
		store.Column("Available", "integer", "Instances that are ready."),
		store.Age(),
		store.Wide("Address", "string", "Its cluster IP, then its external addresses."),
		store.Wide("Ports", "string", "Ports that clients connect to; the type before a port shows from where."),
		store.Wide("Images", "string", "Images of the containers."),
		store.Wide("Selector", "string", "Label selector of the instances."),
		store.Wide("Revision", "string", "Current revision."),
	},
	Row: func(w *rik.Workload, now time.Time) []any {
		wanted := w.Status.Replicas
		if w.Spec.Deploy == rik.DeployAutomatic && w.Spec.Replicas != nil {
			wanted = *w.Spec.Replicas
		}
		return []any{
			w.Name, string(w.Spec.Kind), string(w.Spec.Deploy),
			fmt.Sprintf("%d/%d", w.Status.ReadyReplicas, wanted),
			w.Status.UpdatedReplicas, w.Status.ReadyReplicas, store.Since(w.CreationTimestamp, now),
			store.Or(strings.Join(w.Status.Addresses, ",")), store.Or(ports(w)),
			images(&w.Spec.InstanceTemplate), selector(w), store.Or(w.Status.CurrentRevision),
		}
	},
}

// ports returns the ports that a workload serves, such as 80/TCP or nodePort:30080/TCP.
func ports(w *rik.Workload) string {
	var out []string
	for _, p := range portsOf(&w.Spec.InstanceTemplate) {
		text := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.Type != rik.PortClusterIP {
			text = string(p.Type) + ":" + text
		}
		out = append(out, text)
	}
	return strings.Join(out, ",")
}

func portsOf(t *rik.InstanceTemplate) []rik.Port {
	var out []rik.Port
	for i := range t.Containers {
		out = append(out, t.Containers[i].Ports...)
	}
	if f := t.Function; f != nil && f.Exposure != nil {
		out = append(out, *f.Exposure)
	}
	if t.App != nil {
		out = append(out, t.App.Ports...)
	}
	return out
}

func images(t *rik.InstanceTemplate) string {
	var out []string
	for i := range t.Containers {
		out = append(out, t.Containers[i].Image)
	}
	if f := t.Function; f != nil {
		out = append(out, f.Execution.Image+f.Execution.Rootfs)
	}
	if t.App != nil {
		out = append(out, t.App.Repo)
	}
	return store.Or(strings.Join(out, ","))
}

// selector returns the selector of the instances: that of the status, or the one that it will
// have.
func selector(w *rik.Workload) string {
	if w.Status.Selector != "" {
		return w.Status.Selector
	}
	return rikv1alpha1.LabelWorkload + "=" + w.Name
}
