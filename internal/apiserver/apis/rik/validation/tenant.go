package validation

import (
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/api/rik/tenancy"
	"rik.dev/rik/internal/apiserver/apis/rik"
)

// tenantVerbs are the verbs that a user of a tenant can have. None of them gives rights outside of
// the tenant.
var tenantVerbs = []string{"*", "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}

// Tenant validates a new tenant. Its name is the name of its namespace. It cannot be a namespace of
// the system.
func Tenant(t *rik.Tenant) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&t.ObjectMeta, false, apivalidation.NameIsDNSLabel, metadata)
	if t.Name == "default" || strings.HasPrefix(t.Name, "kube-") || strings.HasPrefix(t.Name, "rik-") {
		errs = append(errs, field.Forbidden(metadata.Child("name"), `"default" and names that begin with "kube-" or "rik-" are reserved for the system`))
	}
	return sorted(append(errs, tenantSpec(&t.Spec)...))
}

// TenantUpdate validates an update of a tenant.
func TenantUpdate(t, old *rik.Tenant) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&t.ObjectMeta, &old.ObjectMeta, metadata)
	return sorted(append(errs, tenantSpec(&t.Spec)...))
}

// TenantStatusUpdate validates the status of a tenant.
func TenantStatusUpdate(t, old *rik.Tenant) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&t.ObjectMeta, &old.ObjectMeta, metadata)
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(t.Status.Instances), statusPath.Child("instances"))...)
	return sorted(append(errs, conditions(t.Status.Conditions)...))
}

func tenantSpec(s *rik.TenantSpec) field.ErrorList {
	errs := plain(specPath.Child("value"), s.Value)
	if len(s.Value) > MaxTenantValue {
		errs = append(errs, field.TooLong(specPath.Child("value"), "", MaxTenantValue))
	}
	at := specPath.Child("users")
	errs = append(errs, atMost(at, len(s.Users), MaxTenantUsers)...)
	names := seen{}
	for i := range s.Users {
		errs = append(errs, names.add(at.Index(i).Child("name"), s.Users[i].Name)...)
		errs = append(errs, tenantUser(at.Index(i), &s.Users[i])...)
	}
	return errs
}

func tenantUser(at *field.Path, u *rik.TenantUser) field.ErrorList {
	var errs field.ErrorList
	switch {
	case u.Name == "":
		errs = append(errs, field.Required(at.Child("name"), ""))
	case len(u.Name) > 256 || strings.ContainsFunc(u.Name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		errs = append(errs, field.Invalid(at.Child("name"), u.Name, "must be at most 256 bytes without control characters"))
	case strings.HasPrefix(u.Name, "system:") || strings.HasPrefix(u.Name, "rik:"):
		errs = append(errs, field.Forbidden(at.Child("name"), `names that begin with "system:" or "rik:" are reserved for the system`))
	}
	errs = append(errs, atMost(at.Child("verbs"), len(u.Verbs), MaxTenantRules)...)
	for i, v := range u.Verbs {
		errs = append(errs, among(at.Child("verbs").Index(i), v, tenantVerbs...)...)
	}
	errs = append(errs, atMost(at.Child("resources"), len(u.Resources), MaxTenantRules)...)
	for i, r := range u.Resources {
		errs = append(errs, among(at.Child("resources").Index(i), r, tenancy.Names()...)...)
	}
	for name, list := range map[string][]string{"verbs": u.Verbs, "resources": u.Resources} {
		if len(list) > 1 && slices.Contains(list, "*") {
			errs = append(errs, field.Invalid(at.Child(name), list, `"*" includes all other verbs`))
		}
	}
	return errs
}
