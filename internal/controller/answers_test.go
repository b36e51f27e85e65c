package controller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller"
	"rik.dev/rik/internal/controller/measurement"
	"rik.dev/rik/internal/rpc/nodev1"
)

// TestHandlers checks the handlers that explain placement and report usage.
func TestHandlers(t *testing.T) {
	c := start(t, nil, "node-a")
	c.manual("web", 1)
	in := c.wantRunning("web", 1)[0]
	get := func(h http.Handler, path string) (int, map[string]any) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		var body map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatalf("GET %s = %q: %v", path, w.Body, err)
		}
		return w.Code, body
	}
	why := c.controller.WhyHandler()
	if code, body := get(why, "/rik/why/"+c.namespace+"/"+in.Name); code != 200 || body["nodeName"] != "node-a" {
		t.Errorf("why = %d %v", code, body)
	}
	for _, path := range []string{"/rik/why/", "/rik/why/a", "/rik/why/a/b/c", "/rik/why/" + c.namespace + "/none"} {
		if code, _ := get(why, path); code != 404 {
			t.Errorf("GET %s = %d, want 404", path, code)
		}
	}
	always := measurement.Sender{Connected: func() bool { return true }, Owns: func(types.UID) bool { return true }}
	for _, name := range []string{"node-a", "gone"} {
		always.Node = name
		c.controller.Measurements().Take(always, &nodev1.Measurements{Usages: []*nodev1.Usage{
			{CpuMillis: 1000, MemoryBytes: 500, Machine: &nodev1.MachineUsage{Cpus: 4, CpuPercent: 25, MemoryTotalBytes: 1000, MemoryAvailableBytes: 500}},
			{Uid: string(in.UID), CpuMillis: 7, MemoryBytes: 9, Vm: &nodev1.VMUsage{Exits: 11, DiskReadBytes: 13}},
			{Uid: "gone"},
		}})
	}
	paper := func(item map[string]any, key string) map[string]any {
		raw, _ := item["raw"].(map[string]any)
		part, _ := raw[key].(map[string]any)
		return part
	}
	metrics := c.controller.MetricsHandler()
	c.eventually("the metrics of nodes and instances", func() string {
		_, nodes := get(metrics, "/rik/metrics/nodes")
		_, instances := get(metrics, "/rik/metrics/instances?namespace="+c.namespace)
		first := func(body map[string]any) map[string]any {
			items, _ := body["items"].([]any)
			if len(items) != 1 {
				return nil
			}
			item, _ := items[0].(map[string]any)
			return item
		}
		n, i := first(nodes), first(instances)
		if n["name"] != "node-a" || n["cpuMillis"] != 1000.0 || n["memoryBytes"] != 500.0 || n["cpuPercent"] != 25.0 || n["memoryPercent"] != 50.0 ||
			fmt.Sprint(paper(n, "cpu")["currentUsage"]) != "25" || paper(i, "deployment")["app"] != "web" ||
			i["name"] != in.Name || i["node"] != "node-a" || i["cpuMillis"] != 7.0 || i["memoryBytes"] != 9.0 ||
			fmt.Sprint(i["vm"]) != "map[diskReadBytes:13 diskReads:0 diskWriteBytes:0 diskWrites:0 exits:11 networkReceiveBytes:0 networkTransmitBytes:0 vcpuNanos:0]" {
			return fmt.Sprintf("%v %v", nodes, instances)
		}
		return ""
	})
}

// TestTenant creates a tenant's namespace and permissions, and removes them again.
func TestTenant(t *testing.T) {
	c := start(t, nil)
	name := "tenant-" + c.namespace
	c.create(&rikv1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: rikv1alpha1.TenantSpec{
		Users: []rikv1alpha1.TenantUser{{Name: "alice"}, {Name: "bob", Verbs: []string{"get", "list"}, Resources: []string{"workloads"}}},
	}})
	key := types.NamespacedName{Name: name}
	can := func(user, verb, resource string) bool {
		config := *c.api.Config
		config.Impersonate.UserName = user
		as, err := client.New(&config, client.Options{Scheme: controller.Scheme})
		if err != nil {
			t.Fatal(err)
		}
		switch verb + resource {
		case "listworkloads":
			return as.List(t.Context(), &rikv1alpha1.WorkloadList{}, client.InNamespace(name)) == nil
		case "listinstances":
			return as.List(t.Context(), &rikv1alpha1.InstanceList{}, client.InNamespace(name)) == nil
		default:
			w := automatic(name, user, 0)
			return as.Create(t.Context(), w) == nil
		}
	}
	c.eventually("alice may create", func() string {
		if !can("alice", "create", "workloads") {
			return "she may not"
		}
		return ""
	})
	c.eventually("bob may list", func() string {
		if !can("bob", "list", "workloads") {
			return "he may not"
		}
		return ""
	})
	if can("bob", "create", "workloads") || can("bob", "list", "instances") || can("mallory", "list", "workloads") {
		t.Error("a user without permission is allowed")
	}
	c.eventually("the status", func() string {
		var o rikv1alpha1.Tenant
		if err := c.client.Get(t.Context(), key, &o); err != nil {
			return err.Error()
		}
		if o.Status.Namespace != name || !meta.IsStatusConditionTrue(o.Status.Conditions, "Ready") {
			return fmt.Sprintf("%+v", o.Status)
		}
		return ""
	})
	change(c, key, &rikv1alpha1.Tenant{}, func(o *rikv1alpha1.Tenant) { o.Spec.Users = o.Spec.Users[1:] })
	c.eventually("alice lost her rights", func() string {
		if can("alice", "list", "workloads") {
			return "she has them"
		}
		return ""
	})
	if err := c.client.Delete(t.Context(), &rikv1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		t.Fatal(err)
	}
	c.eventually("tenant and namespace are gone", func() string {
		tenant := c.client.Get(context.Background(), key, &rikv1alpha1.Tenant{})
		namespace := c.client.Get(context.Background(), key, &corev1.Namespace{})
		if tenant == nil || namespace == nil {
			return fmt.Sprintf("tenant: %v, namespace: %v", tenant, namespace)
		}
		return ""
	})
}
