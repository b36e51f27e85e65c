package crdpuller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// asideGroup returns the group for a copy of a built-in type with the same name.
func asideGroup(group string) string {
	if group == "" {
		group = "core"
	}
	return group + ".pulled.example.dev"
}

// aside returns the CRD in another group, because a server serves a group either itself or by
// CRDs. The schema, which is what the test checks, is the same.
func aside(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	crd = crd.DeepCopy()
	crd.Spec.Group = asideGroup(crd.Spec.Group)
	crd.Name = crd.Spec.Names.Plural + "." + crd.Spec.Group
	crd.Spec.Names.ShortNames, crd.Spec.Names.Categories = nil, nil
	return crd
}

// TestServersTakeWhatIsPulled creates every type of a real server on that server as a CRD, and
// then objects. The object of the built-in type, with all defaults, must be stored by the CRD
// unchanged, without unknown or pruned fields.
func TestServersTakeWhatIsPulled(t *testing.T) {
	c := kube.Shared(t)
	pulled := pullAll(t)
	if len(pulled.CRDs) < 50 {
		t.Fatalf("pulled %d types, want all of Kubernetes'", len(pulled.CRDs))
	}
	crds := apiextensionsclient.NewForConfigOrDie(c.Rest()).ApiextensionsV1().CustomResourceDefinitions()
	files := manifests(t)
	filled := map[string]bool{}
	for _, file := range files {
		resource := resourceOf(readObject(t, file))
		filled[resource.Resource+"."+asideGroup(resource.Group)] = true
	}
	for _, crd := range pulled.CRDs {
		if strings.HasSuffix(crd.Spec.Group, ".example.dev") {
			continue // belongs to another test
		}
		wanted := aside(crd)
		if !filled[wanted.Name] {
			// A dry run checks the CRD as strictly as a creation, and is cheaper for the server.
			if _, err := crds.Create(t.Context(), wanted, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
				t.Errorf("the server refuses %s: %v", crd.Name, err)
			}
			continue
		}
		made, err := crds.Create(t.Context(), wanted, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("the server refuses %s: %v", crd.Name, err)
			continue
		}
		t.Cleanup(func() {
			if err := crds.Delete(context.Background(), made.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	for name := range filled {
		poll.Until(t, kube.Timeout, name+" is established and structural", func(ctx context.Context) error {
			found, err := crds.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !apihelpers.IsCRDConditionTrue(found, apiextensionsv1.Established) || apihelpers.IsCRDConditionTrue(found, apiextensionsv1.NonStructuralSchema) {
				return fmt.Errorf("conditions %v", found.Status.Conditions)
			}
			return nil
		})
	}
	storeObjects(t, c, files)
}

func manifests(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/objects/*.yaml")
	if err != nil || len(files) < 12 {
		t.Fatalf("manifests %v, %v", files, err)
	}
	return files
}

// storeObjects creates each manifest of testdata/objects as the built-in type, and the result as
// the pulled type.
func storeObjects(t *testing.T, c *kube.Cluster, files []string) {
	t.Helper()
	const namespace = "pulled"
	if _, err := c.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Admission requires it for pods, and no controller creates it here.
	if _, err := c.Client().CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(c.Rest())
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			native := readObject(t, file)
			resource := resourceOf(native)
			made, err := client.Resource(resource).Namespace(namespace).Create(t.Context(), native, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
			if err != nil {
				t.Fatalf("the built-in type refuses the manifest: %v", err)
			}
			want := moved(made)
			resource.Group = asideGroup(resource.Group)
			stored, err := createWhenServed(t, client.Resource(resource).Namespace(namespace), want)
			if err != nil {
				t.Fatalf("the pulled type refuses what the built-in one made: %v", err)
			}
			if diff := cmp.Diff(content(want), content(stored)); diff != "" {
				t.Errorf("the pulled type changes what the built-in one made:\n%s", diff)
			}
			if native.GetKind() == "Deployment" {
				showsColumns(t, c, resource, namespace, native.GetName())
			}
		})
	}
}

// showsColumns requests the columns that kubectl shows of a Deployment.
func showsColumns(t *testing.T, c *kube.Cluster, resource schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	raw, err := c.Client().Discovery().RESTClient().Get().
		AbsPath("/apis", resource.Group, resource.Version, "namespaces", namespace, resource.Resource, name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	table := &metav1.Table{}
	if err := json.Unmarshal(raw, table); err != nil {
		t.Fatal(err)
	}
	shown := map[string]any{}
	for i, c := range table.ColumnDefinitions {
		shown[c.Name] = table.Rows[0].Cells[i]
	}
	deployment, err := c.Client().AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if desired, ok := shown["Desired"].(float64); !ok || int32(desired) != *deployment.Spec.Replicas {
		t.Errorf("desired is shown as %v, want %d", shown["Desired"], *deployment.Spec.Replicas)
	}
	if image := deployment.Spec.Template.Spec.Containers[0].Image; !strings.Contains(fmt.Sprint(shown["Images"]), image) || shown["Age"] == nil {
		t.Errorf("shown is %v, want the image %s and an age", shown, image)
	}
}

// createWhenServed waits for the handler of a new CRD, which answers 404 for a moment after the
// CRD is established.
func createWhenServed(t *testing.T, client dynamic.ResourceInterface, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	poll.Until(t, kube.Timeout, "the pulled type is served", func(ctx context.Context) error {
		_, err := client.List(ctx, metav1.ListOptions{})
		return err
	})
	return client.Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
}

func readObject(t *testing.T, file string) *unstructured.Unstructured {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(raw, &object.Object); err != nil {
		t.Fatal(err)
	}
	return object
}

func resourceOf(object *unstructured.Unstructured) schema.GroupVersionResource {
	gvk := object.GroupVersionKind()
	plural := strings.ToLower(gvk.Kind) + "s"
	switch {
	case strings.HasSuffix(plural, "ss"):
		plural = strings.TrimSuffix(plural, "s") + "es"
	case strings.HasSuffix(plural, "ys"):
		plural = strings.TrimSuffix(plural, "ys") + "ies"
	}
	return gvk.GroupVersion().WithResource(plural)
}

// moved returns an object in the other group, without metadata that the server sets.
func moved(made *unstructured.Unstructured) *unstructured.Unstructured {
	object := made.DeepCopy()
	gvk := object.GroupVersionKind()
	gvk.Group = asideGroup(gvk.Group)
	object.SetGroupVersionKind(gvk)
	object.Object["metadata"] = map[string]any{"name": made.GetName()}
	// A CRD with the status subresource ignores the status at creation, and built-in types set
	// their own.
	delete(object.Object, "status")
	return object
}

// content removes nulls, which mean the same as a missing field for both.
func content(object *unstructured.Unstructured) map[string]any {
	fields := object.DeepCopy().Object
	delete(fields, "metadata")
	return withoutNulls(fields).(map[string]any)
}

func withoutNulls(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, item := range v {
			if item == nil {
				delete(v, key)
				continue
			}
			v[key] = withoutNulls(item)
		}
	case []any:
		for i := range v {
			v[i] = withoutNulls(v[i])
		}
	}
	return value
}
