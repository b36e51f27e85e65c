package controller

import (
	"net/http"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// Scheme holds the types that the controller reads and writes.
var Scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		rikv1alpha1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, coordinationv1.AddToScheme, eventsv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic("programmer error: registering API types: " + err.Error())
		}
	}
	// rik's types use protobuf, like those of Kubernetes.
	if err := apiutil.AddToProtobufScheme(rikv1alpha1.AddToScheme); err != nil {
		panic("programmer error: registering API types for protobuf: " + err.Error())
	}
	return s
}

// mapper returns a static mapping of the resources, so that a start needs no discovery.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	add := func(gv schema.GroupVersion, scope meta.RESTScope, kinds ...string) {
		for _, kind := range kinds {
			m.Add(gv.WithKind(kind), scope)
		}
	}
	add(rikv1alpha1.SchemeGroupVersion, meta.RESTScopeNamespace, "Workload", "WorkloadRevision", "Instance")
	add(rikv1alpha1.SchemeGroupVersion, meta.RESTScopeRoot, "Node", "Tenant")
	add(appsv1.SchemeGroupVersion, meta.RESTScopeNamespace, "Deployment")
	add(corev1.SchemeGroupVersion, meta.RESTScopeNamespace, "ConfigMap", "Secret", "ServiceAccount", "Event")
	add(corev1.SchemeGroupVersion, meta.RESTScopeRoot, "Namespace")
	add(rbacv1.SchemeGroupVersion, meta.RESTScopeNamespace, "Role", "RoleBinding")
	add(rbacv1.SchemeGroupVersion, meta.RESTScopeRoot, "ClusterRole", "ClusterRoleBinding")
	add(coordinationv1.SchemeGroupVersion, meta.RESTScopeNamespace, "Lease")
	return m
}

// cacheOptions limits the cache. Of namespaces and roles it keeps only those of tenants, and of
// Leases only those of syncers. It drops the managed fields of all objects, because the
// controller does not read them.
func cacheOptions(c *http.Client) cache.Options {
	mine, err := labels.NewRequirement(rikv1alpha1.LabelTenant, selection.Exists, nil)
	if err != nil {
		panic("programmer error: selecting tenants: " + err.Error())
	}
	byTenant := cache.ByObject{Label: labels.NewSelector().Add(*mine)}
	return cache.Options{
		HTTPClient: c, Scheme: Scheme, Mapper: mapper(),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&coordinationv1.Lease{}: {Namespaces: map[string]cache.Config{workloadv1alpha1.FenceNamespace: {}}},
			&corev1.Namespace{}:     byTenant, &rbacv1.Role{}: byTenant, &rbacv1.RoleBinding{}: byTenant,
		},
	}
}
