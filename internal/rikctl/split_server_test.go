package rikctl

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/rikctltest"
	"rik.dev/rik/internal/rikctl/scheme"
	"rik.dev/rik/internal/rikctl/split"
	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/served"
)

// splitSite is a kcp that serves Deployments, with two ready clusters and its administrator. No
// splitter runs.
type splitSite struct {
	machine
	server    *kcptest.Server
	c         client.Client
	namespace string
}

func newSplitSite(t *testing.T) *splitSite {
	t.Helper()
	s := &splitSite{machine: newMachine(t), server: kcptest.Start(t)}
	s.env["RIKCONFIG"] = filepath.Join(s.server.DataDir, "config.yaml")
	s.namespace = s.server.Namespace(t)
	var err error
	if s.c, err = client.New(kcptest.LoopbackConfig(s.server), client.Options{Scheme: scheme.Scheme}); err != nil {
		t.Fatal(err)
	}
	s.create(t, deploymentsCRD())
	for _, name := range []string{"east", "west"} {
		s.register(t, name)
	}
	poll.Until(t, served.Timeout, "Deployments are served", func(ctx context.Context) error {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(rikctltest.Deployments.GVK)
		return s.c.List(ctx, list)
	})
	return s
}

func (s *splitSite) create(t *testing.T, o client.Object) {
	t.Helper()
	if err := s.c.Create(t.Context(), o); err != nil {
		t.Fatalf("creating %s: %v", o.GetName(), err)
	}
}

// register creates a Cluster that is ready and accepts Deployments.
func (s *splitSite) register(t *testing.T, name string) {
	t.Helper()
	c := rikctltest.Cluster(name, map[string]string{"region": name})
	status := c.Status
	s.create(t, c)
	c.Status = status
	if err := s.c.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// deploymentsCRD returns the CRD that negotiation would publish, with the fields that splitting
// needs.
func deploymentsCRD() *apiextensionsv1.CustomResourceDefinition {
	replicas, anything := ".spec.replicas", true
	one := apiextensionsv1.JSON{Raw: []byte("1")}
	object := func(properties map[string]apiextensionsv1.JSONSchemaProps) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &anything, Properties: properties}
	}
	schema := object(map[string]apiextensionsv1.JSONSchemaProps{
		"spec":   object(map[string]apiextensionsv1.JSONSchemaProps{"replicas": {Type: "integer", Default: &one}}),
		"status": object(nil),
	})
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "deployments.apps", Annotations: map[string]string{apiresourcev1alpha1.NegotiatedAnnotation: "true"}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "apps", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "deployments", Singular: "deployment", ShortNames: []string{"deploy"}, Kind: "Deployment", ListKind: "DeploymentList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &schema},
				Subresources: &apiextensionsv1.CustomResourceSubresources{
					Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
					Scale:  &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: replicas, StatusReplicasPath: ".status.replicas"},
				},
			}},
		},
	}
}

// do runs a command line in the site's namespace.
func (s *splitSite) do(t *testing.T, line ...string) result {
	t.Helper()
	return s.run(t, append([]string{"-n", s.namespace}, line...)...)
}

// root returns the manifest of a Deployment.
func (s *splitSite) root(name string, replicas int) string {
	return strings.NewReplacer("{name: web, namespace: shop, uid: 1a2b, generation: 3}", "{name: "+name+"}", "replicas: 10", fmt.Sprintf("replicas: %d", replicas)).Replace(rikctltest.WebRoot)
}

// divide creates the leaves of a root, with a status as if their clusters ran them.
func (s *splitSite) divide(t *testing.T, name string, parts map[string]int32) {
	t.Helper()
	root := &unstructured.Unstructured{}
	root.SetGroupVersionKind(rikctltest.Deployments.GVK)
	if err := s.c.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: name}, root); err != nil {
		t.Fatal(err)
	}
	for cluster, replicas := range parts {
		leaf, err := splitter.Render(root, cluster, splitter.ScalePath{}, &replicas)
		if err != nil {
			t.Fatal(err)
		}
		s.create(t, leaf)
		leaf.Object["status"] = map[string]any{"observedGeneration": leaf.GetGeneration(), "replicas": int64(replicas), "readyReplicas": int64(replicas)}
		if err := s.c.Status().Update(t.Context(), leaf); err != nil {
			t.Fatal(err)
		}
	}
}

// user creates a user with the permissions in rules.
func (s *splitSite) user(t *testing.T, name string, rules ...rbacv1.PolicyRule) machine {
	t.Helper()
	meta := metav1.ObjectMeta{Name: name}
	s.create(t, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules})
	s.create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: name}},
	})
	return as(t, kcptest.As(t, s.server, name))
}

// as returns a machine whose user has a kubeconfig.
func as(t *testing.T, config *rest.Config) machine {
	t.Helper()
	data, err := served.Kubeconfig(config)
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	if err := os.WriteFile(filepath.Join(m.home, "kubeconfig"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestServerDivision runs against a real kcp. Its parts share the server and run in sequence,
// because all of them see the same clusters.
func TestServerDivision(t *testing.T) {
	t.Parallel()
	s := newSplitSite(t)
	s.stdin = s.root("web", 10)
	s.do(t, "apply", "-f", "-").check(t, clierror.ExitOK)
	s.divide(t, "web", map[string]int32{"east": 5, "west": 5})
	for _, part := range []struct {
		name string
		try  func(t *testing.T, s *splitSite)
	}{
		{"why", tryWhy}, {"why leaving", tryWhyLeaving}, {"plan", tryPlan}, {"whatif", tryWhatif}, {"a reader", tryReader}, {"few requests", tryRequests}, {"the outcome", tryOutcome},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.try(t, s) }) {
			return
		}
	}
}

func tryWhy(t *testing.T, s *splitSite) {
	for _, line := range []string{"deployment/web", "deployments.apps/web", "deploy/web", "deployments.v1.apps/web"} {
		s.do(t, "why", line).check(t, clierror.ExitOK, "is split by its replicas, strategy even", "Total:", "east", "west", "even: 1 of 2")
	}
	s.do(t, "why", "deployment", "web").check(t, clierror.ExitOK, "even: 1 of 2")
	s.do(t, "why", "deployment/web--west").check(t, clierror.ExitOK, "is the leaf of deployments.apps/web in cluster west", "even: 1 of 2")
	var got split.Division
	r := s.do(t, "why", "deployment/web--west", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || got.Name != "web" || len(got.Clusters) != 2 || got.Clusters[0].Has != 5 {
		t.Errorf("why -o json = %v, %s", err, r.out)
	}
	s.do(t, "why", "deployment/web", "-o", "wide").check(t, clierror.ExitUsage, "json or yaml")
	s.do(t, "why", "deployment/wob").check(t, clierror.ExitNotFound, `"wob" not found`)
	s.do(t, "why", "deploiment/web").check(t, clierror.ExitNotFound, "did you mean deployment")
	s.do(t, "why", "deployment/").check(t, clierror.ExitUsage, "TYPE/NAME")
	s.do(t, "why", "web").check(t, clierror.ExitNotFound, "rikctl why deployment/web")
	s.do(t, "__complete", "why", "deployment", "w").check(t, clierror.ExitOK, "web--east")

	s.stdin = strings.Replace(s.root("fixed", 1), "{name: fixed}", `{name: fixed, labels: {workloads.kcp.dev/cluster: east}}`, 1)
	s.do(t, "apply", "-f", "-").check(t, clierror.ExitOK)
	s.do(t, "why", "deployment/fixed").check(t, clierror.ExitOK, "is not split: its labels send it to east")
	s.stdin = `{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, labels: {sync.workloads.kcp.dev/east: "true", sync.workloads.kcp.dev/west: "true"}, annotations: {` +
		workloadv1alpha1.FollowsAnnotation + `: "east"}}}`
	s.do(t, "apply", "-f", "-").check(t, clierror.ExitOK)
	s.do(t, "why", "configmap/settings").check(t, clierror.ExitOK, "goes to east, because objects there need it", "send it to west")
}

// tryWhyLeaving explains the leaf of an unreachable cluster whose root was deleted.
func tryWhyLeaving(t *testing.T, s *splitSite) {
	s.stdin = s.root("old", 2)
	s.do(t, "apply", "-f", "-").check(t, clierror.ExitOK)
	s.divide(t, "old", map[string]int32{"east": 2})
	leaf := &unstructured.Unstructured{}
	leaf.SetGroupVersionKind(rikctltest.Deployments.GVK)
	key := client.ObjectKey{Namespace: s.namespace, Name: "old--east"}
	if err := s.c.Get(t.Context(), key, leaf); err != nil {
		t.Fatal(err)
	}
	leaf.SetFinalizers([]string{workloadv1alpha1.FinalizerPrefix + "east"})
	if err := s.c.Update(t.Context(), leaf); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.c.Get(context.Background(), key, leaf); err == nil {
			leaf.SetFinalizers(nil)
			_ = s.c.Update(context.Background(), leaf) // the namespace is deleted anyway
		}
	})
	s.do(t, "delete", "deployment", "old").check(t, clierror.ExitOK)
	s.do(t, "why", "deployment/old--east").check(t, clierror.ExitOK, "was the leaf in cluster east of deployments.apps/old, which has been deleted")
	s.do(t, "delete", "deployment", "old--east", "--wait=false").check(t, clierror.ExitOK)
	s.do(t, "why", "deployment/old--east").check(t, clierror.ExitOK, "which has been deleted", "is marked for deletion since", "is deleted when cluster east has deleted its copy")
	s.do(t, "why", "deployment/old--east", "-o", "json").check(t, clierror.ExitError, "the split cannot be printed")
}

func tryPlan(t *testing.T, s *splitSite) {
	plan := func(stdin string, line ...string) result {
		s.stdin = stdin
		return s.do(t, append([]string{"plan", "-f", "-"}, line...)...)
	}
	plan(s.root("web", 10)).check(t, clierror.ExitOK, "web in namespace "+s.namespace+", unchanged", "0 of 1 objects would change")
	plan(s.root("web", 7)).check(t, 1, ", changed,", "Total:", "1 of 1 objects would change")
	plan(s.root("api", 3)).check(t, 1, "deployment/api", ", new,")
	s.do(t, "get", "deployment", "api").check(t, clierror.ExitNotFound)
	// The server sets the default.
	plan(strings.Replace(s.root("api", 3), "  replicas: 3\n", "", 1)).check(t, 1, "Total:       1;")
	plan(strings.Replace(s.root("web", 10), "{name: web}", `{name: web, annotations: {placement.workloads.kcp.dev/max-moves: many}}`, 1)).
		check(t, clierror.ExitInvalid, "metadata.annotations[placement.workloads.kcp.dev/max-moves]", "no leaf changes")
	plan("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: many}").check(t, clierror.ExitInvalid, "spec.replicas")
	plan("apiVersion: apps/v9\nkind: Deployment\nmetadata: {name: web}").check(t, clierror.ExitNotFound, "apps/v9")
	plan("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}").check(t, clierror.ExitOK, "No split object would change")
	plan(s.root("web--east", 1)).check(t, clierror.ExitInvalid, "is a leaf of web")
	plan(strings.Replace(s.root("web", 1), "{name: web}", "{name: web, namespace: other}", 1)).check(t, clierror.ExitInvalid, "metadata.namespace is other")
	s.do(t, "plan").check(t, clierror.ExitUsage, "-f FILE is required")
	s.do(t, "plan", "-f", filepath.Join(s.home, "missing.yaml")).check(t, clierror.ExitUsage, "no such file")

	// Fields of other owners: apply would be refused, and the plan reports that.
	scaled := &unstructured.Unstructured{}
	scaled.SetGroupVersionKind(rikctltest.Deployments.GVK)
	scaled.SetName("web")
	scaled.SetNamespace(s.namespace)
	if err := s.c.Patch(t.Context(), scaled, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":12}}`)), client.FieldOwner("somebody")); err != nil {
		t.Fatal(err)
	}
	plan(s.root("web", 7)).check(t, 1, "--force-conflicts", "somebody", ", changed,")
	s.stdin = s.root("web", 10)
	s.do(t, "apply", "-f", "-", "--force-conflicts").check(t, clierror.ExitOK)

	// A Placement or a Cluster shows the roots that it changes.
	placement := `{apiVersion: workload.kcp.dev/v1alpha1, kind: Placement, metadata: {name: all}, spec: {selector: {}, strategy: weighted, weights: [{cluster: east, weight: 4}]}}`
	plan(placement).check(t, 1, "not in the files", "strategy weighted", "1 of 1 objects would change")
	plan(strings.Replace(placement, "weighted", "odd", 1)).check(t, clierror.ExitInvalid, "spec.strategy")
	plan("apiVersion: workload.kcp.dev/v1alpha1\nkind: Cluster\nmetadata: {name: north}\nspec: {syncMode: none}").check(t, 1, "north is not registered", "1 of 1 objects would change")
	plan("apiVersion: workload.kcp.dev/v1alpha1\nkind: Cluster\nmetadata: {name: east}\nspec: {taints: [{key: old, effect: NoExecute}]}").check(t, 1, "the taint old:NoExecute is not tolerated")
	// A namespace and the objects in it.
	plan("---\n{apiVersion: v1, kind: Namespace, metadata: {name: fresh}}\n---\n"+strings.Replace(s.root("api", 4), "{name: api}", "{name: api}", 1), "-o", "json").check(t, 1, `"file": "new"`)
	fresh := machine{s.home, s.env, "---\n{apiVersion: v1, kind: Namespace, metadata: {name: fresh}}\n---\n" + strings.Replace(s.root("api", 4), "{name: api}", "{name: api, namespace: fresh}", 1)}
	fresh.run(t, "plan", "-f", "-").check(t, 1, "deployment/api in namespace fresh, new,")
}

func tryWhatif(t *testing.T, s *splitSite) {
	s.do(t, "whatif").check(t, clierror.ExitUsage, "a change is required")
	s.do(t, "whatif", "--lose-cluster", "north").check(t, clierror.ExitNotFound, `"north" not found`, "rikctl get clusters")
	s.do(t, "whatif", "--add-cluster", "east").check(t, clierror.ExitUsage, "cluster east already exists")
	s.do(t, "whatif", "--lose-cluster", "east").check(t, clierror.ExitOK, "1 of 1 objects would change; 5 replicas would move, and 0 would be unplaced", "west=10", "5m")
	// Without a namespace, whatif covers all of them.
	s.run(t, "whatif", "--lose-cluster", "east").check(t, clierror.ExitOK, "1 of 1 objects")
	s.do(t, "whatif", "--lose-cluster", "east", "deployment/web").check(t, clierror.ExitOK, "1 of 1 objects")
	s.do(t, "whatif", "--lose-cluster", "east", "deployment/web--east").check(t, clierror.ExitError, "is not split", "rikctl why")
	s.do(t, "whatif", "--lose-cluster", "east", "configmap/settings").check(t, clierror.ExitError, "not split")
	s.do(t, "whatif", "--lose-cluster", "east", "deployment/wob").check(t, clierror.ExitNotFound, `"wob" not found`)
	s.do(t, "whatif", "--remove-cluster", "west", "--add-cluster", "north=region=north,cpu=8", "-o", "yaml").check(t, clierror.ExitOK, "cluster: north", "then: 5", "unplaced: 0")
	// None of these commands has written anything.
	clusters := &workloadv1alpha1.ClusterList{}
	if err := s.c.List(t.Context(), clusters); err != nil || len(clusters.Items) != 2 {
		t.Errorf("there are %d clusters, %v", len(clusters.Items), err)
	}
}

// readRules are the permissions that explanations and plans need.
var readRules = []rbacv1.PolicyRule{
	{APIGroups: []string{"workload.kcp.dev"}, Resources: []string{"clusters", "placements"}, Verbs: []string{"get", "list"}},
	{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, Verbs: []string{"get", "list"}},
	{APIGroups: []string{"apiresource.kcp.dev"}, Resources: []string{"negotiatedapiresources"}, Verbs: []string{"get", "list"}},
	{Resources: []string{"persistentvolumeclaims", "services"}, APIGroups: []string{""}, Verbs: []string{"get", "list"}},
	{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get", "list"}},
}

// tryReader checks that explanations and plans need only read permission.
func tryReader(t *testing.T, s *splitSite) {
	reader, unprivileged := s.user(t, "reader", readRules...), s.user(t, "unprivileged")
	for _, m := range []machine{reader, unprivileged} {
		m.env["KUBECONFIG"] = ""
	}
	lines := [][]string{{"why", "deployment/web"}, {"whatif", "--lose-cluster", "east"}, {"plan", "-f", "-"}}
	in := func(m machine) []string {
		return []string{"--kubeconfig", filepath.Join(m.home, "kubeconfig"), "-n", s.namespace}
	}
	reader.stdin, unprivileged.stdin = s.root("web", 7), s.root("web", 7)
	for _, line := range lines[:2] {
		reader.run(t, slices.Concat(in(reader), line)...).check(t, clierror.ExitOK, "web", "east")
	}
	reader.run(t, slices.Concat(in(reader), lines[2])...).check(t, 1, "you have no permission to apply it", ", changed,", "Total:       7;")
	for _, line := range lines {
		unprivileged.run(t, slices.Concat(in(unprivileged), line)...).check(t, clierror.ExitDenied, "is forbidden", "this needs permission to get and list clusters")
	}
}

// tryRequests checks that many roots need no more requests than few.
func tryRequests(t *testing.T, s *splitSite) {
	const many = 40
	for i := range many {
		name := fmt.Sprintf("many-%02d", i)
		s.create(t, s.inNamespace(rikctltest.Parse(t, s.root(name, 4))))
		s.divide(t, name, map[string]int32{"east": 2, "west": 2})
	}
	var requests int
	counted := func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		requests++
		return c.List(ctx, list, options...)
	}
	base, err := client.NewWithWatch(kcptest.LoopbackConfig(s.server), client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	c := interceptor.NewClient(base, interceptor.Funcs{
		List: counted,
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			requests++
			return c.Get(ctx, key, o, options...)
		},
	})
	look, err := split.Predict(t.Context(), c, &split.Scenario{Lost: []string{"east"}}, "")
	if err != nil {
		t.Fatal(err)
	}
	if look.Roots != many+1 || look.Moved != many+1 || requests > 5 {
		t.Errorf("%d of %d roots move, found out with %d requests; want all of %d with 5: clusters, placements, deployments, and two for the types that are split", look.Moved, look.Roots, requests, many+1)
	}
}

func (s *splitSite) inNamespace(o *unstructured.Unstructured) *unstructured.Unstructured {
	o.SetNamespace(s.namespace)
	return o
}

// TestServerDivisionNeedsAKCP checks that a rik cluster, which does not split, reports that a
// kcp is necessary.
func TestServerDivisionNeedsAKCP(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do(t, "whatif", "--lose-cluster", "east").check(t, clierror.ExitNotFound, "this server is not a kcp", "rikctl config use")
	s.do(t, "plan", "-f", s.file(t, workloadManifest("web", ""))).check(t, clierror.ExitNotFound, "this server is not a kcp", "rikctl config use")
	s.workload(t, "web", "")
	s.do(t, "why", "workload/web").check(t, clierror.ExitError, "has no instances", "rikctl create instance")
	s.do(t, "create", "instance", "-w", "web", "-r", "2").check(t, clierror.ExitOK)
	s.do(t, "why", "workload/web").check(t, clierror.ExitOK, "as 2 instances", "rikctl why web-")
	s.do(t, "apply", "-f", s.file(t, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: api}\nspec: {selector: {matchLabels: {app: a}}, "+
		"template: {metadata: {labels: {app: a}}, spec: {containers: [{name: a, image: \"registry.example/a:1\"}]}}}")).check(t, clierror.ExitOK)
	s.do(t, "why", "deployment/api").check(t, clierror.ExitNotFound, "does not run yet", "rikctl describe deployments.apps/api")
	s.do(t, "why", "workload", "wob").check(t, clierror.ExitNotFound, `"wob" not found`)
	s.do(t, "why", "configmap/any").check(t, clierror.ExitNotFound, "this server is not a kcp")
}
