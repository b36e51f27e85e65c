// Package store creates registry stores of rik.dev from the differences between its resources:
// a few functions on one typed object each, and the columns of a table. It hides the many
// interfaces of the generic registry.
package store

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Rules are the functions that process an object between a request and storage. Nil functions
// do nothing.
type Rules[T runtime.Object] struct {
	Namespaced bool
	// Create prepares a new object. It drops the fields that the writer may not set.
	Create func(ctx context.Context, object T)
	// Update prepares a changed object in the same way.
	Update func(ctx context.Context, object, old T)
	// ValidateCreate and ValidateUpdate validate the prepared object.
	ValidateCreate func(ctx context.Context, object T) field.ErrorList
	ValidateUpdate func(ctx context.Context, object, old T) field.ErrorList
	// Warnings are sent to a writer whose object is accepted.
	Warnings func(object T) []string
	// Reset lists the top-level fields that Create and Update drop. Server-side apply gives no
	// writer ownership of them.
	Reset []string
}

// Strategy implements the interfaces of the generic registry with Rules.
type Strategy[T runtime.Object] struct {
	runtime.ObjectTyper
	names.NameGenerator
	rules Rules[T]
}

// NewStrategy creates a strategy from rules.
func NewStrategy[T runtime.Object](r Rules[T]) Strategy[T] {
	return Strategy[T]{ObjectTyper: legacyscheme.Scheme, NameGenerator: names.SimpleNameGenerator, rules: r}
}

var (
	_ rest.RESTCreateStrategy  = Strategy[runtime.Object]{}
	_ rest.RESTUpdateStrategy  = Strategy[runtime.Object]{}
	_ rest.RESTDeleteStrategy  = Strategy[runtime.Object]{}
	_ rest.ResetFieldsStrategy = Strategy[runtime.Object]{}
)

// NamespaceScoped reports whether the resource is namespaced.
func (s Strategy[T]) NamespaceScoped() bool { return s.rules.Namespaced }

// PrepareForCreate applies Create.
func (s Strategy[T]) PrepareForCreate(ctx context.Context, o runtime.Object) {
	if s.rules.Create != nil {
		s.rules.Create(ctx, o.(T))
	}
}

// PrepareForUpdate applies Update.
func (s Strategy[T]) PrepareForUpdate(ctx context.Context, o, old runtime.Object) {
	if s.rules.Update != nil {
		s.rules.Update(ctx, o.(T), old.(T))
	}
}

// Validate applies ValidateCreate.
func (s Strategy[T]) Validate(ctx context.Context, o runtime.Object) field.ErrorList {
	if s.rules.ValidateCreate == nil {
		return nil
	}
	return s.rules.ValidateCreate(ctx, o.(T))
}

// ValidateUpdate applies ValidateUpdate.
func (s Strategy[T]) ValidateUpdate(ctx context.Context, o, old runtime.Object) field.ErrorList {
	if s.rules.ValidateUpdate == nil {
		return nil
	}
	return s.rules.ValidateUpdate(ctx, o.(T), old.(T))
}

// WarningsOnCreate applies Warnings.
func (s Strategy[T]) WarningsOnCreate(_ context.Context, o runtime.Object) []string {
	if s.rules.Warnings == nil {
		return nil
	}
	return s.rules.Warnings(o.(T))
}

// WarningsOnUpdate applies Warnings.
func (s Strategy[T]) WarningsOnUpdate(ctx context.Context, o, _ runtime.Object) []string {
	return s.WarningsOnCreate(ctx, o)
}

// Canonicalize changes nothing, because the types have only one form for every value.
func (s Strategy[T]) Canonicalize(runtime.Object) {}

// AllowCreateOnUpdate returns false: a PUT of an object that does not exist is an error.
func (s Strategy[T]) AllowCreateOnUpdate() bool { return false }

// AllowUnconditionalUpdate returns true, which allows kubectl replace without a resource
// version. Strategies of resources with one writer return false.
func (s Strategy[T]) AllowUnconditionalUpdate() bool { return true }

// GetResetFields returns the fields that server-side apply must not own.
func (s Strategy[T]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet()
	for _, name := range s.rules.Reset {
		set.Insert(fieldpath.MakePathOrDie(name))
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(rikv1alpha1.SchemeGroupVersion.String()): set,
	}
}
