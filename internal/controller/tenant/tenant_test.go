package tenant

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

var tenant = &rikv1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{Name: "team"}}

func TestRole(t *testing.T) {
	t.Parallel()
	all := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	look := []string{"get", "list", "watch"}
	rule := func(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	everything := []rbacv1.PolicyRule{
		rule("rik.dev", all, "workloads", "workloads/scale", "instances", "instances/exec", "instances/portforward", "instances/suspend", "instances/resume"),
		rule("rik.dev", look, "workloads/status", "workloadrevisions", "instances/status", "instances/log"),
		rule("", all, "configmaps", "secrets", "serviceaccounts"),
		rule("", look, "events"),
		rule("apps", all, "deployments", "deployments/scale"),
		rule("apps", look, "deployments/status"),
		rule("events.k8s.io", look, "events"),
	}
	for name, tc := range map[string]struct {
		user rikv1alpha1.TenantUser
		want []rbacv1.PolicyRule
	}{
		"everything":   {rikv1alpha1.TenantUser{Name: "u", Verbs: []string{"*"}, Resources: []string{"*"}}, everything},
		"nothing said": {rikv1alpha1.TenantUser{Name: "u"}, everything},
		"to look": {rikv1alpha1.TenantUser{Name: "u", Verbs: []string{"get"}, Resources: []string{"workloads", "configmaps"}}, []rbacv1.PolicyRule{
			rule("rik.dev", []string{"get"}, "workloads", "workloads/scale", "workloads/status"),
			rule("", []string{"get"}, "configmaps"),
			rule("", look, "events"), rule("events.k8s.io", look, "events"),
		}},
		"to make": {rikv1alpha1.TenantUser{Name: "u", Verbs: []string{"create"}, Resources: []string{"workloads", "workloads/scale"}}, []rbacv1.PolicyRule{
			rule("rik.dev", []string{"create"}, "workloads", "workloads/scale"),
			rule("", look, "events"), rule("events.k8s.io", look, "events"),
		}},
		"never what the system says": {rikv1alpha1.TenantUser{Name: "u", Verbs: []string{"get", "update", "patch"}, Resources: []string{"workloads/status", "instances/status", "workloadrevisions"}}, []rbacv1.PolicyRule{
			rule("rik.dev", []string{"get"}, "workloads/status", "instances/status", "workloadrevisions"),
			rule("", look, "events"), rule("events.k8s.io", look, "events"),
		}},
		"never beyond the sandbox": {rikv1alpha1.TenantUser{Name: "u", Verbs: []string{"get", "privileged"}, Resources: []string{"configmaps", "roles", "nodes"}}, []rbacv1.PolicyRule{
			rule("", []string{"get"}, "configmaps"),
			rule("", look, "events"), rule("events.k8s.io", look, "events"),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, Role(tenant, &tc.user).Rules); diff != "" {
				t.Errorf("Role (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNames: the objects have valid and distinct names for any user names.
func TestNames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := rikv1alpha1.TenantUser{Name: rapid.String().Draw(t, "a")}
		b := rikv1alpha1.TenantUser{Name: rapid.String().Draw(t, "b")}
		role, binding := Role(tenant, &a), Binding(tenant, &a)
		if problems := validation.IsDNS1123Label(role.Name); len(problems) > 0 {
			t.Fatalf("%q: %v", role.Name, problems)
		}
		if binding.RoleRef.Name != role.Name || binding.Subjects[0].Name != a.Name || role.Namespace != "team" {
			t.Fatalf("%+v does not bind %+v", binding, role)
		}
		if (a.Name == b.Name) != (role.Name == Role(tenant, &b).Name) {
			t.Fatalf("%q and %q have roles %q and %q", a.Name, b.Name, role.Name, Role(tenant, &b).Name)
		}
	})
}
