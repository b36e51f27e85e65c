package store

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"rik.dev/rik/internal/apiserver/apis/rik"
)

// Object is the interface of every resource's type.
type Object interface {
	runtime.Object
	metav1.Object
}

// CreateUpdateDelete is a strategy for all changes of an object.
type CreateUpdateDelete interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
	rest.ResetFieldsStrategy
}

// Options are the differences between resources.
type Options[T Object] struct {
	// Plural and Singular are the names of the resource.
	Plural, Singular string
	New              func() runtime.Object
	NewList          func() runtime.Object
	Strategy         CreateUpdateDelete
	Table            Table[T]
	// Fields are the selectable fields, in addition to the name and namespace. It may be nil.
	Fields func(T) fields.Set
	// Indexed is the field by which watches are indexed. A change then wakes only the watches
	// that select its value. IndexedValue returns only that field.
	Indexed      string
	IndexedValue func(T) string
	// Found are additional values by which Find finds objects. Empty values are not indexed.
	Found map[string]func(T) string
}

// New creates the store of a resource.
func New[T Object](getter generic.RESTOptionsGetter, o Options[T]) (*genericregistry.Store, error) {
	s := &genericregistry.Store{
		NewFunc:                   o.New,
		NewListFunc:               o.NewList,
		PredicateFunc:             o.predicate,
		DefaultQualifiedResource:  rik.Resource(o.Plural),
		SingularQualifiedResource: rik.Resource(o.Singular),
		CreateStrategy:            o.Strategy,
		UpdateStrategy:            o.Strategy,
		DeleteStrategy:            o.Strategy,
		ResetFieldsStrategy:       o.Strategy,
		TableConvertor:            o.Table,
	}
	options := &generic.StoreOptions{RESTOptions: getter, AttrFunc: o.attributes, Indexers: o.indexers()}
	if o.Indexed != "" {
		options.TriggerFunc = storage.IndexerFuncs{o.Indexed: func(obj runtime.Object) string { return o.IndexedValue(obj.(T)) }}
	}
	if err := s.CompleteWithOptions(options); err != nil {
		return nil, fmt.Errorf("creating the storage of %s: %w", o.Plural, err)
	}
	return s, nil
}

func (o Options[T]) attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	object, ok := obj.(T)
	if !ok {
		return nil, nil, fmt.Errorf("reading the fields of %T as %s", obj, o.Plural)
	}
	set := fields.Set{"metadata.name": object.GetName(), ByUID: string(object.GetUID())}
	for name, value := range o.Found {
		set[name] = value(object)
	}
	if ns := object.GetNamespace(); ns != "" {
		set["metadata.namespace"] = ns
	}
	if o.Fields != nil {
		for k, v := range o.Fields(object) {
			set[k] = v
		}
	}
	return object.GetLabels(), set, nil
}

func (o Options[T]) predicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	p := storage.SelectionPredicate{Label: label, Field: field, GetAttrs: o.attributes}
	if o.Indexed != "" {
		p.IndexFields = []string{o.Indexed}
	}
	return p
}

// REST is a store with its short names and categories.
type REST struct {
	*genericregistry.Store
	Short []string
	All   bool // listed by "get all"
}

var (
	_ rest.ShortNamesProvider = &REST{}
	_ rest.CategoriesProvider = &REST{}
)

// ShortNames returns abbreviations of the resource's name.
func (r *REST) ShortNames() []string { return r.Short }

// Categories returns the groups of resources in which this one is listed.
func (r *REST) Categories() []string {
	if r.All {
		return []string{"all"}
	}
	return nil
}

// Status serves the status of a resource as a subresource.
type Status struct{ store *genericregistry.Store }

var (
	_ rest.Patcher             = &Status{}
	_ rest.ResetFieldsStrategy = &Status{}
)

// NewStatus serves the status of a store's objects with another strategy.
func NewStatus(s *genericregistry.Store, strategy CreateUpdateDelete) *Status {
	return &Status{store: WithStrategy(s, strategy)}
}

// WithStrategy returns the same storage with another strategy for updates.
func WithStrategy(s *genericregistry.Store, strategy CreateUpdateDelete) *genericregistry.Store {
	other := *s
	other.UpdateStrategy, other.ResetFieldsStrategy = strategy, strategy
	return &other
}

// New returns an empty object.
func (s *Status) New() runtime.Object { return s.store.New() }

// Destroy does nothing, because the storage belongs to the main resource.
func (s *Status) Destroy() {}

// Get reads the whole object.
func (s *Status) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

// Update writes only the status and never creates an object. Only the controller and
// administrators may call it, whatever RBAC allows. A role with all permissions in a namespace
// is common, and other users rely on the status for what runs and for addresses.
func (s *Status) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if !Trusted(ctx) {
		resource := s.store.DefaultQualifiedResource
		resource.Resource += "/status"
		return nil, false, apierrors.NewForbidden(resource, name,
			errors.New("only rik's controller and administrators (the group system:masters) may write the status of rik's objects"))
	}
	return s.store.Update(ctx, name, info, create, update, false, options)
}

// GetResetFields returns the fields that server-side apply must not own here.
func (s *Status) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.store.GetResetFields()
}

// ConvertToTable returns the same table as the main resource.
func (s *Status) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, object, options)
}
