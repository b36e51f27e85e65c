// Package instance stores Instances and opens sessions with them: logs, commands in containers,
// and ports.
package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"rik.dev/rik/api/rik/revision"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/registry/store"
	"rik.dev/rik/internal/apiserver/registry/workload"
)

// Workloads reads workloads. The store of workloads implements it.
type Workloads interface {
	Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error)
}

// Revisions reads revisions and creates missing ones.
type Revisions interface {
	Get(ctx context.Context, name string) (*rikv1alpha1.WorkloadRevision, error)
	Ensure(ctx context.Context, w *rikv1alpha1.Workload, dryRun []string) (*rikv1alpha1.WorkloadRevision, error)
}

// Config configures the storage of instances.
type Config struct {
	Workloads Workloads
	Revisions Revisions
	// Sessions connect to the nodes. Without them log, exec and portforward answer 503.
	Sessions Sessions
	// Authorizer is called again for a command or a port over a WebSocket, which arrives as a
	// GET. If it is nil, all of them are refused.
	Authorizer authorizer.Authorizer
}

// ByWorkload is the name of the index, for store.Find, of instances by the UID of the workload
// that owns them.
const ByWorkload = "metadata.ownerReferences.uid"

// WorkloadUID returns the UID of the workload that owns an instance. It is empty for an orphan.
func WorkloadUID(i *rik.Instance) string {
	for n := range i.OwnerReferences {
		if i.OwnerReferences[n].Kind == "Workload" {
			return string(i.OwnerReferences[n].UID)
		}
	}
	return ""
}

// Storage serves instances and their subresources.
type Storage struct {
	Instance        *REST
	Status          *store.Status
	Log             *Log
	Exec            *Exec
	Ports           *PortForward
	Suspend, Resume *Hold
	// Whole is the same storage for the controller, which writes spec and status in one write. It
	// is not served.
	Whole *genericregistry.Store
}

// REST is the store of instances. It assigns a new instance to its workload's newest revision.
type REST struct {
	*store.REST
	workloads  Workloads
	revisions  Revisions
	authorizer authorizer.Authorizer
}

// NewStorage creates the storage.
func NewStorage(getter generic.RESTOptionsGetter, c Config) (*Storage, error) {
	main, status, whole := newStrategies(func(ctx context.Context, i *rik.Instance) int64 {
		r, err := c.Revisions.Get(ctx, i.Spec.Revision)
		if err != nil || r.Template.TerminationGracePeriodSeconds == nil {
			return v1alpha1.DefaultTerminationGraceSeconds
		}
		return *r.Template.TerminationGracePeriodSeconds
	})
	s, err := store.New(getter, store.Options[*rik.Instance]{
		Plural: "instances", Singular: "instance",
		New:      func() runtime.Object { return &rik.Instance{} },
		NewList:  func() runtime.Object { return &rik.InstanceList{} },
		Strategy: main,
		Table:    table,
		Indexed:  "spec.nodeName",

		IndexedValue: func(i *rik.Instance) string { return i.Spec.NodeName },
		Found:        map[string]func(*rik.Instance) string{ByWorkload: WorkloadUID},
		Fields: func(i *rik.Instance) fields.Set {
			return fields.Set{
				"spec.nodeName": i.Spec.NodeName, "spec.workload": i.Spec.Workload,
				"spec.revision": i.Spec.Revision, "status.phase": string(i.Status.Phase),
			}
		},
	})
	if err != nil {
		return nil, err
	}
	s.ReturnDeletedObject = true
	session := opener{instances: s, revisions: c.Revisions, sessions: c.Sessions}
	return &Storage{
		Instance: &REST{
			REST:      &store.REST{Store: s, Short: []string{"inst", "ins"}, All: true},
			workloads: c.Workloads, revisions: c.Revisions, authorizer: c.Authorizer,
		},
		Status: store.NewStatus(s, status),
		Log:    &Log{opener: session},
		Exec:   &Exec{opener: session, authorizer: c.Authorizer},
		Ports:  &PortForward{opener: session, authorizer: c.Authorizer},

		Suspend: &Hold{opener: session, suspended: true},
		Resume:  &Hold{opener: session},

		Whole: store.WithStrategy(s, whole),
	}, nil
}

// Create stores a new instance. It does not change instances of the controller. An instance of
// a user gets the revision that it names, or the newest one of its workload, which is created
// if it does not exist yet.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	i, ok := obj.(*rik.Instance)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("expected an Instance, got %T", obj))
	}
	if !controls(ctx) || i.Spec.Revision == "" {
		if err := r.stamp(ctx, i, options.DryRun); err != nil {
			return nil, err
		}
	}
	return r.Store.Create(ctx, i, validate, options)
}

// Update stores a changed instance. Server-side apply may create a new one here.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	info = rest.WrapUpdatedObjectInfo(info, func(ctx context.Context, obj, old runtime.Object) (runtime.Object, error) {
		i, isInstance := obj.(*rik.Instance)
		before, hasOld := old.(*rik.Instance)
		if !isInstance || !hasOld {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("expected an Instance, got %T", obj))
		}
		if before.ResourceVersion == "" {
			return i, r.stamp(ctx, i, options.DryRun)
		}
		// Fields that the server set are kept when a manifest without them is applied again.
		i.Spec.Revision = cmp.Or(i.Spec.Revision, before.Spec.Revision)
		if i.Spec.NodeName == "" {
			i.Spec.NodeName = before.Spec.NodeName
		} else if i.Spec.NodeName != before.Spec.NodeName && !controls(ctx) {
			return nil, invalid(i, field.Forbidden(field.NewPath("spec", "nodeName"), "is set by the scheduler"))
		}
		return i, nil
	})
	return r.Store.Update(ctx, name, info, create, update, forceCreate, options)
}

func (r *REST) stamp(ctx context.Context, i *rik.Instance, dryRun []string) error {
	rev, err := r.revisionFor(ctx, i, dryRun)
	if err != nil {
		return err
	}
	made := &rikv1alpha1.Instance{}
	if err := v1alpha1.Convert_rik_Instance_To_v1alpha1_Instance(i, made, nil); err != nil {
		return err
	}
	revision.Stamp(made, rev)
	return v1alpha1.Convert_v1alpha1_Instance_To_rik_Instance(made, i, nil)
}

// revisionFor returns the revision for a user's instance.
func (r *REST) revisionFor(ctx context.Context, i *rik.Instance, dryRun []string) (*rikv1alpha1.WorkloadRevision, error) {
	at := field.NewPath("spec")
	if i.Spec.Workload == "" {
		return nil, invalid(i, field.Required(at.Child("workload"), ""))
	}
	if i.Spec.Revision != "" {
		rev, err := r.revisions.Get(ctx, i.Spec.Revision)
		if apierrors.IsNotFound(err) || err == nil && rev.Labels[rikv1alpha1.LabelWorkload] != i.Spec.Workload {
			return nil, invalid(i, field.Invalid(at.Child("revision"), i.Spec.Revision, fmt.Sprintf("is not a revision of workload %q", i.Spec.Workload)))
		}
		if err != nil {
			return nil, err
		}
		return rev, r.permit(ctx, i, rev)
	}
	w, err := r.workload(ctx, i)
	if err != nil {
		return nil, err
	}
	if w.DeletionTimestamp != nil {
		return nil, apierrors.NewConflict(rik.Resource("workloads"), w.Name, errors.New("it is being deleted"))
	}
	return r.revisions.Ensure(ctx, w, dryRun)
}

// permit checks the privileges of a revision that its workload no longer uses, because an
// administrator may have revoked them since. The current template needs no check: every user
// who may create instances may run it.
func (r *REST) permit(ctx context.Context, i *rik.Instance, rev *rikv1alpha1.WorkloadRevision) error {
	w, err := r.workload(ctx, i)
	if err == nil && revision.Name(w) == rev.Name {
		return nil
	}
	hub := &rik.WorkloadRevision{}
	if err := v1alpha1.Convert_v1alpha1_WorkloadRevision_To_rik_WorkloadRevision(rev, hub, nil); err != nil {
		return err
	}
	needs := validation.Privileges(field.NewPath("spec", "revision"), &hub.Template)
	return workload.Permit(ctx, r.authorizer, rik.Resource("instances"), nameOf(i), needs)
}

// workload returns the workload that an instance names.
func (r *REST) workload(ctx context.Context, i *rik.Instance) (*rikv1alpha1.Workload, error) {
	at := field.NewPath("spec")
	about := genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, Verb: "get", APIGroup: rik.GroupName, Resource: "workloads",
		Namespace: genericapirequest.NamespaceValue(ctx), Name: i.Spec.Workload,
	})
	obj, err := r.workloads.Get(about, i.Spec.Workload, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) {
		return nil, invalid(i, field.NotFound(at.Child("workload"), i.Spec.Workload))
	}
	if err != nil {
		return nil, err
	}
	hub, ok := obj.(*rik.Workload)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("programmer error: %T is not a workload", obj))
	}
	w := &rikv1alpha1.Workload{}
	return w, v1alpha1.Convert_rik_Workload_To_v1alpha1_Workload(hub, w, nil)
}

// nameOf returns the name of an instance for errors. The instance may have no name yet.
func nameOf(i *rik.Instance) string { return cmp.Or(i.Name, i.GenerateName) }

func invalid(i *rik.Instance, errs ...*field.Error) error {
	return apierrors.NewInvalid(rik.Kind("Instance"), nameOf(i), errs)
}
