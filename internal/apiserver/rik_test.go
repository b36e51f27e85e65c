package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/apitest"
	"rik.dev/rik/internal/testkit/poll"
)

func dynamicClient(t *testing.T, config *rest.Config) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

const workloadManifest = `{"apiVersion":"rik.dev/v1alpha1","kind":"Workload","metadata":{"name":"web"},
"spec":{"kind":"Pod","containers":[{"name":"c","image":"docker://registry.example/web:1"%s}]}}`

// send sends a body as the administrator and returns the status and the response.
func send(t *testing.T, s *apitest.Server, method, path, contentType, body string) (int, string) {
	t.Helper()
	return sendAs(t, s.Config, method, s.URL+path, contentType, body)
}

// sendAs is like send for a URL and the user of a client configuration.
func sendAs(t *testing.T, config *rest.Config, method, url, contentType, body string) (int, string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	response, err := client.Do(request)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// TestUnknownFieldsAreErrors: every kind of write of rik.dev refuses an unknown field with its
// path, whatever field validation the client requests.
func TestUnknownFieldsAreErrors(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	base := "/apis/rik.dev/v1alpha1/namespaces/" + s.Namespace(t) + "/workloads"
	if status, body := send(t, s, "POST", base, "application/json", fmt.Sprintf(workloadManifest, "")); status != 201 {
		t.Fatalf("creating a good workload = %d %s", status, body)
	}
	bad := fmt.Sprintf(workloadManifest, `,"imagePulPolicy":"Always"`)
	tests := []struct{ name, method, path, contentType, body string }{
		{"create", "POST", base, "application/json", strings.Replace(bad, `"web"`, `"other"`, 1)},
		{"create that asks to ignore", "POST", base + "?fieldValidation=Ignore", "application/json", strings.Replace(bad, `"web"`, `"other"`, 1)},
		{"create in yaml", "POST", base, "application/yaml", strings.Replace(bad, `"web"`, `"other"`, 1)},
		{"update", "PUT", base + "/web", "application/json", bad},
		{"merge patch", "PATCH", base + "/web?fieldValidation=Warn", "application/merge-patch+json", `{"spec":{"containers":[{"name":"c","image":"x","imagePulPolicy":"Always"}]}}`},
		{"server-side apply", "PATCH", base + "/web?fieldManager=t&force=true", "application/apply-patch+yaml", bad},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			status, body := send(t, s, tc.method, tc.path, tc.contentType, tc.body)
			if status < 400 || status >= 500 || !strings.Contains(body, "imagePulPolicy") || !strings.Contains(body, "spec.containers[0]") && !strings.Contains(body, ".spec.containers") {
				t.Errorf("%s = %d %s, want a 4xx that names spec.containers[0].imagePulPolicy", tc.method, status, body)
			}
		})
	}
}

// TestQuantitiesThatCannotBeComputed: ParseQuantity would need hours for such quantities, and
// the end of the request does not stop it.
func TestQuantitiesThatCannotBeComputed(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	namespace := s.Namespace(t)
	const quota = `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q"},"spec":{"hard":{"cpu":"1e-999999999"}}}`
	workload := strings.Replace(fmt.Sprintf(workloadManifest, `,"resources":{"limits":{"cpu":"1e999999999"}}`), `"web"`, `"q"`, 1)
	for path, body := range map[string]string{
		"/api/v1/namespaces/" + namespace + "/resourcequotas":               quota,
		"/apis/rik.dev/v1alpha1/namespaces/" + namespace + "/workloads":     workload,
		"/api/v0/workloads.create":                                          workload,
		"/apis/apps/v1/namespaces/" + namespace + "/deployments?dryRun=All": `{"spec":{"template":{"spec":{"containers":[{"resources":{"limits":{"cpu":"1e-999999999"}}}]}}}}`,
	} {
		if status, answer := send(t, s, "POST", path, "application/json", body); status != 400 || !strings.Contains(answer, "exponent of a quantity") {
			t.Errorf("%s = %d %s, want 400 and why", path, status, answer)
		}
	}
}

func TestWorkloadThroughAPI(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	namespace := s.Namespace(t)
	base := "/apis/rik.dev/v1alpha1/namespaces/" + namespace + "/workloads"
	if status, body := send(t, s, "POST", base, "application/json", fmt.Sprintf(workloadManifest, "")); status != 201 {
		t.Fatalf("create = %d %s", status, body)
	}
	client := dynamicClient(t, s.Config).Resource(rikv1alpha1.SchemeGroupVersion.WithResource("workloads")).Namespace(namespace)
	got, err := client.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if policy, _, _ := unstructured.NestedString(got.Object, "spec", "restartPolicy"); policy != "Always" {
		t.Errorf("restartPolicy = %q, want the default Always", policy)
	}
	patch := []byte(`{"spec":{"replicas":3}}`)
	if _, err := client.Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}, "scale"); err != nil {
		t.Errorf("scaling: %v", err)
	}
	applied, err := client.Apply(t.Context(), "web", &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rik.dev/v1alpha1", "kind": "Workload", "metadata": map[string]any{"name": "web"},
		"spec": map[string]any{"replicas": int64(5)},
	}}, metav1.ApplyOptions{FieldManager: "t", Force: true})
	if err != nil {
		t.Fatalf("server-side apply: %v", err)
	}
	if replicas, _, _ := unstructured.NestedInt64(applied.Object, "spec", "replicas"); replicas != 5 {
		t.Errorf("replicas = %d, want 5", replicas)
	}
}

func TestDiscoveryPrefersRik(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	groups, err := s.Client.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, group := range groups.Groups {
		order = append(order, group.Name)
	}
	if ours, next := slices.Index(order, "rik.dev"), slices.Index(order, "events.k8s.io"); ours < 0 || ours > next {
		t.Errorf("groups are %v, want rik.dev before those of Kubernetes", order)
	}
	resources, err := s.Client.Discovery().ServerResourcesForGroupVersion("rik.dev/v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	short := map[string]string{}
	for _, resource := range resources.APIResources {
		short[resource.Name] = strings.Join(resource.ShortNames, ",")
	}
	for _, name := range []string{"workloads", "workloads/status", "workloads/scale", "workloadrevisions", "instances", "instances/status", "nodes", "tenants"} {
		if _, ok := short[name]; !ok {
			t.Errorf("rik.dev/v1alpha1 does not serve %s", name)
		}
	}
}

func TestOpenAPIDescribesRik(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/rik.dev/v1alpha1"} {
		poll.Until(t, apitest.Timeout, path+" describes a workload", func(ctx context.Context) error {
			raw, err := s.Client.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
			if err != nil {
				return err
			}
			if !strings.Contains(string(raw), "v1alpha1.Workload") || !strings.Contains(string(raw), "onDisconnect") {
				return errors.New("no schema of a workload in it")
			}
			return nil
		})
	}
}

// TestEditorOfOneNamespace: an editor of one namespace can write there, and cannot write in
// other namespaces or cluster-wide.
func TestEditorOfOneNamespace(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	mine, other := s.Namespace(t), s.Namespace(t)
	grant(t, s, mine, "edit", "alice")
	config := clientOf(t, s, "alice")
	workloads := dynamicClient(t, config).Resource(rikv1alpha1.SchemeGroupVersion.WithResource("workloads"))
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(fmt.Appendf(nil, workloadManifest, "")); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, apitest.Timeout, "alice may create in her namespace", func(ctx context.Context) error {
		_, err := workloads.Namespace(mine).Create(ctx, object, metav1.CreateOptions{})
		return err
	})
	if _, err := workloads.Namespace(other).Create(t.Context(), object, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("creating in another namespace = %v, want forbidden", err)
	}
	nodes := dynamicClient(t, config).Resource(rikv1alpha1.SchemeGroupVersion.WithResource("nodes"))
	if _, err := nodes.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing nodes = %v, want forbidden", err)
	}
}

func TestAuditNamesTheUser(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	namespace := s.Namespace(t)
	if _, err := s.Client.CoreV1().ConfigMaps(namespace).Create(t.Context(), configMap("audited"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, apitest.Timeout, "the audit log has the write", func(context.Context) error {
		if !holds(t, filepath.Join(s.DataDir, "audit.log"), `/api/v1/namespaces/`+namespace+`/configmaps`) {
			return errors.New("no line about it")
		}
		return nil
	})
	if !holds(t, filepath.Join(s.DataDir, "audit.log"), `"username":"rik:admin"`) {
		t.Error("the audit log does not name the administrator")
	}
}
