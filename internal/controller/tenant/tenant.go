package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// resources of rik that a tenant's users may be given.
var resources = []string{
	"workloads", "workloads/scale", "workloads/status", "workloadrevisions",
	"instances", "instances/status", "instances/log", "instances/exec", "instances/portforward",
	"instances/suspend", "instances/resume",
}

// core resources that a tenant's users need beside their workloads.
var core = []string{"configmaps", "secrets", "serviceaccounts"}

// subresources of rik's resources, which a right to the resource brings along.
var subresources = map[string][]string{
	"workloads": {"workloads/scale", "workloads/status"},
	"instances": {"instances/status", "instances/log", "instances/exec", "instances/portforward", "instances/suspend", "instances/resume"},
}

// Namespace is the namespace that a tenant owns.
func Namespace(t *rikv1alpha1.Tenant) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: t.Name, Labels: map[string]string{rikv1alpha1.LabelTenant: t.Name},
	}}
}

// Role is what a user may do in the tenant's namespace: the verbs on the
// resources of rik, and on those of the core that are named or covered by "*".
// Never on roles: a user could give themself the rest.
func Role(t *rikv1alpha1.Tenant, u *rikv1alpha1.TenantUser) *rbacv1.Role {
	verbs := u.Verbs
	if len(verbs) == 0 {
		verbs = []string{"*"}
	}
	var own, others []string
	if len(u.Resources) == 0 || slices.Contains(u.Resources, "*") {
		own, others = slices.Clone(resources), slices.Clone(core)
	} else {
		for _, name := range u.Resources {
			if slices.Contains(core, name) {
				others = append(others, name)
				continue
			}
			own = append(append(own, name), subresources[name]...)
		}
	}
	role := &rbacv1.Role{ObjectMeta: meta(t, u)}
	if len(own) > 0 {
		role.Rules = append(role.Rules, rule(rikv1alpha1.GroupName, own, ordinary(verbs)))
	}
	if len(others) > 0 {
		role.Rules = append(role.Rules, rule("", others, ordinary(verbs)))
	}
	role.Rules = append(role.Rules, rule("events.k8s.io", []string{"events"}, []string{"get", "list", "watch"}))
	return role
}

// ordinary spells "*" out: the wildcard would include the verb that lifts the
// bounds of a container, which is for administrators.
func ordinary(verbs []string) []string {
	if !slices.Contains(verbs, "*") {
		return slices.DeleteFunc(slices.Clone(verbs), func(v string) bool { return v == "privileged" })
	}
	return []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
}

func rule(group string, resources, verbs []string) rbacv1.PolicyRule {
	slices.Sort(resources)
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: slices.Compact(resources), Verbs: verbs}
}

// Binding gives a user their role.
func Binding(t *rikv1alpha1.Tenant, u *rikv1alpha1.TenantUser) *rbacv1.RoleBinding {
	m := meta(t, u)
	return &rbacv1.RoleBinding{
		ObjectMeta: m,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: m.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: u.Name}},
	}
}

// meta names a user's role and binding. A user's name may be anything, an
// object's may not: it is hashed.
func meta(t *rikv1alpha1.Tenant, u *rikv1alpha1.TenantUser) metav1.ObjectMeta {
	sum := sha256.Sum256([]byte(u.Name))
	return metav1.ObjectMeta{
		Namespace:   t.Name,
		Name:        "tenant-user-" + hex.EncodeToString(sum[:8]),
		Labels:      map[string]string{rikv1alpha1.LabelTenant: t.Name},
		Annotations: map[string]string{"rik.dev/user": u.Name},
	}
}
