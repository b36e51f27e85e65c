// Package tenant stores Tenants with their status.
package tenant

import (
	"context"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/registry/store"
)

// ByLegacyID is the name of the index, for store.Find, of tenants by the ID that a v0 client
// set.
const ByLegacyID = "metadata.annotations.v0-id"

// LegacyID returns the ID of a tenant that a v0 client set. It is empty if there is none.
func LegacyID(t *rik.Tenant) string { return t.Annotations[rikv1alpha1.AnnotationLegacyID] }

// Storage serves tenants and their status.
type Storage struct {
	Tenant *store.REST
	Status *store.Status
}

// NewStorage creates the storage.
func NewStorage(getter generic.RESTOptionsGetter) (*Storage, error) {
	s, err := store.New(getter, store.Options[*rik.Tenant]{
		Plural: "tenants", Singular: "tenant",
		New:      func() runtime.Object { return &rik.Tenant{} },
		NewList:  func() runtime.Object { return &rik.TenantList{} },
		Strategy: strategy,
		Table:    table,
		Found:    map[string]func(*rik.Tenant) string{ByLegacyID: LegacyID},
	})
	if err != nil {
		return nil, err
	}
	return &Storage{Tenant: &store.REST{Store: s, Short: []string{"ten"}}, Status: store.NewStatus(s, statusStrategy)}, nil
}

var strategy = store.NewStrategy(store.Rules[*rik.Tenant]{
	Create: func(_ context.Context, t *rik.Tenant) {
		t.Status = rik.TenantStatus{}
		t.Generation = 1
	},
	Update: func(_ context.Context, t, old *rik.Tenant) {
		t.Status = old.Status
		t.Generation = old.Generation
		if !apiequality.Semantic.DeepEqual(t.Spec, old.Spec) {
			t.Generation++
		}
	},
	ValidateCreate: func(_ context.Context, t *rik.Tenant) field.ErrorList { return validation.Tenant(t) },
	ValidateUpdate: func(_ context.Context, t, old *rik.Tenant) field.ErrorList { return validation.TenantUpdate(t, old) },
	Reset:          []string{"status"},
})

var statusStrategy = store.NewStrategy(store.Rules[*rik.Tenant]{
	Update: func(_ context.Context, t, old *rik.Tenant) {
		status, managed, version := t.Status, t.ManagedFields, t.ResourceVersion
		old.DeepCopyInto(t)
		t.Status, t.ManagedFields, t.ResourceVersion = status, managed, version
	},
	ValidateUpdate: func(_ context.Context, t, old *rik.Tenant) field.ErrorList {
		return validation.TenantStatusUpdate(t, old)
	},
	Reset: []string{"spec", "metadata"},
})

var table = store.Table[*rik.Tenant]{
	Columns: []metav1.TableColumnDefinition{
		store.Name(),
		store.Column("Namespace", "string", "Namespace that it owns."),
		store.Column("Users", "string", "Who may use it."),
		store.Age(),
	},
	Row: func(t *rik.Tenant, now time.Time) []any {
		var users []string
		for i := range t.Spec.Users {
			users = append(users, t.Spec.Users[i].Name)
		}
		return []any{t.Name, store.Or(t.Status.Namespace), store.Or(strings.Join(users, ",")), store.Since(t.CreationTimestamp, now)}
	},
}
