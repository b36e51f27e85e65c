package syncer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/typehealth"
)

func object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return o
}

var someone = Identity{Upstream: "kcp", Cluster: "east", ClusterUID: "c1"}

// TestNamespacesOfTwoControlPlanes tests that another kcp, Cluster or namespace gets another
// namespace downstream, which only the matching locator resolves.
func TestNamespacesOfTwoControlPlanes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-z0-9-]{1,20}`)
		draw := func(name string) (Identity, string) {
			return Identity{
				Upstream: types.UID(text.Draw(t, name+" kcp")), Cluster: text.Draw(t, name+" cluster"), ClusterUID: types.UID(text.Draw(t, name+" UID")),
			}, text.Draw(t, name+" namespace")
		}
		a, inA := draw("one")
		b, inB := draw("other")
		name := a.Namespace(inA)
		if len(name) != len("kcp-")+hashDigits || strings.Trim(name[4:], "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
			t.Fatalf("Namespace() = %q", name)
		}
		ns, err := a.newNamespace(inA)
		if err != nil {
			t.Fatal(err)
		}
		if got, ours := a.resolve(ns); got != inA || !ours {
			t.Fatalf("resolve() = %q, %v", got, ours)
		}
		if a.Upstream == b.Upstream && a.ClusterUID == b.ClusterUID && inA == inB {
			return
		}
		if b.Namespace(inB) == name {
			t.Fatalf("%v %s and %v %s share %s", a, inA, b, inB, name)
		}
		if a == b {
			return
		}
		if got, ours := b.resolve(ns); ours {
			t.Fatalf("another resolves it to %q", got)
		}
	})
}

func TestTranslate(t *testing.T) {
	t.Parallel()
	up := object(t, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{
		"name":"web","namespace":"team","uid":"u1","resourceVersion":"7","generation":3,"creationTimestamp":"2026-01-01T00:00:00Z",
		"deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["x/y"],"selfLink":"/x","generateName":"w",
		"ownerReferences":[{"apiVersion":"v1","kind":"X","name":"x","uid":"u"}],"managedFields":[{"manager":"m"}],
		"labels":{"app":"web","workloads.kcp.dev/cluster":"west","sync.workloads.kcp.dev/east":"true","sync.workloads.kcp.dev/west":"true"},
		"annotations":{"a":"b","kubectl.kubernetes.io/last-applied-configuration":"{}","status.workloads.kcp.dev/west":"{}","problem.workloads.kcp.dev/east":"x","workloads.kcp.dev/yield":"spec.replicas","workloads.kcp.dev/upstream-uid":"forged","kcp.dev/namespace-locator":"forged"}},
		"spec":{"replicas":2,"template":{"metadata":{"creationTimestamp":null,"labels":{"app":"web"}}},"list":[{"a":null,"b":1}]},"status":{"replicas":2},"extra":{"a":1}}`)
	before := up.DeepCopy()
	want := object(t, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"`+someone.Namespace("team")+`",
		"labels":{"app":"web","workloads.kcp.dev/cluster":"east"},
		"annotations":{"a":"b","workloads.kcp.dev/upstream-uid":"u1","workloads.kcp.dev/yield":"spec.replicas"}},
		"spec":{"replicas":2,"template":{"metadata":{"labels":{"app":"web"}}},"list":[{"b":1}]},"extra":{"a":1}}`)
	if diff := cmp.Diff(want.Object, translate(up, someone).Object); diff != "" {
		t.Errorf("translate() (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before.Object, up.Object); diff != "" {
		t.Errorf("translate changed its argument:\n%s", diff)
	}
}

// TestTranslateWithoutMarks tests that the copy of an object has no marks by which tools in a
// member cluster would take it for their own.
func TestTranslateWithoutMarks(t *testing.T) {
	t.Parallel()
	up := object(t, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"team","uid":"u1",
		"labels":{"app":"web","app.kubernetes.io/instance":"shop","app.kubernetes.io/managed-by":"Helm","applyset.kubernetes.io/part-of":"x","objectset.rio.cattle.io/hash":"1"},
		"annotations":{"a":"b","meta.helm.sh/release-name":"shop","argocd.argoproj.io/tracking-id":"x","deployment.kubernetes.io/revision":"3","kustomize.toolkit.fluxcd.io/prune":"disabled"}}}`)
	got := translate(up, someone)
	if diff := cmp.Diff(map[string]string{"app": "web", "app.kubernetes.io/instance": "shop", "workloads.kcp.dev/cluster": "east"}, got.GetLabels()); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"a": "b", "workloads.kcp.dev/upstream-uid": "u1"}, got.GetAnnotations()); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}

func TestTranslateGeneratedFields(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ kind, give, want string }{
		"an address":      {"Service", `{"spec":{"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"ports":[{"port":80,"nodePort":0}]}}`, `{"spec":{"ports":[{"port":80}]}}`},
		"no address":      {"Service", `{"spec":{"clusterIP":"None","clusterIPs":["None"]}}`, `{"spec":{"clusterIP":"None","clusterIPs":["None"]}}`},
		"a node port":     {"Service", `{"spec":{"ports":[{"port":80,"nodePort":30080}]}}`, `{"spec":{"ports":[{"port":80,"nodePort":30080}]}}`},
		"tokens":          {"ServiceAccount", `{"secrets":[{"name":"t"}],"imagePullSecrets":[{"name":"p"}]}`, `{"imagePullSecrets":[{"name":"p"}]}`},
		"null in a CRD":   {"Widget", `{"spec":{"a":null,"b":{"c":null}}}`, `{"spec":{"a":null,"b":{"c":null}}}`},
		"another secrets": {"ConfigMap", `{"data":{"secrets":"x"}}`, `{"data":{"secrets":"x"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := object(t, `{"apiVersion":"v1","kind":"`+tc.kind+`",`+tc.give[1:])
			want := object(t, `{"apiVersion":"v1","kind":"`+tc.kind+`",`+tc.want[1:]).Object
			got := translate(up, someone).Object
			for _, field := range []string{"apiVersion", "kind", "metadata"} {
				delete(got, field)
				delete(want, field)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("translate() (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStatusTable tests that an equal status causes no write, and a different one does. A
// status that is missing on either side removes nothing.
func TestStatusTable(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ up, down, want string }{
		"the same":              {`{"a":1,"l":[1]}`, `{"a":1,"l":[1]}`, ``},
		"different":             {`{"a":1,"b":2}`, `{"a":2}`, `{"a":2,"b":null}`},
		"upstream has none":     {``, `{"a":1}`, `{"a":1}`},
		"an empty one and none": {``, `{}`, ``},
		"none and an empty one": {`{}`, ``, ``},
		"empty ones":            {`{}`, `{}`, ``},
		"downstream's is empty": {`{"a":1}`, `{}`, `{"a":null}`},
		"downstream has none":   {`{"a":1}`, ``, ``},
		"neither":               {``, ``, ``},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := object(t, `{"apiVersion":"v1","kind":"X","metadata":{"name":"x","uid":"u","resourceVersion":"7"}}`)
			down := up.DeepCopy()
			for raw, o := range map[*unstructured.Unstructured]string{up: tc.up, down: tc.down} {
				if o != "" {
					var status map[string]any
					if err := json.Unmarshal([]byte(o), &status); err != nil {
						t.Fatal(err)
					}
					raw.Object["status"] = status
				}
			}
			got, err := statusPatch(up, reportedStatus(up, down, true))
			if err != nil {
				t.Fatal(err)
			}
			want := ""
			if tc.want != "" {
				want = `{"metadata":{"resourceVersion":"7","uid":"u"},"status":` + tc.want + `}`
			}
			if string(got) != want {
				t.Errorf("statusPatch() = %s, want %s", got, want)
			}
		})
	}
}

func TestReportedStatusSpeaksOfUpstreamsGenerations(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		up, down, observed int64
		reported           string
		inSync             bool
		want               any
	}{
		"seen":               {up: 5, down: 2, observed: 2, inSync: true, want: int64(5)},
		"not seen yet":       {up: 5, down: 3, observed: 2, reported: `"observedGeneration":4`, inSync: true, want: int64(4)},
		"never reported":     {up: 5, down: 3, observed: 2, inSync: true, want: nil},
		"not what is wanted": {up: 5, down: 3, observed: 3, reported: `"observedGeneration":4`, want: int64(4)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := object(t, `{"apiVersion":"v1","kind":"X","status":{`+tc.reported+`}}`)
			up.SetGeneration(tc.up)
			down := object(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"X","status":{"observedGeneration":%d,"conditions":[{"type":"A","observedGeneration":%d}]}}`, tc.observed, tc.observed))
			down.SetGeneration(tc.down)
			got := reportedStatus(up, down, tc.inSync)
			if got["observedGeneration"] != tc.want {
				t.Errorf("observedGeneration = %v, want %v", got["observedGeneration"], tc.want)
			}
			condition := got["conditions"].([]any)[0].(map[string]any)["observedGeneration"]
			if want := tc.want; tc.reported == "" && condition != want || tc.reported != "" && condition != nil {
				t.Errorf("the condition's observedGeneration = %v", condition)
			}
		})
	}
}

// applied returns an object as downstream has it after an apply of the syncer.
func applied(t *testing.T, content, fields string) *unstructured.Unstructured {
	t.Helper()
	o := object(t, content)
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: workloadv1alpha1.FieldManager, Operation: metav1.ManagedFieldsOperationApply,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}})
	return o
}

func TestIsInSync(t *testing.T) {
	t.Parallel()
	const desired = `{"apiVersion":"v1","kind":"X","metadata":{"name":"x","labels":{"a":"1"}},"spec":{"n":1,"args":["a"],"ports":[{"port":80}],"set":["x"]}}`
	const have = `{"apiVersion":"v1","kind":"X","metadata":{"name":"x","uid":"u","labels":{"a":"1","theirs":"2"}},"spec":{"n":1,"args":["a"],"ports":[{"port":79},{"port":80,"protocol":"TCP"}],"set":["w","x"],"default":true}}`
	const ours = `{"f:metadata":{"f:labels":{"f:a":{}}},"f:spec":{"f:n":{},"f:args":{},"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}},"f:set":{"v:\"x\"":{}}}}`
	for name, tc := range map[string]struct {
		desired, have, fields string
		want                  bool
	}{
		"as it was applied":         {desired, have, ours, true},
		"a value differs":           {strings.Replace(desired, `"n":1`, `"n":2`, 1), have, ours, false},
		"a field is new":            {strings.Replace(desired, `"n":1`, `"n":1,"default":true`, 1), have, ours, false},
		"a field is no more":        {strings.Replace(desired, `"n":1,`, ``, 1), have, ours, false},
		"an element is no more":     {strings.Replace(desired, `{"port":80}`, ``, 1), have, ours, false},
		"another element":           {strings.Replace(desired, `{"port":80}`, `{"port":79}`, 1), have, ours, false},
		"of a set":                  {strings.Replace(desired, `["x"]`, `["w"]`, 1), have, ours, false},
		"a label taken over":        {desired, have, strings.Replace(ours, `"f:metadata":{"f:labels":{"f:a":{}}},`, ``, 1), false},
		"a list taken over":         {desired, have, strings.Replace(ours, `"f:args":{},`, ``, 1), false},
		"an element taken over":     {desired, have, strings.Replace(ours, `"f:port":{}`, ``, 1), false},
		"nothing is ours":           {desired, have, `{}`, false},
		"unreadable managed fields": {desired, have, `[`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := isInSync(object(t, tc.desired), applied(t, tc.have, tc.fields)); got != tc.want {
				t.Errorf("isInSync() = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestYielded(t *testing.T) {
	t.Parallel()
	const scaled = `{"f:spec":{"f:replicas":{}}}`
	for name, tc := range map[string]struct {
		annotation, manager, subresource, fields string
		want                                     string
	}{
		"nothing":             {"", "m", "", scaled, "[]"},
		"by request":          {"spec.replicas, .spec.paused", "m", "", `{}`, "[[spec replicas] [spec paused]]"},
		"never metadata":      {"metadata.labels,status.x,spec,", "m", "", `{}`, "[]"},
		"an autoscaler":       {"", "kube-controller-manager", "scale", scaled, "[[spec replicas]]"},
		"a person":            {"", "kubectl", "scale", scaled, "[]"},
		"something else set":  {"", "kube-controller-manager", "scale", `{"f:spec":{"f:paused":{}}}`, "[]"},
		"no scale":            {"", "kube-controller-manager", "", scaled, "[]"},
		"taken back":          {"none", "kube-controller-manager", "scale", scaled, "[]"},
		"0 and an autoscaler": {"", "kube-controller-manager", "scale", scaled, "[]"},
		"0 and by request":    {"spec.replicas,spec.paused", "m", "", `{}`, "[[spec paused]]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up, down := object(t, `{"apiVersion":"v1","kind":"X"}`), object(t, `{"apiVersion":"v1","kind":"X"}`)
			if up.SetAnnotations(map[string]string{workloadv1alpha1.YieldAnnotation: tc.annotation}); strings.HasPrefix(name, "0 ") {
				up.Object["spec"] = map[string]any{"replicas": int64(0), "paused": true}
			}
			down.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: tc.manager, Subresource: tc.subresource, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(tc.fields)}})
			if got := fmt.Sprint(yielded(up, down)); got != tc.want {
				t.Errorf("yielded() = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestAgree(t *testing.T) {
	t.Parallel()
	verbs := metav1.Verbs{"get", "list", "watch", "patch", "create", "delete"}
	list := func(gv string, resources ...metav1.APIResource) *metav1.APIResourceList {
		return &metav1.APIResourceList{GroupVersion: gv, APIResources: resources}
	}
	r := func(name, kind string, namespaced bool) metav1.APIResource {
		return metav1.APIResource{Name: name, Kind: kind, Namespaced: namespaced, Verbs: verbs}
	}
	up := []*metav1.APIResourceList{
		list("v1", r("configmaps", "ConfigMap", true), r("namespaces", "Namespace", false), metav1.APIResource{Name: "bindings", Kind: "Binding", Namespaced: true, Verbs: metav1.Verbs{"create"}}),
		list("apps/v2", r("deployments", "Deployment", true)),
		list("apps/v1", r("deployments", "Deployment", true), r("deployments/status", "Deployment", true), r("jobs", "Job", true)),
		list("x.dev/v1", r("wides", "Wide", false), r("scopes", "Scope", true)),
		list("rbac.authorization.k8s.io/v1", r("roles", "Role", true), r("clusterroles", "ClusterRole", false)),
	}
	down := []*metav1.APIResourceList{
		list("v1", r("configmaps", "ConfigMap", true), r("namespaces", "Namespace", false)),
		list("apps/v1", r("deployments", "Deployment", true), r("deployments/status", "Deployment", true)),
		list("x.dev/v1", r("wides", "Wide", false), r("scopes", "Scope", false)),
		list("rbac.authorization.k8s.io/v1", r("roles", "Role", true), r("clusterroles", "ClusterRole", false)),
	}
	for name, tc := range map[string]struct {
		allowed []string
		want    string
	}{
		"configmaps":                             {nil, "v1 ConfigMap true false"},
		"deployments.apps":                       {nil, "v1 Deployment true true"},
		"jobs.apps":                              {nil, "the cluster does not serve it"},
		"nothing.apps":                           {nil, "the kcp does not serve it"},
		"bindings":                               {nil, "the kcp does not serve it"},
		"scopes.x.dev":                           {nil, "kind or scope"},
		"wides.x.dev":                            {nil, "cluster-scoped"},
		"namespaces":                             {[]string{"namespaces"}, "by itself"},
		"roles.rbac.authorization.k8s.io":        {nil, "never copied"},
		"clusterroles.rbac.authorization.k8s.io": {[]string{"clusterroles.rbac.authorization.k8s.io"}, "never copied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			types, missing := agree([]string{name, name}, up, down, tc.allowed)
			for _, x := range types {
				got += fmt.Sprintf("%s %s %v %v", x.Resource.Version, x.Kind, x.Namespaced, x.Status)
			}
			for _, m := range missing {
				got += m.why
			}
			if !strings.Contains(got, tc.want) || len(types)+len(missing) != 1 {
				t.Errorf("agree() = %q, want %q", got, tc.want)
			}
		})
	}
	if types, _ := agree([]string{"wides.x.dev"}, up, down, []string{"wides.x.dev"}); len(types) != 1 || types[0].Namespaced {
		t.Errorf("agree() = %v with a type that is allowed", types)
	}
}

// TestBacklog tests that the backlog is empty after every item was processed, under its final
// name.
func TestBacklog(t *testing.T) {
	t.Parallel()
	var b backlog
	one, other := item{Key: Key{Name: "one"}, downstream: true}, item{Key: Key{Name: "other"}}
	b.add(one)
	b.replace(one, other)
	if b.looked(one); b.isEmptyBut(nil) {
		t.Error("it is empty before the item was looked at under its other name")
	}
	b.looked(other)
	if b.replace(one, other); !b.isEmptyBut(nil) {
		t.Error("an item that was not in it has got into it")
	}
}

func TestIsExcluded(t *testing.T) {
	t.Parallel()
	named := func(name string) string { return `{"apiVersion":"v1","kind":"X","metadata":{"name":"` + name + `"}}` }
	typed := func(kind string) string { return `{"apiVersion":"v1","kind":"Secret","type":"` + kind + `"}` }
	for name, tc := range map[string]struct {
		resource schema.GroupResource
		object   string
		want     bool
	}{
		"token":           {secrets, typed("kubernetes.io/service-account-token"), true},
		"bootstrap token": {secrets, typed("bootstrap.kubernetes.io/token"), true},
		"secret":          {secrets, typed("Opaque"), false},
		"default account": {schema.GroupResource{Resource: "serviceaccounts"}, named("default"), true},
		"account":         {schema.GroupResource{Resource: "serviceaccounts"}, named("web"), false},
		"root CA":         {schema.GroupResource{Resource: "configmaps"}, named("kube-root-ca.crt"), true},
		"map":             {schema.GroupResource{Resource: "configmaps"}, named("default"), false},
		"another group":   {schema.GroupResource{Group: "x.dev", Resource: "configmaps"}, named("kube-root-ca.crt"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := isExcluded(tc.resource, object(t, tc.object)); got != tc.want {
				t.Errorf("isExcluded() = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestAnnotationsPatchSaysOnlyWhatIsNew(t *testing.T) {
	t.Parallel()
	up := object(t, `{"apiVersion":"v1","kind":"X","metadata":{"name":"x","uid":"u","annotations":{"same":"1","old":"1","gone":"1"}}}`)
	for want, wanted := range map[string]map[string]string{
		``: {"same": "1", "never": ""},
		`{"metadata":{"annotations":{"gone":null,"new":"1","old":"2"},"uid":"u"}}`: {"same": "1", "old": "2", "gone": "", "new": "1"},
	} {
		got, err := annotationsPatch(up, maps.Clone(wanted))
		if err != nil || string(got) != want {
			t.Errorf("annotationsPatch(%v) = %s, %v, want %s", wanted, got, err, want)
		}
	}
}

// TestAddedTypeKeepsReadiness tests that the condition reports the reading of an added type, and
// that a ready syncer stays ready.
func TestAddedTypeKeepsReadiness(t *testing.T) {
	t.Parallel()
	filling := []string{"widgets.example.org"}
	missing := []missingType{{why: "no"}}
	broken := map[string]*typehealth.Trouble{"gadgets.example.org": {Message: "conversion webhook failed"}}
	for name, tc := range map[string]struct {
		down     error
		state    readingState
		wasReady bool
		want     string
	}{
		"types are not known":              {want: "False/ReadingObjects"},
		"first start":                      {state: readingState{filling: filling}, want: "False/ReadingObjects"},
		"first start, others are read":     {state: readingState{filling: filling, carried: 1}, want: "True/ReadingObjects"},
		"a type is added":                  {state: readingState{filling: filling}, wasReady: true, want: "True/ReadingObjects"},
		"a type is added, another missing": {state: readingState{filling: filling, missing: missing}, wasReady: true, want: "True/ReadingObjects"},
		"a type is added, and cut off":     {down: errors.New("refused"), state: readingState{filling: filling}, wasReady: true, want: "False/ClusterUnreachable"},
		"one type of several is broken":    {state: readingState{unreadable: broken, carried: 1}, want: "True/TypesNotReadable"},
		"the only type is broken":          {state: readingState{unreadable: broken}, wasReady: true, want: "False/TypesNotReadable"},
		"one is broken, one missing":       {state: readingState{unreadable: broken, missing: missing, carried: 1}, want: "True/TypesNotReadable"},
		"one is missing":                   {state: readingState{missing: missing, carried: 1}, want: "True/TypesNotServed"},
		"all is read":                      {state: readingState{carried: 1}, want: "True/Syncing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.state.looked = name != "types are not known"
			c := readyCondition(tc.down, tc.state, tc.wasReady)
			if got := string(c.Status) + "/" + c.Reason; got != tc.want {
				t.Errorf("readyCondition() = %s, want %s", got, tc.want)
			}
			if tc.down == nil && len(tc.state.filling) > 0 && !strings.Contains(c.Message, tc.state.filling[0]) {
				t.Errorf("the message %q does not name the type that is read", c.Message)
			}
			if tc.state.unreadable != nil && !strings.Contains(c.Message, "gadgets.example.org: conversion webhook failed") {
				t.Errorf("the message %q does not say why a type cannot be read", c.Message)
			}
		})
	}
}

func TestDeletionsSayWhatBecomesOfDependents(t *testing.T) {
	t.Parallel()
	deleted := metav1.Now()
	for name, tc := range map[string]struct {
		up   func(*unstructured.Unstructured)
		want metav1.DeletionPropagation
	}{
		"gone upstream":  {nil, metav1.DeletePropagationBackground},
		"sent elsewhere": {func(*unstructured.Unstructured) {}, metav1.DeletePropagationBackground},
		"deleted":        {func(o *unstructured.Unstructured) { o.SetDeletionTimestamp(&deleted) }, metav1.DeletePropagationBackground},
		"waits for dependents": {func(o *unstructured.Unstructured) {
			o.SetDeletionTimestamp(&deleted)
			o.SetFinalizers([]string{metav1.FinalizerDeleteDependents})
		}, metav1.DeletePropagationForeground},
		"orphans dependents": {func(o *unstructured.Unstructured) {
			o.SetDeletionTimestamp(&deleted)
			o.SetFinalizers([]string{"other", metav1.FinalizerOrphanDependents})
		}, metav1.DeletePropagationOrphan},
	} {
		var up *unstructured.Unstructured
		if tc.up != nil {
			up = &unstructured.Unstructured{}
			tc.up(up)
		}
		if got := propagation(up); got == nil || *got != tc.want {
			t.Errorf("%s: %v, want %s", name, got, tc.want)
		}
	}
}

func TestIsSyncersNamespace(t *testing.T) {
	t.Parallel()
	identity := Identity{Upstream: "u", Cluster: "east", ClusterUID: "c"}
	for name, want := range map[string]bool{
		identity.Namespace("team"): true, identity.Namespace(identity.Namespace("team")): true,
		"team": false, "kcp-team": false, "kcp-0123456789a": false, "kcp-0123456789ab": true, "kcp-0123456789-b": false, "": false,
	} {
		if got := isSyncersNamespace(name); got != want {
			t.Errorf("isSyncersNamespace(%q) = %v, want %v", name, got, want)
		}
	}
}
