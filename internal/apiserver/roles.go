package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

const (
	rolesHook = "rik/bootstrap-roles"
	// rolesAtOnce is how many roles are created concurrently at the first start. They are
	// independent, and each waits for the disk.
	rolesAtOnce = 16
)

// kubernetesRoles are those of Kubernetes' own cluster roles and bindings that are useful here.
// The others are for its node agents and controllers.
var kubernetesRoles = sets.New(
	"cluster-admin", "admin", "edit", "view",
	"system:aggregate-to-admin", "system:aggregate-to-edit", "system:aggregate-to-view",
	"system:basic-user", "system:discovery", "system:public-info-viewer",
	"system:monitoring", "system:auth-delegator", "system:service-account-issuer-discovery",
)

var (
	readVerbs  = []string{"get", "list", "watch"}
	writeVerbs = []string{"create", "update", "patch", "delete", "deletecollection"}
)

// rikRoles add rik.dev to the permissions of Kubernetes' admin, edit and view in a namespace
// (edit includes view, and admin includes edit). Users create and delete instances, but only
// the controller changes them. Revisions are immutable. Nodes and tenants are for the cluster
// administrator.
var rikRoles = []rbacv1.ClusterRole{
	aggregated("rik:aggregate-to-view", "view",
		rule(readVerbs, "workloads", "workloads/status", "workloads/scale", "instances", "instances/status", "workloadrevisions"),
		rule([]string{"get"}, "instances/log"),
	),
	aggregated("rik:aggregate-to-edit", "edit",
		rule(writeVerbs, "workloads"),
		rule([]string{"update", "patch"}, "workloads/scale"),
		rule([]string{"create", "delete", "deletecollection"}, "instances"),
		// WebSocket clients start with a GET.
		rule([]string{"get", "create"}, "instances/exec", "instances/portforward"),
		rule([]string{"create"}, "instances/suspend", "instances/resume"),
	),
}

func rule(verbs []string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{rikv1alpha1.SchemeGroupVersion.Group}, Resources: resources}
}

func aggregated(name, into string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
	labels := map[string]string{"rbac.authorization.k8s.io/aggregate-to-" + into: "true"}
	return rbacv1.ClusterRole{ObjectMeta: roleMeta(name, labels), Rules: rules}
}

// roleMeta marks a role as created by the server. At every start the server restores
// permissions that an administrator removed, unless the annotation is set to false.
func roleMeta(name string, labels map[string]string) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
	for key, value := range labels {
		meta.Labels[key] = value
	}
	return meta
}

func bootstrapRoles() []rbacv1.ClusterRole {
	var roles []rbacv1.ClusterRole
	for _, role := range bootstrappolicy.ClusterRoles() {
		if kubernetesRoles.Has(role.Name) {
			roles = append(roles, role)
		}
	}
	return append(roles, rikRoles...)
}

func bootstrapBindings() []rbacv1.ClusterRoleBinding {
	var bindings []rbacv1.ClusterRoleBinding
	for _, binding := range bootstrappolicy.ClusterRoleBindings() {
		if kubernetesRoles.Has(binding.RoleRef.Name) {
			bindings = append(bindings, binding)
		}
	}
	return bindings
}

// ensureRoles is the post-start hook that creates the roles above. Readiness waits for it, even
// if a slow datastore takes long, because a hook that fails ends the whole process. Until then
// all users except administrators are refused.
func ensureRoles(hook genericapiserver.PostStartHookContext) error {
	client, err := kubernetes.NewForConfig(hook.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("creating a client for the bootstrap roles: %w", err)
	}
	last := errors.New("the API server did not answer")
	err = wait.PollUntilContextCancel(hook, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		before := last
		if last = reconcileRoles(ctx, client.RbacV1()); last != nil && last.Error() != before.Error() {
			klog.FromContext(ctx).Info("the bootstrap roles do not exist yet", "err", last)
		}
		return last == nil, nil
	})
	if err != nil && hook.Err() == nil {
		return fmt.Errorf("creating the bootstrap roles: %w", last)
	}
	return nil
}

func reconcileRoles(ctx context.Context, client rbacclient.RbacV1Interface) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(rolesAtOnce)
	for _, role := range bootstrapRoles() {
		group.Go(func() error { return reconcile(ctx, role.Name, roleReconciler(client, role)) })
	}
	for _, binding := range bootstrapBindings() {
		group.Go(func() error { return reconcile(ctx, binding.Name, bindingReconciler(client, binding)) })
	}
	return group.Wait()
}

func reconcile(ctx context.Context, name string, run func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := retry.OnError(retry.DefaultBackoff, apierrors.IsConflict, run); err != nil {
		return fmt.Errorf("reconciling role or binding %q: %w", name, err)
	}
	return nil
}

func roleReconciler(client rbacclient.RbacV1Interface, role rbacv1.ClusterRole) func() error {
	return func() error {
		_, err := (&reconciliation.ReconcileRoleOptions{
			Role:    reconciliation.ClusterRoleRuleOwner{ClusterRole: &role},
			Client:  reconciliation.ClusterRoleModifier{Client: client.ClusterRoles()},
			Confirm: true,
		}).Run()
		return err
	}
}

func bindingReconciler(client rbacclient.RbacV1Interface, binding rbacv1.ClusterRoleBinding) func() error {
	return func() error {
		_, err := (&reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &binding},
			Client:      reconciliation.ClusterRoleBindingClientAdapter{Client: client.ClusterRoleBindings()},
			Confirm:     true,
		}).Run()
		return err
	}
}
