package syncerauth_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kcpinside"
	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/leak"
	"rik.dev/rik/internal/testkit/served"
)

// TestMain: tests with concurrent requests use one kcp in this process, with the race detector.
// The long tables with sequential requests use a kcp in its own process.
func TestMain(m *testing.M) { os.Exit(leak.After(kcpinside.RunMain(m))) }

// Content types of patches.
const (
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	jsonPatch      = "application/json-patch+json"
	applyPatch     = "application/apply-patch+yaml"
)

// user is a user who sends raw requests.
type user struct {
	t      *testing.T
	url    string
	client *http.Client
}

func newUser(t *testing.T, s *served.Server, config *rest.Config) user {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return user{t: t, url: s.URL, client: client}
}

// ask returns the status code and the body. It repeats the request while the server fills its
// caches, such as after a new type was defined.
func (u user) ask(method, path, contentType, body string) (code int, answer string) {
	u.t.Helper()
	err := wait.PollUntilContextTimeout(u.t.Context(), 50*time.Millisecond, served.Timeout, true, func(context.Context) (bool, error) {
		code, answer = u.askOnce(method, path, contentType, body)
		return code != http.StatusTooManyRequests, nil
	})
	if err != nil {
		u.t.Fatalf("%s %s is still answered %d %s: %v", method, path, code, answer, err)
	}
	return code, answer
}

func (u user) askOnce(method, path, contentType, body string) (int, string) {
	u.t.Helper()
	request, err := http.NewRequestWithContext(u.t.Context(), method, u.url+path, strings.NewReader(body))
	if err != nil {
		u.t.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Accept", "application/json")
	response, err := u.client.Do(request)
	if err != nil {
		u.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		u.t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// widgets defines types by CRDs, because admission and lookups of those use other code in the
// server. Another test may have defined them already.
func widgets(t *testing.T, s *served.Server) {
	t.Helper()
	client, err := clientset.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	for plural, scope := range map[string]apiextensionsv1.ResourceScope{"widgets": apiextensionsv1.NamespaceScoped, "globes": apiextensionsv1.ClusterScoped} {
		kind := strings.ToUpper(plural[:1]) + strings.TrimSuffix(plural[1:], "s")
		crd := &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.dev"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: "example.dev", Scope: scope,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
					Name: "v1", Served: true, Storage: true,
					Subresources: &apiextensionsv1.CustomResourceSubresources{
						Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
						Scale:  &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"},
					},
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
						Type: "object", XPreserveUnknownFields: new(true),
					}},
				}},
			},
		}
		_, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	awaitServed(t, client, "widgets", "globes")
}

func awaitServed(t *testing.T, client clientset.Interface, names ...string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, served.Timeout, true, func(context.Context) (bool, error) {
		list, err := client.Discovery().ServerResourcesForGroupVersion("example.dev/v1")
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		return !slices.ContainsFunc(names, func(name string) bool {
			return !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
		}), nil
	})
	if err != nil {
		t.Fatalf("waiting for %v: %v", names, err)
	}
}

// sample is a type with a minimal object of it.
type sample struct {
	resource   schema.GroupVersionResource
	kind       string
	namespaced bool
	content    string // the fields in addition to the metadata
}

func (s sample) base(namespace string) string {
	base := "/api/v1"
	if s.resource.Group != "" {
		base = "/apis/" + s.resource.Group + "/" + s.resource.Version
	}
	if s.namespaced {
		base += "/namespaces/" + namespace
	}
	return base + "/" + s.resource.Resource
}

func (s sample) document(name, labels string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"labels":{%s}}%s}`, s.resource.GroupVersion(), s.kind, name, labels, s.content)
}

var core = schema.GroupVersion{Version: "v1"}

var samples = []sample{
	{core.WithResource("configmaps"), "ConfigMap", true, `,"data":{"k":"canary"}`},
	{core.WithResource("secrets"), "Secret", true, `,"stringData":{"k":"canary"}`},
	{core.WithResource("serviceaccounts"), "ServiceAccount", true, ``},
	{core.WithResource("services"), "Service", true, `,"spec":{"ports":[{"port":80}]}`},
	{core.WithResource("persistentvolumeclaims"), "PersistentVolumeClaim", true, `,"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}`},
	{core.WithResource("namespaces"), "Namespace", false, ``},
	{core.WithResource("resourcequotas"), "ResourceQuota", true, ``},
	{schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1"}.WithResource("leases"), "Lease", true, ``},
	{schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}.WithResource("roles"), "Role", true, ``},
	{schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}.WithResource("clusterroles"), "ClusterRole", false, ``},
	{schema.GroupVersion{Group: "example.dev", Version: "v1"}.WithResource("widgets"), "Widget", true, `,"spec":{"replicas":1}`},
	{schema.GroupVersion{Group: "example.dev", Version: "v1"}.WithResource("globes"), "Globe", false, `,"spec":{"replicas":1}`},
	clusterSample,
}

var clusterSample = sample{workloadv1alpha1.SchemeGroupVersion.WithResource("clusters"), "Cluster", false, ``}

// register creates a Cluster and returns its UID.
func (u user) register(name string) types.UID { return u.make(clusterSample, "", name, ``) }

// make creates an object and returns its UID.
func (u user) make(sample sample, namespace, name, labels string) types.UID {
	u.t.Helper()
	code, body := u.ask("POST", sample.base(namespace), "application/json", sample.document(name, labels))
	made := &unstructured.Unstructured{}
	if err := made.UnmarshalJSON([]byte(body)); code != http.StatusCreated || err != nil {
		u.t.Fatalf("making the %s %s: %d %s (%v)", sample.kind, name, code, body, err)
	}
	return made.GetUID()
}

const (
	sentEast = `"workloads.kcp.dev/cluster":"east"`
	sentWest = `"workloads.kcp.dev/cluster":"west"`
	selEast  = "labelSelector=workloads.kcp.dev%2Fcluster%3Deast"
	selWest  = "labelSelector=workloads.kcp.dev%2Fcluster%3Dwest"
)

// TestSyncerTouchesNothingOfOthers tries a syncer's credential with every verb on every served
// type, and on objects of another cluster and of no cluster.
func TestSyncerTouchesNothingOfOthers(t *testing.T) {
	t.Parallel()
	s := kcptest.Start(t).Server
	widgets(t, s)
	admin := newUser(t, s, s.Config)
	admin.register("east")
	syncer := newUser(t, s, s.AsSyncer(t, "east"))
	namespace := s.Namespace(t)
	for _, sample := range samples {
		for name, labels := range map[string]string{"of-west": sentWest, "of-none": ``} {
			if code, body := admin.ask("POST", sample.base(namespace), "application/json", sample.document(name, labels)); code != http.StatusCreated {
				t.Fatalf("making a %s: %d %s", sample.kind, code, body)
			}
			syncer.expectRefusals(sample, namespace, name)
		}
	}
	syncer.expectNothingServed(s, namespace)
	for _, sample := range samples {
		for _, name := range []string{"of-west", "of-none"} {
			if code, body := admin.ask("GET", sample.base(namespace)+"/"+name, "", ""); code != http.StatusOK || strings.Contains(body, "hacked") {
				t.Errorf("%s %s after all that: %d %s", sample.kind, name, code, body)
			}
		}
	}
}

// expectRefusals tries all kinds of requests for one object.
func (u user) expectRefusals(sample sample, namespace, name string) {
	u.t.Helper()
	list, one := sample.base(namespace), sample.base(namespace)+"/"+name
	hacked := sample.document(name, sentEast+`,"hacked":"1"`)
	label := `{"metadata":{"labels":{"workloads.kcp.dev/cluster":"east","hacked":"1"}}}`
	finalizer := `{"metadata":{"finalizers":["syncer.workloads.kcp.dev/east"]}}`
	operations := `[{"op":"add","path":"/metadata/annotations","value":{"status.workloads.kcp.dev/east":"hacked"}}]`
	for _, request := range []struct{ method, path, contentType, body string }{
		{"GET", one, "", ""},
		{"GET", one + "?watch=true", "", ""},
		{"GET", one + "/status", "", ""},
		{"GET", one + "/scale", "", ""},
		{"GET", list, "", ""},
		{"GET", list + "?watch=true&timeoutSeconds=1", "", ""},
		{"GET", list + "?" + selWest, "", ""},
		{"GET", list + "?" + selWest + "&" + selEast, "", ""},
		{"GET", list + "?fieldSelector=metadata.name%3D" + name, "", ""},
		{"GET", strings.Replace(list, "/v1", "/v1/watch", 1) + "?timeoutSeconds=1&" + selEast, "", ""},
		{"GET", strings.Replace(one, "/v1", "/v1/watch", 1) + "?timeoutSeconds=1&" + selEast, "", ""},
		{"PATCH", one, mergePatch, label},
		{"PATCH", one, strategicPatch, label},
		{"PATCH", one, mergePatch, finalizer},
		{"PATCH", one, jsonPatch, operations},
		{"PATCH", one + "?fieldManager=x&force=true", applyPatch, hacked},
		{"PATCH", one + "/status", mergePatch, `{"status":{"hacked":"1"}}`},
		{"PATCH", one + "/scale", mergePatch, `{"spec":{"replicas":9}}`},
		{"PUT", one, "application/json", hacked},
		{"PUT", one + "/status", "application/json", hacked},
		{"POST", list, "application/json", sample.document("new", sentEast)},
		{"PATCH", list + "/new?fieldManager=x&force=true", applyPatch, sample.document("new", sentEast)},
		{"DELETE", one, "", ""},
		{"DELETE", list, "", ""},
		{"DELETE", list + "?" + selEast, "", ""},
		{"POST", one + "/token", "application/json", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest"}`},
		{"PUT", one + "/finalize", "application/json", hacked},
	} {
		if code, body := u.ask(request.method, request.path, request.contentType, request.body); code != http.StatusForbidden {
			u.t.Errorf("%s %s %s = %d %s, want 403", request.method, request.path, request.body, code, body)
		}
	}
}

// expectNothingServed tries every verb on every type in discovery.
func (u user) expectNothingServed(s *served.Server, namespace string) {
	u.t.Helper()
	_, lists, err := s.Client.Discovery().ServerGroupsAndResources()
	if err != nil {
		u.t.Fatal(err)
	}
	tried := 0
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			u.t.Fatal(err)
		}
		for _, resource := range list.APIResources {
			plural, subresource, _ := strings.Cut(resource.Name, "/")
			base := sample{resource: gv.WithResource(plural), namespaced: resource.Namespaced}.base(namespace)
			for _, verb := range resource.Verbs {
				if plural == "events" && verb == "create" {
					continue // allowed for some objects: see TestSyncerReportsItsOwnObjectsOnly
				}
				tried++
				u.expectVerbRefused(base, subresource, verb)
			}
		}
	}
	if tried < 100 {
		u.t.Errorf("only %d verbs were found to try", tried)
	}
}

func (u user) expectVerbRefused(base, subresource, verb string) {
	u.t.Helper()
	one := base + "/of-west"
	if subresource != "" {
		one += "/" + subresource
	}
	requests := map[string]struct{ method, path, contentType string }{
		"get": {"GET", one, ""}, "list": {"GET", base, ""}, "watch": {"GET", base + "?watch=true&timeoutSeconds=1", ""},
		"create": {"POST", base, "application/json"}, "update": {"PUT", one, "application/json"}, "patch": {"PATCH", one, mergePatch},
		"delete": {"DELETE", one, ""}, "deletecollection": {"DELETE", base, ""},
	}
	request, known := requests[verb]
	if !known {
		u.t.Fatalf("verb %q of %s is not tried", verb, base)
	}
	if verb == "create" && subresource != "" {
		request.path = one
	}
	// A syncer learns only that an object does not exist.
	code, body := u.ask(request.method, request.path, request.contentType, "{}")
	missing := code == http.StatusNotFound && (verb == "get" || verb == "patch")
	if code != http.StatusForbidden && !missing {
		u.t.Errorf("%s %s = %d %s, want 403", request.method, request.path, code, body)
	}
}

// TestSyncerDoesItsWork: a syncer can do what it must with objects of its own cluster, and
// cannot write any other field.
func TestSyncerDoesItsWork(t *testing.T) {
	t.Parallel()
	s := kcptest.Start(t).Server
	widgets(t, s)
	admin := newUser(t, s, s.Config)
	admin.register("east")
	syncer := newUser(t, s, s.AsSyncer(t, "east"))
	namespace := s.Namespace(t)
	must := func(u user, method, path, contentType, body string, want int) string {
		t.Helper()
		code, answer := u.ask(method, path, contentType, body)
		if code != want {
			t.Fatalf("%s %s %s = %d %s, want %d", method, path, body, code, answer, want)
		}
		return answer
	}
	own := clusterSample.base("") + "/east"
	must(syncer, "GET", own, "", "", 200)
	must(syncer, "GET", strings.TrimSuffix(own, "/east")+"?fieldSelector=metadata.name%3Deast", "", "", 200)
	const condition = `"status":"True","reason":"R","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]`
	must(admin, "PATCH", own+"/status?fieldManager=controller", applyPatch,
		`{"apiVersion":"workload.kcp.dev/v1alpha1","kind":"Cluster","metadata":{"name":"east"},"status":{"uid":"u","conditions":[{"type":"Ready",`+condition+`}}`, 200)
	must(syncer, "PATCH", own+"/status?fieldManager=rik-syncer", applyPatch,
		`{"apiVersion":"workload.kcp.dev/v1alpha1","kind":"Cluster","metadata":{"name":"east"},"status":{"conditions":[{"type":"SyncerReady",`+condition+`}}`, 200)
	for _, others := range []string{
		`"version":"v1"`, `"uid":null`, `"uid":"another"`, `"location":"192.0.2.1:443"`, `"syncedResources":["secrets"]`,
		`"sameAs":"west"`, `"resourceProblems":[{"resource":"secrets","reason":"Incompatible","since":"2026-01-01T00:00:00Z"}]`,
		`"capacity":{"cpu":"4096"}`, `"allocatable":{"cpu":"4096"}`,
		`"conditions":null`, `"conditions":[{"type":"Ready",` + strings.Replace(condition, "True", "False", 1), `"conditions":[{"type":"HeartbeatHealthy",` + condition,
	} {
		must(syncer, "PATCH", own+"/status", mergePatch, `{"status":{`+others+`}}`, 403)
	}
	must(syncer, "PATCH", own+"/status?fieldManager=rik-syncer&force=true", applyPatch,
		`{"apiVersion":"workload.kcp.dev/v1alpha1","kind":"Cluster","metadata":{"name":"east"},"status":{"lastHeartbeatTime":"2026-01-01T00:00:00Z",
		"pausedDeletes":{"namespaces":[{"namespace":"","deletes":1},{"namespace":"team","deletes":20}]},
		"resourceProblems":[{"resource":"secrets","reason":"NotReadable","message":"m","since":"2026-01-01T00:00:00Z"}]}}`, 200)
	must(syncer, "GET", "/api/v1/namespaces/kube-system", "", "", 200)
	must(syncer, "GET", "/apis", "", "", 200)
	for _, sample := range samples {
		if slices.Contains([]string{"Lease", "Role", "ClusterRole", "Cluster"}, sample.kind) {
			continue
		}
		list, one := sample.base(namespace), sample.base(namespace)+"/mine"
		must(admin, "POST", list, "application/json", sample.document("mine", sentEast), 201)
		if body := must(syncer, "GET", list+"?"+selEast, "", "", 200); !strings.Contains(body, `"mine"`) {
			t.Errorf("a list of %s shows %s", sample.kind, body)
		}
		must(syncer, "GET", list+"?watch=true&timeoutSeconds=1&"+selEast, "", "", 200)
		must(syncer, "GET", one, "", "", 200)
		must(syncer, "GET", list+"/absent", "", "", 404)
		must(syncer, "PATCH", one, mergePatch, `{"metadata":{"finalizers":["syncer.workloads.kcp.dev/east"],"annotations":{"problem.workloads.kcp.dev/east":"x"}}}`, 200)
		must(syncer, "PATCH", one, mergePatch, `{"metadata":{"annotations":{"problem.workloads.kcp.dev/west":"x"}}}`, 403)
		must(syncer, "PATCH", one, mergePatch, `{"metadata":{"labels":{"workloads.kcp.dev/cluster":"west"}}}`, 403)
		must(syncer, "PATCH", one, mergePatch, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Secret","name":"x","uid":"x"}]}}`, 403)
		must(syncer, "PUT", one, "application/json", sample.document("mine", sentEast), 403)
		must(syncer, "DELETE", one, "", "", 403)
		// The object was moved away. The syncer may only remove its finalizer and its
		// annotations, and then loses all access.
		must(admin, "PATCH", one, mergePatch, `{"metadata":{"labels":{"workloads.kcp.dev/cluster":"west"}}}`, 200)
		must(syncer, "GET", one, "", "", 200)
		must(syncer, "PATCH", one, mergePatch, `{"metadata":{"annotations":{"status.workloads.kcp.dev/east":"x"}}}`, 403)
		must(syncer, "PATCH", one, mergePatch, `{"metadata":{"finalizers":null,"annotations":{"problem.workloads.kcp.dev/east":null}}}`, 200)
		must(syncer, "GET", one, "", "", 403)
	}
	for _, sample := range samples {
		if sample.kind != "Widget" && sample.kind != "Service" {
			continue
		}
		one := sample.base(namespace) + "/w"
		must(admin, "POST", sample.base(namespace), "application/json", sample.document("w", sentEast), 201)
		must(syncer, "PATCH", one+"/status", mergePatch, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"R","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, 200)
		must(syncer, "PATCH", one+"/status", mergePatch, `{"metadata":{"labels":{"x":"y"}},"status":{}}`, codeOfLabels(one))
		must(syncer, "PATCH", one, mergePatch, `{"spec":{"type":"NodePort"}}`, 403)
	}
}

// codeOfLabels returns the result of writing labels through the status subresource. For types
// defined by CRDs the server itself ignores all metadata.
func codeOfLabels(path string) int {
	if strings.Contains(path, "example.dev") {
		return http.StatusOK
	}
	return http.StatusForbidden
}

// TestPlacementNeedsLeave: an editor of a namespace can send objects only to clusters on which
// they have the verb deploy, with every type and kind of write.
func TestPlacementNeedsLeave(t *testing.T) {
	t.Parallel()
	s := kcpinside.Shared(t).Server
	widgets(t, s)
	namespace := s.Namespace(t)
	client, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	roles := client.RbacV1().ClusterRoles()
	for name, rule := range map[string]rbacv1.PolicyRule{
		"everything-here": {Verbs: []string{"*"}, APIGroups: []string{"", "example.dev"}, Resources: []string{"*"}},
		"deploy-east":     {Verbs: []string{"deploy"}, APIGroups: []string{"workload.kcp.dev"}, Resources: []string{"clusters"}, ResourceNames: []string{"east"}},
	} {
		if _, err := roles.Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	jane := newUser(t, s, s.AsUser(t, "jane"))
	admin := newUser(t, s, s.Config)
	awaitRole(t, jane, namespace)
	for _, sample := range samples {
		if !slices.Contains([]string{"ConfigMap", "Service", "Widget", "Globe", "Namespace"}, sample.kind) {
			continue
		}
		expectLeave(t, jane, admin, sample, namespace)
	}
}

// awaitRole waits until RBAC uses the bindings.
func awaitRole(t *testing.T, u user, namespace string) {
	t.Helper()
	sample := samples[0]
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, served.Timeout, true, func(context.Context) (bool, error) {
		code, _ := u.ask("POST", sample.base(namespace)+"?dryRun=All", "application/json", sample.document("probe", sentEast))
		return code == http.StatusCreated, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func expectLeave(t *testing.T, jane, admin user, sample sample, namespace string) {
	t.Helper()
	list, one := sample.base(namespace), sample.base(namespace)+"/"
	shared := `"sync.workloads.kcp.dev/west":"true"`
	toWest := `{"metadata":{"labels":{"workloads.kcp.dev/cluster":"west"}}}`
	apply := func(name, labels string) string { return sample.document(name, labels) }
	if code, body := admin.ask("POST", list, "application/json", sample.document("placed-west", sentWest)); code != http.StatusCreated {
		t.Fatalf("making what is placed already: %d %s", code, body)
	}
	for _, request := range []struct {
		method, path, contentType, body string
		want                            int
	}{
		{"POST", list, "application/json", sample.document("a", sentEast), 201},
		{"POST", list, "application/json", sample.document("b", sentWest), 403},
		{"POST", list, "application/json", sample.document("b", shared), 403},
		{"POST", list + "?dryRun=All", "application/json", sample.document("b", sentWest), 403},
		{"PATCH", one + "a", mergePatch, toWest, 403},
		{"PATCH", one + "a", strategicPatch, toWest, expectStrategic(sample)},
		{"PATCH", one + "a", jsonPatch, `[{"op":"add","path":"/metadata/labels/sync.workloads.kcp.dev~1west","value":"true"}]`, 403},
		{"PATCH", one + "a?fieldManager=x&force=true", applyPatch, apply("a", shared), 403},
		{"PATCH", one + "new?fieldManager=x&force=true", applyPatch, apply("new", sentWest), 403},
		{"PATCH", one + "a/status", mergePatch, toWest, expectStatus(sample)},
		{"PATCH", one + "a", mergePatch, `{"metadata":{"finalizers":["syncer.workloads.kcp.dev/west"]}}`, 403},
		{"PATCH", one + "a", mergePatch, `{"metadata":{"labels":{"workloads.kcp.dev/cluster":"A.b"}}}`, 403},
		{"PATCH", one + "placed-west", mergePatch, `{"metadata":{"labels":{"workloads.kcp.dev/cluster":null}}}`, 403},
		{"PATCH", one + "placed-west", mergePatch, `{"metadata":{"labels":{"workloads.kcp.dev/cluster":"east"}}}`, 403},
		{"PATCH", one + "placed-west", mergePatch, `{"metadata":{"labels":{"app":"x"}}}`, 200},
		{"PATCH", one + "a", mergePatch, `{"metadata":{"labels":{"workloads.kcp.dev/cluster":null}}}`, 200},
		{"PATCH", one + "a?fieldManager=x&force=true", applyPatch, apply("a", sentEast), 200},
	} {
		if code, body := jane.ask(request.method, request.path, request.contentType, request.body); code != request.want {
			t.Errorf("%s %s %s = %d %s, want %d", request.method, request.path, request.body, code, body, request.want)
		}
	}
	replacement := relabeled(t, jane, one+"a", map[string]string{workloadv1alpha1.TargetLabelPrefix + "west": "true"})
	if code, body := jane.ask("PUT", one+"a", "application/json", replacement); code != http.StatusForbidden {
		t.Errorf("PUT %s = %d %s, want 403", one+"a", code, body)
	}
}

// relabeled returns the current object with other labels.
func relabeled(t *testing.T, u user, path string, labels map[string]string) string {
	t.Helper()
	_, body := u.ask("GET", path, "", "")
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON([]byte(body)); err != nil {
		t.Fatal(err)
	}
	object.SetLabels(labels)
	out, err := object.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// expectStrategic: a type that client-go does not know has no strategic merge patch.
func expectStrategic(s sample) int {
	if s.resource.Group == "example.dev" {
		return http.StatusUnsupportedMediaType
	}
	return http.StatusForbidden
}

// expectStatus: the status subresource does not change labels of types defined by CRDs. Types
// without that subresource answer 404.
func expectStatus(s sample) int {
	switch {
	case s.resource.Group == "example.dev":
		return http.StatusOK
	case s.kind == "ConfigMap":
		return http.StatusNotFound
	default:
		return http.StatusForbidden
	}
}

// TestImpersonatedSyncerHasTheSameLimits: the syncers of push mode run in the control plane, and
// impersonate the users that they would be outside. The same limits apply to them.
func TestImpersonatedSyncerHasTheSameLimits(t *testing.T) {
	t.Parallel()
	inside := kcpinside.Shared(t)
	s := inside.Server
	namespace := s.Namespace(t)
	for name, labels := range map[string]map[string]string{"mine": {workloadv1alpha1.ClusterLabel: "south"}, "others": {workloadv1alpha1.ClusterLabel: "west"}} {
		if _, err := s.Client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	config := kcpinside.LoopbackConfig(inside)
	config.Impersonate.UID = string(newUser(t, s, s.Config).register("south"))
	config.Impersonate.UserName = workloadv1alpha1.SyncerUserPrefix + "south"
	config.Impersonate.Groups = []string{"system:masters"}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	maps := client.Resource(core.WithResource("configmaps")).Namespace(namespace)
	list, err := maps.List(t.Context(), metav1.ListOptions{LabelSelector: workloadv1alpha1.ClusterLabel + "=south"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("listing its own: %d items, %v", len(list.Items), err)
	}
	if _, err := maps.Get(t.Context(), "others", metav1.GetOptions{}); err == nil {
		t.Error("it reads another cluster's objects, as a member of system:masters")
	}
	if _, err := maps.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "x"}}}, metav1.CreateOptions{}); err == nil {
		t.Error("it makes objects, as a member of system:masters")
	}
}
