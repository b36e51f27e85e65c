// Package workloadrevision stores WorkloadRevisions, of which only the revision number can
// change.
package workloadrevision

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	"rik.dev/rik/api/rik/revision"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/registry/store"
)

// Storage serves revisions.
type Storage struct{ Revision *REST }

// REST is the store of revisions. Only the controller and administrators may write them,
// whatever RBAC allows, because an instance of a revision runs without a check of who wrote the
// revision.
type REST struct{ *store.REST }

// NewStorage creates the storage.
func NewStorage(getter generic.RESTOptionsGetter) (*Storage, error) {
	s, err := store.New(getter, store.Options[*rik.WorkloadRevision]{
		Plural: "workloadrevisions", Singular: "workloadrevision",
		New:      func() runtime.Object { return &rik.WorkloadRevision{} },
		NewList:  func() runtime.Object { return &rik.WorkloadRevisionList{} },
		Strategy: strategy,
		Table:    table,
	})
	if err != nil {
		return nil, err
	}
	return &Storage{Revision: &REST{REST: &store.REST{Store: s, Short: []string{"wlrev"}}}}, nil
}

// Create stores a new revision.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if err := trusted(ctx, obj.(*rik.WorkloadRevision).Name); err != nil {
		return nil, err
	}
	return r.Store.Create(ctx, obj, validate, options)
}

// Update stores a changed revision, or a new one through server-side apply.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if err := trusted(ctx, name); err != nil {
		return nil, false, err
	}
	return r.Store.Update(ctx, name, info, create, update, forceCreate, options)
}

func trusted(ctx context.Context, name string) error {
	if store.Trusted(ctx) {
		return nil
	}
	return apierrors.NewForbidden(rik.Resource("workloadrevisions"), name,
		errors.New("rik's controller writes revisions when workloads change: change the workload"))
}

var strategy = store.NewStrategy(store.Rules[*rik.WorkloadRevision]{
	Namespaced:     true,
	ValidateCreate: func(_ context.Context, r *rik.WorkloadRevision) field.ErrorList { return validation.Revision(r) },
	ValidateUpdate: func(_ context.Context, r, old *rik.WorkloadRevision) field.ErrorList {
		return validation.RevisionUpdate(r, old)
	},
})

var table = store.Table[*rik.WorkloadRevision]{
	Columns: []metav1.TableColumnDefinition{
		store.Name(),
		store.Column("Workload", "string", "Workload whose spec it copies."),
		store.Column("Revision", "integer", "Its number; the highest is the newest."),
		store.Age(),
	},
	Row: func(r *rik.WorkloadRevision, now time.Time) []any {
		return []any{r.Name, store.Or(r.Labels[rikv1alpha1.LabelWorkload]), r.Revision, store.Since(r.CreationTimestamp, now)}
	},
}

// Get reads a revision.
func (s *Storage) Get(ctx context.Context, name string) (*rikv1alpha1.WorkloadRevision, error) {
	obj, err := s.Revision.Get(about(ctx, "get", name), name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return published(obj)
}

// Ensure returns the stored revision of a workload's current template. It creates the revision
// if there is none. Any number of callers may call it concurrently, including the controller,
// and all get the same revision.
func (s *Storage) Ensure(ctx context.Context, w *rikv1alpha1.Workload, dryRun []string) (*rikv1alpha1.WorkloadRevision, error) {
	made := revision.For(w)
	found, err := s.Get(ctx, made.Name)
	if !apierrors.IsNotFound(err) {
		return found, err
	}
	if made.Revision, err = s.next(ctx, w.Name); err != nil {
		return nil, err
	}
	hub := &rik.WorkloadRevision{}
	if err := v1alpha1.Convert_v1alpha1_WorkloadRevision_To_rik_WorkloadRevision(made, hub, nil); err != nil {
		return nil, err
	}
	// The privileges were checked when the workload was written.
	obj, err := s.Revision.Store.Create(about(ctx, "create", made.Name), hub, nil, &metav1.CreateOptions{DryRun: dryRun})
	if apierrors.IsAlreadyExists(err) {
		return s.Get(ctx, made.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("creating the revision of workload %q: %w", w.Name, err)
	}
	return published(obj)
}

// next returns the number for a new revision of a workload.
func (s *Storage) next(ctx context.Context, workload string) (int64, error) {
	list, err := s.of(ctx, workload)
	if err != nil {
		return 0, err
	}
	existing := make([]rikv1alpha1.WorkloadRevision, len(list.Items))
	for i := range list.Items {
		existing[i].Revision = list.Items[i].Revision
	}
	return revision.Next(existing), nil
}

// of returns the revisions of a workload.
func (s *Storage) of(ctx context.Context, workload string) (*rik.WorkloadRevisionList, error) {
	selector := labels.SelectorFromSet(labels.Set{rikv1alpha1.LabelWorkload: workload})
	obj, err := s.Revision.List(about(ctx, "list", ""), &internalversion.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("listing the revisions of workload %q: %w", workload, err)
	}
	list, ok := obj.(*rik.WorkloadRevisionList)
	if !ok {
		return nil, errors.New("programmer error: the list is not a list of revisions")
	}
	return list, nil
}

// about returns a context in which errors name revisions, although the request is for another
// resource.
func about(ctx context.Context, verb, name string) context.Context {
	return genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, Verb: verb, Name: name, Namespace: genericapirequest.NamespaceValue(ctx),
		APIGroup: rik.GroupName, APIVersion: rikv1alpha1.SchemeGroupVersion.Version, Resource: "workloadrevisions",
	})
}

func published(obj runtime.Object) (*rikv1alpha1.WorkloadRevision, error) {
	hub, ok := obj.(*rik.WorkloadRevision)
	if !ok {
		return nil, fmt.Errorf("programmer error: %T is not a revision", obj)
	}
	out := &rikv1alpha1.WorkloadRevision{}
	return out, v1alpha1.Convert_rik_WorkloadRevision_To_v1alpha1_WorkloadRevision(hub, out, nil)
}

// Templates returns the templates of a workload's revisions.
func (s *Storage) Templates(ctx context.Context, name string) ([]*rik.InstanceTemplate, error) {
	list, err := s.of(ctx, name)
	if err != nil {
		return nil, err
	}
	var out []*rik.InstanceTemplate
	for i := range list.Items {
		out = append(out, &list.Items[i].Template)
	}
	return out, nil
}
