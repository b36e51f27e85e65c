package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/api/rik/tenancy"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Namespace returns the namespace that a tenant owns.
func Namespace(t *rikv1alpha1.Tenant) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: t.Name, Labels: map[string]string{rikv1alpha1.LabelTenant: t.Name},
	}}
}

// Role returns the permissions of a user in the tenant's namespace. It contains the requested
// verbs on the resources that are named or covered by "*", as far as package tenancy allows
// them, and read access to events. It never covers roles: otherwise users could give themselves
// more permissions.
func Role(t *rikv1alpha1.Tenant, u *rikv1alpha1.TenantUser) *rbacv1.Role {
	names := u.Resources
	if len(names) == 0 {
		names = []string{tenancy.All}
	}
	role := &rbacv1.Role{ObjectMeta: meta(t, u)}
	given := map[string]bool{}
	add := func(r tenancy.Resource, verbs []string) {
		if key := r.Group + "/" + r.Name; len(verbs) > 0 && !given[key] {
			given[key] = true
			role.Rules = addTo(role.Rules, r, verbs)
		}
	}
	for _, name := range names {
		for _, r := range tenancy.Granted(name) {
			add(r, verbs(u, r))
		}
	}
	for _, r := range tenancy.Granted("events") {
		add(r, reading)
	}
	return role
}

var (
	reading = []string{"get", "list", "watch"}
	writing = []string{"create", "update", "patch", "delete", "deletecollection"}
)

// verbs returns the verbs that a user gets on a resource. "*" is expanded, because the wildcard
// would include the verb that allows privileged containers, which is for administrators.
func verbs(u *rikv1alpha1.TenantUser, r tenancy.Resource) []string {
	asked, known := u.Verbs, slices.Concat(reading, writing)
	if len(asked) == 0 || slices.Contains(asked, tenancy.All) {
		asked = known
	}
	if r.ReadOnly {
		known = reading
	}
	return slices.DeleteFunc(slices.Clone(asked), func(v string) bool { return !slices.Contains(known, v) })
}

// addTo adds the resource to the rule of its group with the same verbs, or adds a new rule.
func addTo(rules []rbacv1.PolicyRule, r tenancy.Resource, verbs []string) []rbacv1.PolicyRule {
	for i := range rules {
		if rules[i].APIGroups[0] == r.Group && slices.Equal(rules[i].Verbs, verbs) {
			rules[i].Resources = append(rules[i].Resources, r.Name)
			return rules
		}
	}
	return append(rules, rbacv1.PolicyRule{APIGroups: []string{r.Group}, Resources: []string{r.Name}, Verbs: verbs})
}

// Binding binds a user to their role.
func Binding(t *rikv1alpha1.Tenant, u *rikv1alpha1.TenantUser) *rbacv1.RoleBinding {
	m := meta(t, u)
	return &rbacv1.RoleBinding{
		ObjectMeta: m,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: m.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: u.Name}},
	}
}

// meta returns the metadata of a user's role and binding. The name of the object contains a
// hash of the user's name, because that may contain any characters.
func meta(t *rikv1alpha1.Tenant, u *rikv1alpha1.TenantUser) metav1.ObjectMeta {
	sum := sha256.Sum256([]byte(u.Name))
	return metav1.ObjectMeta{
		Namespace:   t.Name,
		Name:        "tenant-user-" + hex.EncodeToString(sum[:8]),
		Labels:      map[string]string{rikv1alpha1.LabelTenant: t.Name},
		Annotations: map[string]string{"rik.dev/user": u.Name},
	}
}
