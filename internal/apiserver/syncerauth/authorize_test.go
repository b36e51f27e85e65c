package syncerauth

import (
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func TestSyncerOf(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		cluster string
		ok      bool
	}{
		"system:rik:syncer:east":  {"east", true},
		"system:rik:syncer:":      {"", true},
		"system:rik:syncer:a.b":   {"", true},
		"system:rik:syncer:EAST":  {"", true},
		"system:rik:syncer":       {"", false},
		"xsystem:rik:syncer:east": {"", false},
		"admin":                   {"", false},
	} {
		if cluster, ok := syncerOf(&user.DefaultInfo{Name: name}); cluster != want.cluster || ok != want.ok {
			t.Errorf("syncerOf(%q) = %q, %v, want %q, %v", name, cluster, ok, want.cluster, want.ok)
		}
	}
	if _, ok := syncerOf(nil); ok {
		t.Error("an empty user is a syncer")
	}
}

func attributes(verb, group, resource, subresource, name string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{ResourceRequest: true, Verb: verb, APIGroup: group, APIVersion: "v1", Resource: resource, Subresource: subresource, Name: name}
}

func selected(t *testing.T, a authorizer.AttributesRecord, selector string) authorizer.AttributesRecord {
	t.Helper()
	parsed, err := labels.Parse(selector)
	if err != nil {
		t.Fatal(err)
	}
	a.LabelSelectorRequirements, _ = parsed.Requirements()
	return a
}

func TestAuthorizeSelectors(t *testing.T) {
	t.Parallel()
	for selector, want := range map[string]decision{
		"":                               refused,
		"workloads.kcp.dev/cluster=east": allowed,
		"workloads.kcp.dev/cluster==east,app=web":     allowed,
		"workloads.kcp.dev/cluster in (east)":         allowed,
		"sync.workloads.kcp.dev/east=true":            allowed,
		"workloads.kcp.dev/cluster=west":              refused,
		"workloads.kcp.dev/cluster in (east,west)":    refused,
		"workloads.kcp.dev/cluster":                   refused,
		"!workloads.kcp.dev/cluster":                  refused,
		"workloads.kcp.dev/cluster!=west":             refused,
		"workloads.kcp.dev/cluster notin (west)":      refused,
		"sync.workloads.kcp.dev/east":                 refused,
		"sync.workloads.kcp.dev/east=false":           refused,
		"sync.workloads.kcp.dev/east in (true,false)": refused,
		"sync.workloads.kcp.dev/west=true":            refused,
		"app=east":                                    refused,
	} {
		for _, verb := range []string{"list", "watch"} {
			if got := authorize("east", selected(t, attributes(verb, "apps", "deployments", "", ""), selector)); got != want {
				t.Errorf("%s with selector %q = %v, want %v", verb, selector, got, want)
			}
		}
		if got := authorize("east", selected(t, attributes("deletecollection", "apps", "deployments", "", ""), selector)); got != refused {
			t.Errorf("deletecollection with selector %q = %v", selector, got)
		}
	}
}

func TestAuthorize(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		a    authorizer.AttributesRecord
		want decision
	}{
		{"get", attributes("get", "apps", "deployments", "", "web"), dependent},
		{"get status", attributes("get", "apps", "deployments", "status", "web"), dependent},
		{"patch", attributes("patch", "", "secrets", "", "s"), dependent},
		{"patch status", attributes("patch", "", "services", "status", "s"), dependent},
		{"patch scale", attributes("patch", "apps", "deployments", "scale", "web"), refused},
		{"token", attributes("create", "", "serviceaccounts", "token", "s"), refused},
		{"update", attributes("update", "apps", "deployments", "", "web"), refused},
		{"update status", attributes("update", "apps", "deployments", "status", "web"), refused},
		{"create", attributes("create", "apps", "deployments", "", ""), refused},
		{"delete", attributes("delete", "apps", "deployments", "", "web"), refused},
		{"impersonate", attributes("impersonate", "", "users", "", "admin"), refused},
		{"deploy", attributes("deploy", "workload.kcp.dev", "clusters", "", "east"), refused},
		{"event", attributes("create", "", "events", "", ""), allowed},
		{"new event", attributes("create", "events.k8s.io", "events", "", ""), allowed},
		{"list events", attributes("list", "", "events", "", ""), refused},
		{"own Cluster", attributes("get", "workload.kcp.dev", "clusters", "", "east"), allowed},
		{"watch of it", attributes("watch", "workload.kcp.dev", "clusters", "", "east"), allowed},
		{"status of it", attributes("patch", "workload.kcp.dev", "clusters", "status", "east"), allowed},
		{"spec of it", attributes("patch", "workload.kcp.dev", "clusters", "", "east"), refused},
		{"all Clusters", attributes("list", "workload.kcp.dev", "clusters", "", ""), refused},
		{"another Cluster", attributes("get", "workload.kcp.dev", "clusters", "", "west"), refused},
		{"its status", attributes("patch", "workload.kcp.dev", "clusters", "status", "west"), refused},
		{"imports", attributes("get", "apiresource.kcp.dev", "apiresourceimports", "", "x"), refused},
		{"roles", attributes("get", "rbac.authorization.k8s.io", "roles", "", "x"), refused},
		{"a CRD", attributes("get", "apiextensions.k8s.io", "customresourcedefinitions", "", "x"), allowed},
		{"all CRDs", attributes("list", "apiextensions.k8s.io", "customresourcedefinitions", "", ""), refused},
		{"patch of a CRD", attributes("patch", "apiextensions.k8s.io", "customresourcedefinitions", "", "x"), refused},
		{"status of a CRD", attributes("patch", "apiextensions.k8s.io", "customresourcedefinitions", "status", "x"), refused},
		{"own rights", attributes("create", "authorization.k8s.io", "selfsubjectaccessreviews", "", ""), refused},
		{"kube-system", attributes("get", "", "namespaces", "", "kube-system"), allowed},
		{"patch kube-system", attributes("patch", "", "namespaces", "", "kube-system"), dependent},
		{"another namespace", attributes("get", "", "namespaces", "", "default"), dependent},
		{"discovery", authorizer.AttributesRecord{Verb: "get", Path: "/apis/apps/v1"}, allowed},
		{"schemas", authorizer.AttributesRecord{Verb: "get", Path: "/openapi/v3"}, allowed},
		{"metrics", authorizer.AttributesRecord{Verb: "get", Path: "/metrics"}, refused},
		{"a like path", authorizer.AttributesRecord{Verb: "get", Path: "/apisx"}, refused},
		{"a write to a path", authorizer.AttributesRecord{Verb: "post", Path: "/apis"}, refused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := authorize("east", tc.a); got != tc.want {
				t.Errorf("authorize() = %v, want %v", got, tc.want)
			}
			if got := authorize("", tc.a); got != refused {
				t.Errorf("authorize() of no cluster = %v", got)
			}
		})
	}
}
