package cluster

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// scheme contains the types that the controller reads and writes on either side.
var scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		workloadv1alpha1.AddToScheme, apiresourcev1alpha1.AddToScheme, rikv1alpha1.AddToScheme, corev1.AddToScheme, authenticationv1.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic("programmer error: registering API types: " + err.Error())
		}
	}
	return s
}

// mapper contains the resources as constants, so that the nodes of a cluster can be read even if
// it does not answer discovery.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	add := func(gv schema.GroupVersion, scope meta.RESTScope, kinds ...string) {
		for _, kind := range kinds {
			m.Add(gv.WithKind(kind), scope)
		}
	}
	add(workloadv1alpha1.SchemeGroupVersion, meta.RESTScopeRoot, "Cluster")
	add(apiresourcev1alpha1.SchemeGroupVersion, meta.RESTScopeRoot, "APIResourceImport", "NegotiatedAPIResource")
	add(apiextensionsv1.SchemeGroupVersion, meta.RESTScopeRoot, "CustomResourceDefinition")
	add(rikv1alpha1.SchemeGroupVersion, meta.RESTScopeRoot, "Node")
	add(rikv1alpha1.SchemeGroupVersion, meta.RESTScopeNamespace, "Workload")
	add(corev1.SchemeGroupVersion, meta.RESTScopeRoot, "Namespace")
	add(corev1.SchemeGroupVersion, meta.RESTScopeNamespace, "Secret", "ServiceAccount")
	add(appsv1.SchemeGroupVersion, meta.RESTScopeNamespace, "Deployment")
	add(coordinationv1.SchemeGroupVersion, meta.RESTScopeNamespace, "Lease")
	add(rbacv1.SchemeGroupVersion, meta.RESTScopeRoot, "ClusterRole", "ClusterRoleBinding")
	add(admissionv1.SchemeGroupVersion, meta.RESTScopeRoot, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
	return m
}
