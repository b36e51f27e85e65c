package validation_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
)

func instance() *rik.Instance {
	return &rik.Instance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web-abcde", ResourceVersion: "1"},
		Spec:       rik.InstanceSpec{Workload: "web", Revision: "web-bcdfghjklm"},
		Status:     rik.InstanceStatus{Phase: rik.InstancePending},
	}
}

func TestInstance(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*rik.Instance)
		want   []string
	}{
		"good":          {func(*rik.Instance) {}, nil},
		"name too long": {func(i *rik.Instance) { i.Name = strings.Repeat("a", 64) }, []string{"metadata.name"}},
		"dotted name":   {func(i *rik.Instance) { i.Name = "a.b" }, []string{"metadata.name"}},
		"no workload":   {func(i *rik.Instance) { i.Spec.Workload = "" }, []string{"spec.workload"}},
		"revision":      {func(i *rik.Instance) { i.Spec.Revision = "../x" }, []string{"spec.revision"}},
		"bound by hand": {func(i *rik.Instance) { i.Spec.NodeName = "n1" }, []string{"spec.nodeName"}},
		"replaces":      {func(i *rik.Instance) { i.Spec.Replaces = strings.Repeat("x", 65) }, []string{"spec.replaces"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := instance()
			tc.change(i)
			if diff := cmp.Diff(tc.want, paths(validation.Instance(i))); diff != "" {
				t.Errorf("Instance (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInstanceUpdate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		old, change func(*rik.Instance)
		want        []string
	}{
		"nothing":        {nil, func(*rik.Instance) {}, nil},
		"bind":           {nil, func(i *rik.Instance) { i.Spec.NodeName = "n1" }, nil},
		"bind nowhere":   {nil, func(i *rik.Instance) { i.Spec.NodeName = "N 1" }, []string{"spec.nodeName"}},
		"bind again":     {func(i *rik.Instance) { i.Spec.NodeName = "n1" }, func(i *rik.Instance) { i.Spec.NodeName = "n2" }, []string{"spec.nodeName"}},
		"unbind":         {func(i *rik.Instance) { i.Spec.NodeName = "n1" }, func(i *rik.Instance) { i.Spec.NodeName = "" }, []string{"spec.nodeName"}},
		"other workload": {nil, func(i *rik.Instance) { i.Spec.Workload = "x" }, []string{"spec"}},
		"other revision": {nil, func(i *rik.Instance) { i.Spec.Revision = "x" }, []string{"spec"}},
		"phase":          {nil, func(i *rik.Instance) { i.Status.Phase = "Sleeping" }, []string{"status.phase"}},
		"containers": {nil, func(i *rik.Instance) {
			i.Status.Containers = []rik.ContainerStatus{{Name: "a", State: "Odd"}, {Name: "a"}, {}}
		}, []string{"status.containers[0].state", "status.containers[1].name", "status.containers[2].name"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := instance()
			if tc.old != nil {
				tc.old(old)
			}
			i := old.DeepCopy()
			tc.change(i)
			if diff := cmp.Diff(tc.want, paths(validation.InstanceUpdate(i, old))); diff != "" {
				t.Errorf("InstanceUpdate (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*rik.Node)
		want   []string
	}{
		"good": {func(n *rik.Node) {
			n.Spec.PodCIDR = "10.42.0.0/24"
			n.Spec.Taints = []rik.Taint{{Key: "a", Value: "b", Effect: rik.TaintNoSchedule}, {Key: "a", Effect: rik.TaintNoExecute}}
		}, nil},
		"name":       {func(n *rik.Node) { n.Name = "Node_1" }, []string{"metadata.name"}},
		"long name":  {func(n *rik.Node) { n.Name = strings.Repeat("a", 64) }, []string{"metadata.name"}},
		"CIDR":       {func(n *rik.Node) { n.Spec.PodCIDR = "10.42.0.1/24" }, []string{"spec.podCIDR"}},
		"not a CIDR": {func(n *rik.Node) { n.Spec.PodCIDR = "all" }, []string{"spec.podCIDR"}},
		"taints": {func(n *rik.Node) {
			n.Spec.Taints = []rik.Taint{{Effect: "Odd"}, {Key: "a", Value: "b c", Effect: rik.TaintNoSchedule}, {Key: "a", Effect: rik.TaintNoSchedule}}
		}, []string{"spec.taints[0].effect", "spec.taints[0].key", "spec.taints[1].value", "spec.taints[2]"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &rik.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1.example.com"}}
			tc.change(n)
			if diff := cmp.Diff(tc.want, paths(validation.Node(n))); diff != "" {
				t.Errorf("Node (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodeUpdates(t *testing.T) {
	t.Parallel()
	old := &rik.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "1"}, Spec: rik.NodeSpec{PodCIDR: "10.42.0.0/24"}}
	n := old.DeepCopy()
	n.Spec.PodCIDR = "10.43.0.0/24"
	if diff := cmp.Diff([]string{"spec.podCIDR"}, paths(validation.NodeUpdate(n, old))); diff != "" {
		t.Errorf("NodeUpdate (-want +got):\n%s", diff)
	}
	n = old.DeepCopy()
	n.Status.Capacity = rik.ResourceList{"cpu": resource.MustParse("-1"), "gpu": resource.MustParse("1")}
	n.Status.Info = rik.NodeInfo{InternalAddress: "here", Kinds: []rik.WorkloadKind{"Job"}}
	n.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "Perhaps", Reason: "x", LastTransitionTime: metav1.Now()}}
	want := []string{"status.capacity[cpu]", "status.capacity[gpu]", "status.conditions[0].status", "status.info.internalAddress", "status.info.kinds[0]"}
	if diff := cmp.Diff(want, paths(validation.NodeStatusUpdate(n, old))); diff != "" {
		t.Errorf("NodeStatusUpdate (-want +got):\n%s", diff)
	}
}

func TestTenant(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		tenant string
		spec   rik.TenantSpec
		want   []string
	}{
		"good": {"team", rik.TenantSpec{Users: []rik.TenantUser{
			{Name: "ann", Verbs: []string{"*"}, Resources: []string{"*"}},
			{Name: "bob@example.com", Verbs: []string{"get", "list"}, Resources: []string{"workloads", "instances/log"}},
		}}, nil},
		"the system's":  {"kube-system", rik.TenantSpec{}, []string{"metadata.name"}},
		"default":       {"default", rik.TenantSpec{}, []string{"metadata.name"}},
		"dotted":        {"a.b", rik.TenantSpec{}, []string{"metadata.name"}},
		"wildcard name": {"foo%", rik.TenantSpec{}, []string{"metadata.name"}},
		"long value":    {"team", rik.TenantSpec{Value: strings.Repeat("x", 65<<10)}, []string{"spec.value"}},
		"users": {"team", rik.TenantSpec{Users: []rik.TenantUser{
			{}, {Name: "system:masters"}, {Name: "ann"}, {Name: "ann"}, {Name: "a\nb"},
		}}, []string{"spec.users[0].name", "spec.users[1].name", "spec.users[3].name", "spec.users[4].name"}},
		"rights": {"team", rik.TenantSpec{Users: []rik.TenantUser{
			{Name: "ann", Verbs: []string{"escalate", "privileged"}, Resources: []string{"Workloads", "a/b/c"}},
			{Name: "bob", Verbs: []string{"*", "get"}, Resources: []string{"*", "nodes"}},
		}}, []string{"spec.users[0].resources[0]", "spec.users[0].resources[1]", "spec.users[0].verbs[0]", "spec.users[0].verbs[1]", "spec.users[1].resources", "spec.users[1].resources[1]", "spec.users[1].verbs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tenant := &rik.Tenant{ObjectMeta: metav1.ObjectMeta{Name: tc.tenant}, Spec: tc.spec}
			if diff := cmp.Diff(tc.want, paths(validation.Tenant(tenant))); diff != "" {
				t.Errorf("Tenant (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRevision(t *testing.T) {
	t.Parallel()
	w := defaulted(t, nil)
	old := &rik.WorkloadRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web-bcdfghjklm", ResourceVersion: "1"},
		Revision:   3, Template: w.Spec.InstanceTemplate,
	}
	if errs := validation.Revision(old); len(errs) > 0 {
		t.Errorf("Revision = %v", errs)
	}
	for name, tc := range map[string]struct {
		change func(*rik.WorkloadRevision)
		want   []string
	}{
		"nothing":  {func(*rik.WorkloadRevision) {}, nil},
		"rollback": {func(r *rik.WorkloadRevision) { r.Revision = 9 }, nil},
		"backward": {func(r *rik.WorkloadRevision) { r.Revision = 2 }, []string{"revision"}},
		"template": {func(r *rik.WorkloadRevision) { r.Template.Containers[0].Image = "other" }, []string{"template"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := old.DeepCopy()
			tc.change(r)
			if diff := cmp.Diff(tc.want, paths(validation.RevisionUpdate(r, old))); diff != "" {
				t.Errorf("RevisionUpdate (-want +got):\n%s", diff)
			}
		})
	}
	bad := old.DeepCopy()
	bad.Template.Containers[0].Image = ""
	if diff := cmp.Diff([]string{"template.containers[0].image"}, paths(validation.Revision(bad))); diff != "" {
		t.Errorf("Revision (-want +got):\n%s", diff)
	}
}

func TestStatusCounts(t *testing.T) {
	t.Parallel()
	old := defaulted(t, nil)
	old.ResourceVersion = "1"
	w := old.DeepCopy()
	w.Status = rik.WorkloadStatus{Replicas: -1, FailedReplicas: -2}
	if diff := cmp.Diff([]string{"status.failedReplicas", "status.replicas"}, paths(validation.WorkloadStatusUpdate(w, old))); diff != "" {
		t.Errorf("WorkloadStatusUpdate (-want +got):\n%s", diff)
	}
}
