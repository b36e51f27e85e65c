package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/crdpuller"
	"rik.dev/rik/internal/multicluster/syncer"
)

// importOf returns an import of the cluster east.
func importOf(group, version, plural string, scope apiextensionsv1.ResourceScope, conditions ...string) *apiresourcev1alpha1.APIResourceImport {
	i := &apiresourcev1alpha1.APIResourceImport{}
	i.Spec.Location, i.Spec.Scope = "east", scope
	i.Spec.GroupVersion = apiresourcev1alpha1.GroupVersion{Group: group, Version: version}
	i.Spec.Names.Plural = plural
	i.Name = apiresourcev1alpha1.ImportName(i.Spec.GVR(), "east")
	for _, c := range conditions {
		i.Status.Conditions = append(i.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue})
	}
	return i
}

func TestSynced(t *testing.T) {
	t.Parallel()
	const namespaced, global = apiextensionsv1.NamespaceScoped, apiextensionsv1.ClusterScoped
	both := []string{apiresourcev1alpha1.ConditionCompatible, apiresourcev1alpha1.ConditionAvailable}
	elsewhere := importOf("apps", "v1", "deployments", namespaced, both...)
	elsewhere.Spec.Location = "west"
	leaving := importOf("apps", "v1", "deployments", namespaced, both...)
	leaving.DeletionTimestamp = &metav1.Time{Time: noon}
	tests := []struct {
		name      string
		requested []string
		allowed   []string
		imports   []*apiresourcev1alpha1.APIResourceImport
		was       []string
		want      []string
		wrong     string
	}{
		{name: "none"},
		{name: "requested and native", requested: []string{"deployments.apps"}, imports: []*apiresourcev1alpha1.APIResourceImport{
			importOf("apps", "v1", "deployments", namespaced, both...), importOf("", "v1", "services", namespaced, both...),
		}, want: []string{"deployments.apps", "services"}},
		{name: "requested without a group", requested: []string{"deployments"}, imports: []*apiresourcev1alpha1.APIResourceImport{
			importOf("apps", "v1", "deployments", namespaced, both...),
		}, want: []string{"deployments.apps"}},
		{name: "two versions are one type", requested: []string{"deployments.apps"}, imports: []*apiresourcev1alpha1.APIResourceImport{
			importOf("apps", "v1", "deployments", namespaced, both...), importOf("apps", "v2", "deployments", namespaced, both...),
		}, want: []string{"deployments.apps"}},
		{name: "not requested", imports: []*apiresourcev1alpha1.APIResourceImport{importOf("apps", "v1", "deployments", namespaced, both...)}},
		{name: "incompatible", requested: []string{"deployments.apps"}, imports: []*apiresourcev1alpha1.APIResourceImport{
			importOf("apps", "v1", "deployments", namespaced, apiresourcev1alpha1.ConditionAvailable)}},
		{name: "incompatible, carried before", requested: []string{"deployments.apps"}, was: []string{"deployments.apps"}, imports: []*apiresourcev1alpha1.APIResourceImport{
			tightened("apps", "v1", "deployments")}, want: []string{"deployments.apps"}, wrong: "maximum: 100"},
		{name: "incompatible in one of two versions", requested: []string{"deployments.apps"}, was: []string{"deployments.apps"}, imports: []*apiresourcev1alpha1.APIResourceImport{
			importOf("apps", "v1", "deployments", namespaced, both...), tightened("apps", "v2", "deployments")}, want: []string{"deployments.apps"}},
		{name: "incompatible, never carried", requested: []string{"deployments.apps"}, imports: []*apiresourcev1alpha1.APIResourceImport{tightened("apps", "v1", "deployments")}},
		{name: "not available any more", requested: []string{"deployments.apps"}, was: []string{"deployments.apps"}, imports: []*apiresourcev1alpha1.APIResourceImport{
			importOf("apps", "v1", "deployments", namespaced, apiresourcev1alpha1.ConditionCompatible)}},
		{name: "not available", requested: []string{"deployments.apps"}, imports: []*apiresourcev1alpha1.APIResourceImport{
			importOf("apps", "v1", "deployments", namespaced, apiresourcev1alpha1.ConditionCompatible)}},
		{name: "of another cluster", requested: []string{"deployments.apps"}, imports: []*apiresourcev1alpha1.APIResourceImport{elsewhere}},
		{name: "being deleted", requested: []string{"deployments.apps"}, imports: []*apiresourcev1alpha1.APIResourceImport{leaving}},
		{name: "cluster-scoped, not allowed", requested: []string{"widgets.example"}, imports: []*apiresourcev1alpha1.APIResourceImport{
			importOf("example", "v1", "widgets", global, both...)}},
		{name: "cluster-scoped, allowed", allowed: []string{"widgets.example"}, imports: []*apiresourcev1alpha1.APIResourceImport{
			importOf("example", "v1", "widgets", global, both...)}, want: []string{"widgets.example"}},
		{name: "powerful, allowed", allowed: []string{"clusterroles.rbac.authorization.k8s.io", "namespaces", "customresourcedefinitions.apiextensions.k8s.io"},
			imports: []*apiresourcev1alpha1.APIResourceImport{
				importOf("rbac.authorization.k8s.io", "v1", "clusterroles", global, both...), importOf("", "v1", "namespaces", global, both...),
				importOf("apiextensions.k8s.io", "v1", "customresourcedefinitions", global, both...)}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cluster := &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east"}, Spec: workloadv1alpha1.ClusterSpec{ClusterScopedResources: tc.allowed}}
			slices.Reverse(tc.imports)
			cluster.Status.SyncedResources = tc.was
			got, problems := synced(tc.requested, cluster, tc.imports)
			if !slices.Equal(got, tc.want) {
				t.Errorf("synced = %v, want %v", got, tc.want)
			}
			if len(problems) > 1 || (len(problems) == 1) != (tc.wrong != "") || len(problems) == 1 && !strings.Contains(problems[0].Message, tc.wrong) {
				t.Errorf("the problems are %+v, want %q", problems, tc.wrong)
			}
			for _, name := range wanted(tc.requested, cluster) {
				if neverSynced(schema.ParseGroupResource(name)) != "" {
					t.Errorf("wanted holds %s, which is never synced", name)
				}
			}
		})
	}
}

// tightened returns an import of a type whose schema the cluster has narrowed.
func tightened(group, version, resource string) *apiresourcev1alpha1.APIResourceImport {
	i := importOf(group, version, resource, apiextensionsv1.NamespaceScoped)
	i.Status.Conditions = []metav1.Condition{{Type: apiresourcev1alpha1.ConditionCompatible, Status: metav1.ConditionFalse, Message: ".spec.replicas: maximum: 100"}}
	return i
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	good := Config{Rest: &rest.Config{}, Mode: workloadv1alpha1.SyncPush, ResourcesToSync: []string{"ingresses.networking.k8s.io"}}
	if err := good.Validate(); err != nil {
		t.Errorf("Validate = %v", err)
	}
	bad := Config{Mode: "both", PollInterval: -1, ResourcesToSync: []string{"roles.rbac.authorization.k8s.io", " deployments.apps", ""}}
	err := bad.Validate()
	if err == nil {
		t.Fatal("Validate = nil of what is all wrong")
	}
	for _, part := range []string{"connection", `"both"`, "negative", "control over the cluster", `" deployments.apps"`, `"" is not the name of a type`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("Validate = %q, which does not speak of %s", err, part)
		}
	}
}

func TestSupplySums(t *testing.T) {
	t.Parallel()
	q := resource.MustParse
	none := func() supply {
		return supply{capacity: corev1.ResourceList{}, allocatable: corev1.ResourceList{}}
	}
	kube := none()
	plus(kube.capacity, map[string]string{"cpu": "4", "memory": "8Gi"}, ofKube)
	plus(kube.capacity, map[string]string{"cpu": "500m", "memory": "1Gi"}, ofKube)
	plus(kube.capacity, map[string]string{"example.com/gpu": "2"}, ofKube)
	if want := (supply{corev1.ResourceList{"cpu": q("4500m"), "memory": q("9Gi"), "example.com/gpu": q("2")}, corev1.ResourceList{}}); !kube.equal(want) {
		t.Errorf("sum = %v, want %v", kube, want)
	}
	rik := none()
	for range 2 {
		plus(rik.capacity, map[string]string{"cpu": "2", "memory": "1Gi", "disk": "10Gi", "instances": "500"}, ofRik)
		plus(rik.allocatable, map[string]string{"cpu": "1800m"}, ofRik)
	}
	if want := (supply{corev1.ResourceList{"cpu": q("4"), "memory": q("2Gi"), "ephemeral-storage": q("20Gi"), "pods": q("1000")}, corev1.ResourceList{"cpu": q("3600m")}}); !rik.equal(want) {
		t.Errorf("sum = %v, want %v", rik, want)
	}
	if rik.equal(kube) {
		t.Error("two different supplies are equal")
	}
	// None of these values is parsed, because parsing some of them would never end.
	for _, lie := range []string{"1e-999999999", "1e999999999", "1e2147483648", "-1", "", "x", "1e+3", strings.Repeat("9", 1<<20)} {
		plus(rik.allocatable, map[string]string{"cpu": lie, "memory": lie}, ofRik)
	}
	plus(rik.allocatable, map[string]string{"": "1", "a b": "1", "x/y/z": "1"}, ofRik)
	if want := (corev1.ResourceList{"cpu": q("3600m")}); !equality.Semantic.DeepEqual(rik.allocatable, want) {
		t.Errorf("with lies, sum = %v, want %v", rik.allocatable, want)
	}
	for i := range 1000 {
		plus(kube.allocatable, map[string]string{fmt.Sprintf("example.com/r%d", i): "1"}, ofKube)
	}
	if len(kube.allocatable) != maxResources {
		t.Errorf("%d resources are reported, want %d", len(kube.allocatable), maxResources)
	}
}

// definition returns a CRD of widgets.example with versions.
func definition(versions ...apiextensionsv1.CustomResourceDefinitionVersion) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example", Scope: apiextensionsv1.NamespaceScoped, Versions: versions,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
		},
	}
}

func versionOf(name string) apiextensionsv1.CustomResourceDefinitionVersion {
	return apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true,
		Schema:                   &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
		Subresources:             &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}, Scale: &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}},
		AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp", Priority: 1}}}
}

func TestImportsFrom(t *testing.T) {
	t.Parallel()
	hidden := versionOf("v0")
	hidden.Served = false
	owner := metav1.OwnerReference{Kind: "Cluster", Name: "east", UID: "1"}
	got, err := importsFrom("east", owner, definition(versionOf("v1"), hidden))
	if err != nil || len(got) != 1 {
		t.Fatalf("importsFrom = %v, %v, want one import", got, err)
	}
	i := got[0]
	if i.Name != "widgets.east.v1.example" || i.Spec.Location != "east" || i.Spec.SchemaUpdateStrategy != "" || i.OwnerReferences[0].UID != "1" ||
		i.Annotations[apiresourcev1alpha1.APIVersionAnnotation] != "example/v1" || string(i.Spec.OpenAPIV3Schema.Raw) != `{"type":"object"}` {
		t.Errorf("importsFrom = %+v", i)
	}
	if len(i.Spec.SubResources) != 2 || i.Spec.SubResources[0].Scale.SpecReplicasPath != ".spec.replicas" || i.Spec.ColumnDefinitions[0].Priority != 1 {
		t.Errorf("importsFrom lost subresources or columns: %+v", i.Spec)
	}
	two := definition(versionOf("v1"), versionOf("v1beta1"))
	two.Annotations = map[string]string{apiresourcev1alpha1.VersionsAnnotation: "v1alpha1: it is renamed"}
	if got, err := importsFrom("east", owner, two); err != nil || len(got) != 2 || got[1].Spec.GroupVersion.Version != "v1beta1" || got[0].Annotations[apiresourcev1alpha1.VersionsAnnotation] != "v1alpha1: it is renamed" {
		t.Errorf("importsFrom of two versions = %+v, %v", got, err)
	}
	bare := versionOf("v1")
	bare.Schema = nil
	if _, err := importsFrom("east", owner, definition(bare)); err == nil {
		t.Error("importsFrom of a version without a schema = nil, want an error")
	}
}

// An import is missing only if a pull certainly excludes its type.
func TestMissing(t *testing.T) {
	t.Parallel()
	here := importOf("example", "v1", "widgets", apiextensionsv1.NamespaceScoped)
	names := []string{"configmaps", "widgets.example"}
	tests := map[string]struct {
		names  []string
		pulled crdpuller.Result
		want   bool
	}{
		"offered":             {names, crdpuller.Result{CRDs: []*apiextensionsv1.CustomResourceDefinition{definition(versionOf("v1"))}}, false},
		"not offered":         {names, crdpuller.Result{NotServed: []string{"widgets.example"}}, true},
		"another version":     {names, crdpuller.Result{CRDs: []*apiextensionsv1.CustomResourceDefinition{definition(versionOf("v2"))}}, true},
		"a problem":           {names, crdpuller.Result{Problems: []crdpuller.Problem{{Resource: schema.GroupVersionResource{Group: "example", Version: "v2", Resource: "widgets"}}}}, false},
		"another's problem":   {names, crdpuller.Result{Problems: []crdpuller.Problem{{Resource: schema.GroupVersionResource{Group: "example", Version: "v1", Resource: "gears"}}}}, true},
		"unknown":             {names, crdpuller.Result{Unknown: []schema.GroupVersion{{Group: "example", Version: "v1"}}}, false},
		"unknown group":       {names, crdpuller.Result{Unknown: []schema.GroupVersion{{Group: "example"}}}, false},
		"another unknown":     {names, crdpuller.Result{Unknown: []schema.GroupVersion{{Group: "metrics.k8s.io", Version: "v1"}}}, true},
		"not asked for":       {[]string{"configmaps"}, crdpuller.Result{}, false},
		"asked for by plural": {[]string{"widgets"}, crdpuller.Result{}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := missing([]*apiresourcev1alpha1.APIResourceImport{here}, tc.names, &tc.pulled)
			if (len(got) == 1) != tc.want {
				t.Errorf("missing = %v, want it to be %v", got, tc.want)
			}
		})
	}
}

func TestReleasing(t *testing.T) {
	t.Parallel()
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: "7",
		Finalizers:      []string{"a.example/keep", workloadv1alpha1.FinalizerPrefix + "east", workloadv1alpha1.FinalizerPrefix + "west", workloadv1alpha1.FinalizerPrefix + "eastern"},
		Annotations: map[string]string{
			workloadv1alpha1.StatusAnnotationPrefix + "east": "{}", workloadv1alpha1.ProblemAnnotationPrefix + "east": "x",
			workloadv1alpha1.StatusAnnotationPrefix + "west": "{}", "note": "mine"},
	}}
	if got, want := holders(object.Finalizers), []string{"east", "west", "eastern"}; !slices.Equal(got, want) {
		t.Errorf("holders = %v, want %v", got, want)
	}
	want := map[string]any{"metadata": map[string]any{
		"resourceVersion": "7",
		"finalizers":      []string{"a.example/keep", workloadv1alpha1.FinalizerPrefix + "west"},
		"annotations":     map[string]any{workloadv1alpha1.StatusAnnotationPrefix + "east": nil, workloadv1alpha1.ProblemAnnotationPrefix + "east": nil},
	}}
	if diff := cmp.Diff(want, releasing(object, []string{"east", "eastern"}, nil)); diff != "" {
		t.Errorf("releasing (-want +got):\n%s", diff)
	}
}

func TestLocationOf(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"https://192.0.2.1:6443": "192.0.2.1:6443", "https://front.example/clusters/a": "front.example:443",
		"http://[::1]": "[::1]:80", "https://[2001:db8::1]:6443": "[2001:db8::1]:6443",
	} {
		if got := locationOf(server); got != want {
			t.Errorf("locationOf(%s) = %s, want %s", server, got, want)
		}
	}
}

func TestNoteBeat(t *testing.T) {
	t.Parallel()
	now := noon
	c := &Controller{beats: map[string]beat{}, now: func() time.Time { return now }}
	at := func(second int) *workloadv1alpha1.Cluster {
		// from another clock
		written := metav1.NewTime(noon.Add(time.Duration(second)*time.Second - 24*time.Hour))
		return &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east"}, Status: workloadv1alpha1.ClusterStatus{LastHeartbeatTime: &written}}
	}
	if got := c.noteBeat(&workloadv1alpha1.Cluster{}); !got.IsZero() {
		t.Errorf("noteBeat without one = %v", got)
	}
	if got := c.noteBeat(at(0)); !got.Equal(noon) {
		t.Errorf("the first look = %v, want now", got)
	}
	now = noon.Add(time.Minute)
	if got := c.noteBeat(at(0)); !got.Equal(noon) {
		t.Errorf("the same heartbeat = %v, want when it arrived", got)
	}
	if got := c.noteBeat(at(1)); !got.Equal(now) {
		t.Errorf("a new heartbeat = %v, want now", got)
	}
	c.forget("east")
	silent := at(1)
	silent.Status.Conditions = []metav1.Condition{{Type: workloadv1alpha1.ConditionHeartbeatHealthy, Status: metav1.ConditionFalse}}
	if got := c.noteBeat(silent); !got.IsZero() {
		t.Errorf("the first look at a silence that was known = %v, want never", got)
	}
}

// TestDeleteFlags tests that an agent gets a flag only for a value that is not the default.
func TestDeleteFlags(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		limit syncer.DeleteLimit
		want  string
	}{
		"nothing is said":  {syncer.DeleteLimit{}, "[]"},
		"the defaults are": {syncer.DeleteLimit{Count: syncer.DefaultDeleteCount, Fraction: syncer.DefaultDeleteFraction, Window: syncer.DefaultDeleteWindow}, "[]"},
		"others are":       {syncer.DeleteLimit{Count: 7, Fraction: 0.25, Window: time.Hour}, "[--max-deletes=7 --max-delete-fraction=0.25 --delete-window=1h0m0s]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := fmt.Sprint(deleteFlags(tc.limit)); got != tc.want {
				t.Errorf("deleteFlags(%+v) = %s, want %s", tc.limit, got, tc.want)
			}
		})
	}
}

func TestOldestTwin(t *testing.T) {
	t.Parallel()
	of := func(name, uid string, age int) workloadv1alpha1.Cluster {
		c := workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-time.Duration(age) * time.Hour))}}
		c.Status.UID = uid
		return c
	}
	leaving := of("older", "u", 9)
	leaving.DeletionTimestamp = &metav1.Time{Time: noon}
	for name, tc := range map[string]struct {
		others []workloadv1alpha1.Cluster
		uid    string
		want   string
	}{
		"alone":              {uid: "u"},
		"another cluster":    {others: []workloadv1alpha1.Cluster{of("a", "v", 9)}, uid: "u"},
		"an older one":       {others: []workloadv1alpha1.Cluster{of("z", "u", 3), of("y", "u", 9)}, uid: "u", want: "y"},
		"a younger one":      {others: []workloadv1alpha1.Cluster{of("a", "u", 1)}, uid: "u"},
		"of the same age":    {others: []workloadv1alpha1.Cluster{of("a", "u", 2)}, uid: "u", want: "a"},
		"being unregistered": {others: []workloadv1alpha1.Cluster{leaving}, uid: "u"},
		"not reached yet":    {others: []workloadv1alpha1.Cluster{of("a", "", 9)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			me := of("east", tc.uid, 2)
			if got := oldestTwin(&me, tc.uid, append(tc.others, me)); got != tc.want {
				t.Errorf("oldestTwin() = %q, want %q", got, tc.want)
			}
			me.Annotations = map[string]string{workloadv1alpha1.OwnClusterAnnotation: "true"}
			if got := oldestTwin(&me, tc.uid, append(tc.others, me)); got != "" {
				t.Errorf("oldestTwin() of one that is to count = %q, want none", got)
			}
		})
	}
}
