package apiserver_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/registry/inprocess"
	"rik.dev/rik/internal/testkit/apitest"
)

// tenant is a user with all permissions in a namespace.
type tenant struct {
	server    *apitest.Server
	config    *rest.Config
	client    dynamic.Interface
	namespace string
}

// newTenant grants the permissions in one role, so that all of them take effect at once.
// Aggregated roles take effect step by step.
func newTenant(t *testing.T) *tenant {
	t.Helper()
	s := apitest.Shared(t)
	namespace := s.Namespace(t)
	rbac := s.Client.RbacV1()
	_, err := rbac.Roles(namespace).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = rbac.RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "all"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: namespace + "-ann"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(s.Config)
	config.Impersonate.UserName = namespace + "-ann"
	return &tenant{server: s, config: config, client: dynamicClient(t, config), namespace: namespace}
}

func (n *tenant) resource(name string) dynamic.ResourceInterface {
	return n.client.Resource(rikv1alpha1.SchemeGroupVersion.WithResource(name)).Namespace(n.namespace)
}

func (n *tenant) object(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rik.dev/v1alpha1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

func (n *tenant) workload(t *testing.T) {
	t.Helper()
	create := func() error {
		_, err := n.resource("workloads").Create(t.Context(), n.object("Workload", "web", map[string]any{
			"containers": []any{map[string]any{"name": "main", "image": "nginx:1"}},
		}), metav1.CreateOptions{})
		return err
	}
	// New permissions reach the authorizer through its informers, with a delay.
	ctx, cancel := context.WithTimeout(t.Context(), apitest.Timeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	err := create()
	for apierrors.IsForbidden(err) && ctx.Err() == nil {
		<-ticker.C
		err = create()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// bound creates an instance on the scripted node and returns its name.
func (n *tenant) bound(t *testing.T) string {
	t.Helper()
	n.workload(t)
	made, err := n.resource("instances").Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rik.dev/v1alpha1", "kind": "Instance", "metadata": map[string]any{}, "spec": map[string]any{"workload": "web"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := inprocess.NewInstances(n.server.API.Stores().Instances)
	i, err := d.Get(t.Context(), n.namespace, made.GetName())
	if err != nil {
		t.Fatal(err)
	}
	i.Spec.NodeName = "n1"
	if _, err := d.Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	return made.GetName()
}

func (n *tenant) path(instance, subresource string) string {
	return n.server.URL + "/apis/rik.dev/v1alpha1/namespaces/" + n.namespace + "/instances/" + instance + "/" + subresource
}

func TestServedLog(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	name := n.bound(t)
	client, err := rest.HTTPClientFor(n.config)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Get(n.path(name, "log") + "?tailLines=3&container=main")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || string(body) != "a line\n" {
		t.Errorf("log = %d %q, %v", answer.StatusCode, body, err)
	}
}

// TestServedExec runs a command like kubectl, through all filters of the real server.
func TestServedExec(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	u, err := url.Parse(n.path(n.bound(t), "exec") + "?command=cat&stdin=true&stdout=true")
	if err != nil {
		t.Fatal(err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(n.config, http.MethodPost, u)
	if err != nil {
		t.Fatal(err)
	}
	websocket, err := remotecommand.NewWebSocketExecutor(n.config, http.MethodGet, u.String())
	if err != nil {
		t.Fatal(err)
	}
	for name, executor := range map[string]remotecommand.Executor{"SPDY": spdy, "WebSocket": websocket} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), apitest.Timeout)
			defer cancel()
			var out bytes.Buffer
			err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out})
			var exit exec.CodeExitError
			if !errors.As(err, &exit) || exit.Code != 7 || out.String() != "hello" {
				t.Errorf("exec = %v with %q, want exit code 7 with hello", err, out.String())
			}
		})
	}
}

// TestServedHold sends an empty body to suspend and resume through the handlers of the generic
// server, as users with and without the permission.
func TestServedHold(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	name := n.bound(t)
	for _, subresource := range []string{"suspend", "resume"} {
		code, body := n.post(t, n.config, name, subresource)
		if code != http.StatusOK || !strings.Contains(body, `"status":"Success"`) {
			t.Errorf("%s = %d %s", subresource, code, body)
		}
		viewer := rest.CopyConfig(n.server.Config)
		viewer.Impersonate = rest.ImpersonationConfig{UserName: "nobody-special"}
		if code, body = n.post(t, viewer, name, subresource); code != http.StatusForbidden {
			t.Errorf("%s without the right = %d %s", subresource, code, body)
		}
	}
	client, err := rest.HTTPClientFor(n.config)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Get(n.path(name, "suspend"))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusMethodNotAllowed && answer.StatusCode != http.StatusForbidden {
		t.Errorf("GET of suspend = %d, want none", answer.StatusCode)
	}
}

func (n *tenant) post(t *testing.T, as *rest.Config, instance, subresource string) (int, string) {
	t.Helper()
	return sendAs(t, as, http.MethodPost, n.path(instance, subresource), "", "")
}

// TestServedPrivileges: all permissions in a namespace do not include access to the node.
func TestServedPrivileges(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.workload(t)
	spec := map[string]any{"hostNetwork": true, "containers": []any{map[string]any{"name": "main", "image": "nginx:1"}}}
	_, err := n.resource("workloads").Create(t.Context(), n.object("Workload", "host", spec), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "spec.hostNetwork") {
		t.Errorf("Create = %v, want 403 that names the field", err)
	}
	_, err = n.resource("workloads").Apply(t.Context(), "host", n.object("Workload", "host", spec), metav1.ApplyOptions{FieldManager: "t"})
	if !apierrors.IsForbidden(err) {
		t.Errorf("Apply = %v, want 403", err)
	}
	_, err = n.resource("workloads").Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"hostNetwork":true}}`), metav1.PatchOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("Patch = %v, want 403", err)
	}
	admin, err := dynamic.NewForConfig(n.server.Config)
	if err != nil {
		t.Fatal(err)
	}
	workloads := admin.Resource(rikv1alpha1.SchemeGroupVersion.WithResource("workloads")).Namespace(n.namespace)
	if _, err := workloads.Create(t.Context(), n.object("Workload", "host", spec), metav1.CreateOptions{}); err != nil {
		t.Errorf("the administrator's = %v", err)
	}
}

// hostRoot is a template that only administrators may write.
func hostRoot() map[string]any {
	return map[string]any{
		"hostNetwork": true, "containers": []any{map[string]any{"name": "main", "image": "nginx:1"}},
		"volumes": []any{map[string]any{"name": "root", "hostPath": map[string]any{"path": "/"}}},
	}
}

// TestServedRevisionsAreNotForUsers: users cannot create revisions. A user's own revision, and
// an instance of it, would bypass the check of privileges.
func TestServedRevisionsAreNotForUsers(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.workload(t)
	revision := n.object("WorkloadRevision", "web-mine", nil)
	delete(revision.Object, "spec")
	revision.SetLabels(map[string]string{rikv1alpha1.LabelWorkload: "web", rikv1alpha1.LabelRevision: "mine"})
	revision.Object["template"] = hostRoot()
	revisions := n.resource("workloadrevisions")
	if _, err := revisions.Create(t.Context(), revision, metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "change the workload") {
		t.Errorf("Create = %v, want 403 with the next step", err)
	}
	if _, err := revisions.Apply(t.Context(), "web-mine", revision, metav1.ApplyOptions{FieldManager: "t"}); !apierrors.IsForbidden(err) {
		t.Errorf("Apply = %v, want 403", err)
	}
	if _, err := n.resource("instances").Create(t.Context(), n.object("Instance", "web-one", map[string]any{"workload": "web"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := revisions.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("List = %v, %v, want the revision that the instance made", list, err)
	}
	_, err = revisions.Patch(t.Context(), list.Items[0].GetName(), types.MergePatchType, []byte(`{"revision":9223372036854775807}`), metav1.PatchOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("Patch of the number = %v, want 403", err)
	}
}

// TestServedPrivilegesThatWereTakenBack: an older revision contains privileges that an
// administrator once allowed. Other users may not create an instance of it, or roll back to it.
func TestServedPrivilegesThatWereTakenBack(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.workload(t) // the permissions have taken effect
	admin := dynamicClient(t, n.server.Config)
	workloads := admin.Resource(rikv1alpha1.SchemeGroupVersion.WithResource("workloads")).Namespace(n.namespace)
	if _, err := workloads.Create(t.Context(), n.object("Workload", "host", hostRoot()), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	instances := n.resource("instances")
	first, err := instances.Create(t.Context(), n.object("Instance", "host-one", map[string]any{"workload": "host"}), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("an instance of the administrator's workload = %v", err)
	}
	old, _, _ := unstructured.NestedString(first.Object, "spec", "revision")
	of := func(name string) *unstructured.Unstructured {
		return n.object("Instance", name, map[string]any{"workload": "host", "revision": old})
	}
	if _, err := instances.Create(t.Context(), of("host-two"), metav1.CreateOptions{}); err != nil {
		t.Errorf("an instance of the present revision by its name = %v", err)
	}
	plain := `[{"op":"remove","path":"/spec/hostNetwork"},{"op":"remove","path":"/spec/volumes"}]`
	if _, err := workloads.Patch(t.Context(), "host", types.JSONPatchType, []byte(plain), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := instances.Create(t.Context(), of("host-three"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "hostPath") {
		t.Errorf("an instance of the old revision = %v, want 403 that names the field", err)
	}
	if _, err := instances.Apply(t.Context(), "host-four", of("host-four"), metav1.ApplyOptions{FieldManager: "t"}); !apierrors.IsForbidden(err) {
		t.Errorf("the same by apply = %v, want 403", err)
	}
	back := []byte(`{"metadata":{"annotations":{"` + rikv1alpha1.AnnotationRollback + `":"1"}}}`)
	if _, err := n.resource("workloads").Patch(t.Context(), "host", types.MergePatchType, back, metav1.PatchOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "hostPath") {
		t.Errorf("going back = %v, want 403 that names the field", err)
	}
	if _, err := n.resource("workloads").Patch(t.Context(), "web", types.MergePatchType, back, metav1.PatchOptions{}); err != nil {
		t.Errorf("going back in a workload of one's own = %v", err)
	}
	adminInstances := admin.Resource(rikv1alpha1.SchemeGroupVersion.WithResource("instances")).Namespace(n.namespace)
	if _, err := adminInstances.Create(t.Context(), of("host-five"), metav1.CreateOptions{}); err != nil {
		t.Errorf("the administrator's instance of the old revision = %v", err)
	}
	if _, err := workloads.Patch(t.Context(), "host", types.MergePatchType, back, metav1.PatchOptions{}); err != nil {
		t.Errorf("the administrator's going back = %v", err)
	}
}

// TestServedOrphansAreMarkedByTheServerOnly: only the server may mark instances as orphans. Before
// this fix, an Automatic workload whose template set that mark was given new instances without
// end.
func TestServedOrphansAreMarkedByTheServerOnly(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.workload(t)
	mark := map[string]any{rikv1alpha1.AnnotationOrphaned: "true"}
	_, err := n.resource("workloads").Create(t.Context(), n.object("Workload", "endless", map[string]any{
		"annotations": mark, "containers": []any{map[string]any{"name": "main", "image": "nginx:1"}},
	}), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.annotations["+rikv1alpha1.AnnotationOrphaned+"]") {
		t.Errorf("in a template = %v, want 422 that names the field", err)
	}
	instances := n.resource("instances")
	i := n.object("Instance", "web-mine", map[string]any{"workload": "web"})
	if _, err := instances.Create(t.Context(), i, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"metadata":{"annotations":{"` + rikv1alpha1.AnnotationOrphaned + `":"true"}}}`)
	if _, err := instances.Patch(t.Context(), "web-mine", types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("of an instance = %v, want 422", err)
	}
	i.SetName("web-other")
	i.SetAnnotations(map[string]string{rikv1alpha1.AnnotationOrphaned: "true"})
	if _, err := instances.Create(t.Context(), i, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("of a new instance = %v, want 422", err)
	}
}

// TestServedStatusIsNotForUsers: no user may write a status, even with all permissions in a
// namespace. A workload's status could take another's address, and an instance's status could
// hide a running instance.
func TestServedStatusIsNotForUsers(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	name := n.bound(t)
	for resource, tc := range map[string]struct{ name, patch string }{
		"workloads": {"web", `{"status":{"addresses":["10.63.0.2"]}}`},
		"instances": {name, `{"status":{"phase":"Failed","sequence":9223372036854775807}}`},
	} {
		before, err := n.resource(resource).Get(t.Context(), tc.name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = n.resource(resource).Patch(t.Context(), tc.name, types.MergePatchType, []byte(tc.patch), metav1.PatchOptions{}, "status")
		if !apierrors.IsForbidden(err) {
			t.Errorf("Patch of %s/status = %v, want 403", resource, err)
		}
		if _, err = n.resource(resource).Patch(t.Context(), tc.name, types.MergePatchType, []byte(tc.patch), metav1.PatchOptions{}); err != nil {
			t.Errorf("Patch of %s = %v, want the status passed over", resource, err)
		}
		after, err := n.resource(resource).Get(t.Context(), tc.name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before.Object["status"], after.Object["status"]); diff != "" {
			t.Errorf("%s: a user changed the status (-before +after):\n%s", resource, diff)
		}
	}
}

// TestServedApplyOfWhatWasCreated: a user who created an object from a file can apply the same
// file without a conflict. Fields that the server set could cause conflicts in lists that are
// merged as a whole.
func TestServedApplyOfWhatWasCreated(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.workload(t) // the permissions have taken effect
	const manager = "rikctl"
	admin := dynamicClient(t, n.server.Config)
	for resource, o := range map[string]*unstructured.Unstructured{
		"workloads": n.object("Workload", "whole", map[string]any{
			"deploy":         "Automatic",
			"tolerations":    []any{map[string]any{"key": "gpu", "value": "yes"}},
			"topologySpread": []any{map[string]any{"maxSkew": int64(1), "topologyKey": "zone"}},
			"volumes":        []any{map[string]any{"name": "c", "configMap": map[string]any{"name": "c", "items": []any{map[string]any{"key": "a", "path": "a"}}}}},
			"containers": []any{map[string]any{
				"name": "main", "image": "nginx:1", "env": []any{map[string]any{"name": "A", "value": "b"}},
				"envFrom":        []any{map[string]any{"secret": "s"}},
				"ports":          []any{map[string]any{"port": int64(80)}, map[string]any{"port": int64(80), "protocol": "UDP", "type": "nodePort"}},
				"readinessProbe": map[string]any{"http": map[string]any{"port": int64(80)}},
				"resources":      map[string]any{"limits": map[string]any{"cpu": "1", "memory": "64Mi"}},
			}},
		}),
		"tenants": n.object("Tenant", n.namespace+"-t", map[string]any{"users": []any{map[string]any{"name": "bob"}}}),
	} {
		of := dynamic.ResourceInterface(admin.Resource(rikv1alpha1.SchemeGroupVersion.WithResource(resource)))
		if resource == "workloads" {
			of = n.resource(resource)
		}
		if _, err := of.Create(t.Context(), o.DeepCopy(), metav1.CreateOptions{FieldManager: manager}); err != nil {
			t.Fatal(err)
		}
		if _, err := of.Apply(t.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: manager}); err != nil {
			t.Errorf("Apply of %s = %v", resource, err)
		}
	}
}

// TestServedApply applies an instance twice. The second time changes nothing, although the
// manifest lacks the fields that the server set.
func TestServedApply(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.workload(t)
	admin, err := dynamic.NewForConfig(n.server.Config)
	if err != nil {
		t.Fatal(err)
	}
	instances := admin.Resource(rikv1alpha1.SchemeGroupVersion.WithResource("instances")).Namespace(n.namespace)
	var versions []string
	for range 2 {
		got, err := instances.Apply(t.Context(), "web-mine", n.object("Instance", "web-mine", map[string]any{"workload": "web"}), metav1.ApplyOptions{FieldManager: "t"})
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, got.GetResourceVersion())
		if revision, _, _ := unstructured.NestedString(got.Object, "spec", "revision"); !strings.HasPrefix(revision, "web-") {
			t.Errorf("revision = %q", revision)
		}
	}
	if versions[0] != versions[1] {
		t.Errorf("applying again wrote: versions %v", versions)
	}
}

// TestServedSelectors lists and watches by the documented field selectors.
func TestServedSelectors(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	name := n.bound(t)
	for selector, want := range map[string]bool{
		"spec.nodeName=n1": true, "spec.nodeName=n2": false, "spec.workload=web,status.phase=Pending": true, "metadata.name=" + name: true, "status.phase!=Pending": false,
	} {
		list, err := n.resource("instances").List(t.Context(), metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		has := slices.ContainsFunc(list.Items, func(u unstructured.Unstructured) bool { return u.GetName() == name })
		if has != want {
			t.Errorf("%s selects it: %v, want %v", selector, has, want)
		}
	}
	if _, err := n.resource("instances").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.other=x"}); !apierrors.IsBadRequest(err) {
		t.Errorf("an unknown field = %v, want 400", err)
	}
	watch, err := n.resource("instances").Watch(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	select {
	case event := <-watch.ResultChan():
		if got, ok := event.Object.(*unstructured.Unstructured); !ok || got.GetName() != name {
			t.Errorf("watch saw %v", event)
		}
	case <-time.After(apitest.Timeout):
		t.Error("watch saw nothing")
	}
}

// TestServedTable requests a table like kubectl get.
func TestServedTable(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	name := n.bound(t)
	client, err := rest.HTTPClientFor(n.config)
	if err != nil {
		t.Fatal(err)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(n.path("", ""), "//"), nil)
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	answer, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	for _, want := range []string{`"kind":"Table"`, `"name":"Restarts"`, `"` + name + `","web","0/-","Pending","0"`} {
		if !strings.Contains(string(body), want) {
			t.Errorf("table lacks %s: %s", want, body)
		}
	}
}

// TestServedWarnings: fields that are accepted but not recommended cause warnings.
func TestServedWarnings(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	n.workload(t)
	warnings := &seen{}
	config := rest.CopyConfig(n.config)
	config.WarningHandler = warnings
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Resource(rikv1alpha1.SchemeGroupVersion.WithResource("workloads")).Namespace(n.namespace).Create(t.Context(), n.object("Workload", "function", map[string]any{
		"kind": "Function", "function": map[string]any{"execution": map[string]any{"rootfs": "http://files.example/root.tar.gz"}},
	}), metav1.CreateOptions{})
	if err != nil || len(warnings.texts) != 1 || !strings.Contains(warnings.texts[0], "use https://") {
		t.Errorf("Create = %v with warnings %q", err, warnings.texts)
	}
}

type seen struct{ texts []string }

// HandleWarningHeader stores a warning.
func (h *seen) HandleWarningHeader(_ int, _, text string) { h.texts = append(h.texts, text) }
