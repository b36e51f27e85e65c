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

// Object is what every resource's type is.
type Object interface {
	runtime.Object
	metav1.Object
}

// CreateUpdateDelete is a strategy for everything that changes an object.
type CreateUpdateDelete interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
	rest.ResetFieldsStrategy
}

// Options are what differs between resources.
type Options[T Object] struct {
	// Plural and Singular name the resource.
	Plural, Singular string
	New              func() runtime.Object
	NewList          func() runtime.Object
	Strategy         CreateUpdateDelete
	Table            Table[T]
	// Fields that can be selected, beside the name and namespace; may be nil.
	Fields func(T) fields.Set
	// Indexed is the one of Fields by which watches are looked up, so that a
	// change wakes only those who asked for its value, and IndexedValue reads it
	// alone.
	Indexed      string
	IndexedValue func(T) string
	// Found are further values by which Find finds objects; one that is empty is
	// not found by.
	Found map[string]func(T) string
}

// New makes the store of a resource.
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
		return nil, fmt.Errorf("making the storage of %s: %w", o.Plural, err)
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

// REST is a store with the names that clients may use for it.
type REST struct {
	*genericregistry.Store
	Short []string
	All   bool // listed by "get all"
}

var (
	_ rest.ShortNamesProvider = &REST{}
	_ rest.CategoriesProvider = &REST{}
)

// ShortNames are abbreviations of the resource's name.
func (r *REST) ShortNames() []string { return r.Short }

// Categories are the groups of resources that it is listed with.
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

// NewStatus serves the status of a store's objects under another strategy.
func NewStatus(s *genericregistry.Store, strategy CreateUpdateDelete) *Status {
	return &Status{store: WithStrategy(s, strategy)}
}

// WithStrategy is the same storage under another strategy for updates.
func WithStrategy(s *genericregistry.Store, strategy CreateUpdateDelete) *genericregistry.Store {
	other := *s
	other.UpdateStrategy, other.ResetFieldsStrategy = strategy, strategy
	return &other
}

// New makes an empty object.
func (s *Status) New() runtime.Object { return s.store.New() }

// Destroy does nothing: the storage belongs to the main resource.
func (s *Status) Destroy() {}

// Get reads the whole object.
func (s *Status) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

// Update writes the status and nothing else; it never creates. It is refused to
// all but the controller and administrators, whatever RBAC says: a role for
// everything in a namespace is soon given, and a status tells others what runs and
// which address is whose.
func (s *Status) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if !Trusted(ctx) {
		resource := s.store.DefaultQualifiedResource
		resource.Resource += "/status"
		return nil, false, apierrors.NewForbidden(resource, name,
			errors.New("only rik's controller and administrators (the group system:masters) write the status of what is rik's"))
	}
	return s.store.Update(ctx, name, info, create, update, false, options)
}

// GetResetFields are the fields that server-side apply must not own here.
func (s *Status) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.store.GetResetFields()
}

// ConvertToTable prints the object as the main resource does.
func (s *Status) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, object, options)
}
