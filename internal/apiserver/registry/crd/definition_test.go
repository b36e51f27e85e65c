package crd_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/served"
)

func TestMain(m *testing.M) { os.Exit(kcptest.RunMain(m)) }

func jobs(group string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "jobs." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "jobs", Singular: "job", Kind: "Job", ListKind: "JobList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: new(true),
				}},
			}},
		},
	}
}

func eventually(t *testing.T, what string, done func(ctx context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, served.Timeout, true, done); err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

// TestGroupNeedsNoDot: a type in the group batch can be defined, found in discovery, described
// and stored. Its deletion removes its objects.
func TestGroupNeedsNoDot(t *testing.T) {
	t.Parallel()
	s := kcptest.Shared(t)
	client, err := clientset.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := crds.Create(t.Context(), jobs("batch"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the type is served", func(context.Context) (bool, error) {
		list, err := client.Discovery().ServerResourcesForGroupVersion("batch/v1")
		return err == nil && slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Kind == "Job" }), nil
	})
	job := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"name": "one"}}}
	resource := objects.Resource(schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}).Namespace(s.Namespace(t))
	if _, err := resource.Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/openapi/v3/apis/batch/v1", "/openapi/v3/apis/apiextensions.k8s.io/v1", "/openapi/v2"} {
		eventually(t, path+" describes what is served", func(ctx context.Context) (bool, error) {
			raw, err := client.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
			return err == nil && (strings.Contains(string(raw), "batch.v1.Job") || strings.Contains(path, "apiextensions") && strings.Contains(string(raw), "CustomResourceDefinition")), nil
		})
	}
	crd, err := crds.Get(t.Context(), "jobs.batch", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	crd.Spec.Names.ShortNames = []string{"jo"}
	if _, err := crds.Update(t.Context(), crd, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		t.Errorf("changing the CRD: %v", err)
	}
	if err := crds.Delete(t.Context(), "jobs.batch", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the CRD and its type are gone", func(ctx context.Context) (bool, error) {
		_, err := crds.Get(ctx, "jobs.batch", metav1.GetOptions{})
		_, listing := resource.List(ctx, metav1.ListOptions{})
		return apierrors.IsNotFound(err) && apierrors.IsNotFound(listing), nil
	})
}

// TestOtherRulesHold: all other rules of Kubernetes for a CRD still apply.
func TestOtherRulesHold(t *testing.T) {
	t.Parallel()
	client, err := clientset.NewForConfig(kcptest.Shared(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*apiextensionsv1.CustomResourceDefinition){
		"group is no DNS name": func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Group = "Batch" },
		"no group":             func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Group = "" },
		"name is another":      func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Name = "jobs.example" },
		"two storage versions": func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Versions = append(crd.Spec.Versions, crd.Spec.Versions[0])
		},
		"Kubernetes' own domain": func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Name, crd.Spec.Group = "jobs.batch.k8s.io", "batch.k8s.io"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crd := jobs("batch")
			change(crd)
			_, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if !apierrors.IsInvalid(err) {
				t.Errorf("creating it: %v, want it refused as invalid", err)
			}
		})
	}
}
