package apiserver_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"rik.dev/rik/internal/testkit/apitest"
	"rik.dev/rik/internal/testkit/poll"
)

func configMap(name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}, Data: map[string]string{"k": "v"}}
}

func gone(err error, what string) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%s is still there", what)
}

func TestNamespaceDisappearsWithItsContent(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	name := s.Namespace(t)
	if _, err := s.Client.CoreV1().ConfigMaps(name).Create(t.Context(), configMap("inside"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.CoreV1().Namespaces().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, apitest.Timeout, "the namespace is gone", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		return gone(err, "namespace "+name)
	})
}

func TestOwnerReferencesCascade(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace(t))
	owner, err := maps.Create(t.Context(), configMap("owner"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reference := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}
	if _, err := maps.Create(t.Context(), configMap("owned", reference), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Create(t.Context(), configMap("free"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), owner.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, apitest.Timeout, "the owned configmap is gone", func(ctx context.Context) error {
		_, err := maps.Get(ctx, "owned", metav1.GetOptions{})
		return gone(err, "configmap owned")
	})
	if _, err := maps.Get(t.Context(), "free", metav1.GetOptions{}); err != nil {
		t.Errorf("the configmap without an owner: %v", err)
	}
}

func TestNamespaceIsFilled(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	name := s.Namespace(t)
	poll.Until(t, apitest.Timeout, "the default service account exists", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	poll.Until(t, apitest.Timeout, "the authority's certificate is published", func(ctx context.Context) error {
		root, err := s.Client.CoreV1().ConfigMaps(name).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if root.Data["ca.crt"] != string(s.CAPEM) {
			return fmt.Errorf("published %q", root.Data["ca.crt"])
		}
		return nil
	})
}

func TestRolesAreAggregated(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	want := map[string]string{"view": "get workloads", "edit": "create workloads", "admin": "create workloads"}
	for role, rule := range want {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			verb, resource, _ := strings.Cut(rule, " ")
			poll.Until(t, apitest.Timeout, role+" may "+rule, func(ctx context.Context) error {
				got, err := s.Client.RbacV1().ClusterRoles().Get(ctx, role, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if !allows(got.Rules, verb, "rik.dev", resource) {
					return fmt.Errorf("rules are %v", got.Rules)
				}
				return nil
			})
		})
	}
}

func allows(rules []rbacv1.PolicyRule, verb, group, resource string) bool {
	has := func(list []string, s string) bool {
		for _, item := range list {
			if item == s {
				return true
			}
		}
		return false
	}
	for _, rule := range rules {
		if has(rule.Verbs, verb) && has(rule.APIGroups, group) && has(rule.Resources, resource) {
			return true
		}
	}
	return false
}

// widgetsOf is a separate type for each run of the test.
func widgetsOf(namespace string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: namespace + ".rik.dev", Version: "v1", Resource: "widgets"}
}

func widgetCRD(widgets schema.GroupVersionResource) *apiextensionsv1.CustomResourceDefinition {
	properties := map[string]apiextensionsv1.JSONSchemaProps{
		"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"size": {Type: "integer", Maximum: new(float64(10))},
		}},
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: widgets.GroupResource().String()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: widgets.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: widgets.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties}},
			}},
		},
	}
}

func widget(widgets schema.GroupVersionResource, size int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": widgets.GroupVersion().String(), "kind": "Widget",
		"metadata": map[string]any{"name": "w"}, "spec": map[string]any{"size": size},
	}}
}

func TestCRDWithServerSideApply(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	namespace := s.Namespace(t)
	widgets := widgetsOf(namespace)
	crds, err := apiextensions.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := crds.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), widgetCRD(widgets), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	namespaced := client.Resource(widgets).Namespace(namespace)
	poll.Until(t, apitest.Timeout, "the new type takes an object", func(ctx context.Context) error {
		_, err := namespaced.Apply(ctx, "w", widget(widgets, 3), metav1.ApplyOptions{FieldManager: "first"})
		return err
	})
	if _, err := namespaced.Apply(t.Context(), "w", widget(widgets, 4), metav1.ApplyOptions{FieldManager: "second"}); !apierrors.IsConflict(err) {
		t.Errorf("applying another manager's field = %v, want a conflict", err)
	}
	if _, err := namespaced.Apply(t.Context(), "w", widget(widgets, 11), metav1.ApplyOptions{FieldManager: "first"}); !apierrors.IsInvalid(err) {
		t.Errorf("applying beyond the schema = %v, want invalid", err)
	}
	got, err := namespaced.Get(t.Context(), "w", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedInt64(got.Object, "spec", "size"); size != 3 {
		t.Errorf("size = %d, want 3", size)
	}
}
