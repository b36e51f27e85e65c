package registry_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/registry"
	"rik.dev/rik/internal/apiserver/registry/registrytest"
)

// wide is the context of a request for an object without a namespace.
func wide() context.Context {
	return genericapirequest.WithNamespace(as("ann"), "")
}

// controller is the context of the controller's request.
func controller(namespace string) context.Context {
	return registrytest.As(context.Background(), namespace, rikv1alpha1.UserController)
}

func TestNodes(t *testing.T) {
	t.Parallel()
	s := etcd.Stores(t, registry.Config{})
	obj, err := s.Nodes.Node.Create(wide(), &rik.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: rik.NodeStatus{Info: rik.NodeInfo{Hostname: "claimed"}},
	}, nil, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := obj.(*rik.Node).DeepCopy()
	if n.Generation != 1 || n.Status.Info.Hostname != "" {
		t.Errorf("Create = %+v, want generation 1 and no status", n)
	}
	n.Status.Info.Hostname, n.Spec.Unschedulable = "h1", true
	n, err = update(controller(""), s.Nodes.Status, "n1", n)
	if err != nil || n.Status.Info.Hostname != "h1" || n.Spec.Unschedulable {
		t.Fatalf("status = %+v, %v, want nothing else changed", n, err)
	}
	n = n.DeepCopy()
	n.Spec.Unschedulable, n.Status.Info.Hostname = true, "h2"
	n, err = update(wide(), s.Nodes.Node, "n1", n)
	if err != nil || n.Generation != 2 || n.Status.Info.Hostname != "h1" {
		t.Fatalf("spec = %+v, %v, want the status untouched", n, err)
	}
	n = n.DeepCopy()
	n.Status.Capacity = rik.ResourceList{"cpu": resource.MustParse("-1")}
	if _, err := update(controller(""), s.Nodes.Status, "n1", n); !apierrors.IsInvalid(err) {
		t.Errorf("negative capacity = %v, want 422", err)
	}
}

// TestNodeStatusAtCreation: the controller creates a node with its status in one write. Other
// users cannot set the status.
func TestNodeStatusAtCreation(t *testing.T) {
	t.Parallel()
	s := etcd.Stores(t, registry.Config{})
	create := func(user, name, cpu string) (*rik.Node, error) {
		ctx := genericapirequest.WithNamespace(as(user), "")
		obj, err := s.Nodes.Node.Create(ctx, &rik.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Status: rik.NodeStatus{Capacity: rik.ResourceList{"cpu": resource.MustParse(cpu)}},
		}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		return obj.(*rik.Node), nil
	}
	n, err := create(rikv1alpha1.UserController, "n1", "2")
	if err != nil || len(n.Status.Capacity) != 1 {
		t.Errorf("Create by the controller = %+v, %v, want its status", n, err)
	}
	if n, err = create("ann", "n2", "2"); err != nil || len(n.Status.Capacity) != 0 {
		t.Errorf("Create by ann = %+v, %v, want no status", n, err)
	}
	if _, err = create(rikv1alpha1.UserController, "n3", "-2"); !apierrors.IsInvalid(err) {
		t.Errorf("a negative capacity = %v, want 422", err)
	}
}

func TestNodeTable(t *testing.T) {
	t.Parallel()
	s := etcd.Stores(t, registry.Config{})
	ready := func(s metav1.ConditionStatus) []metav1.Condition {
		return []metav1.Condition{{Type: rik.NodeDiskPressure, Status: metav1.ConditionTrue}, {Type: rik.NodeReady, Status: s}}
	}
	n := &rik.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/edge": ""}},
		Status: rik.NodeStatus{
			Conditions:  ready(metav1.ConditionTrue),
			Allocatable: rik.ResourceList{"cpu": resource.MustParse("3500m"), "memory": resource.MustParse("4Gi")},
			Info: rik.NodeInfo{
				AgentVersion: "v0.1", InternalAddress: "10.0.0.1", Distribution: "Debian", DistributionVersion: "12",
				KernelVersion: "6.18", RuntimeVersion: "runc 1.5.2",
			},
		},
	}
	want := map[string]any{
		"Name": "n1", "Status": "Ready", "Roles": "edge,worker", "Version": "v0.1", "Internal-IP": "10.0.0.1", "External-IP+": "<none>", "OS+": "Debian 12",
		"Kernel+": "6.18", "Runtime+": "runc 1.5.2", "CPU+": "3500m", "Memory+": "4Gi",
	}
	if diff := cmp.Diff(want, row(t, s.Nodes.Node, n)); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	held := n.DeepCopy()
	held.Status.Conditions = append(ready(metav1.ConditionUnknown), metav1.Condition{Type: "ReplacementPaused", Status: metav1.ConditionTrue})
	if got := row(t, s.Nodes.Node, held)["Status"]; got != "NotReady,ReplacementPaused" {
		t.Errorf("Status of a node whose instances are not replaced is %v", got)
	}
	for status, want := range map[metav1.ConditionStatus]string{
		metav1.ConditionFalse: "NotReady,SchedulingDisabled", metav1.ConditionUnknown: "NotReady,SchedulingDisabled",
	} {
		down := n.DeepCopy()
		down.Spec.Unschedulable, down.Status.Conditions = true, ready(status)
		if got := row(t, s.Nodes.Node, down)["Status"]; got != want {
			t.Errorf("Status with Ready=%s is %v, want %s", status, got, want)
		}
	}
	bare := row(t, s.Nodes.Node, &rik.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	if bare["Status"] != "Unknown" || bare["Roles"] != "<none>" || bare["CPU+"] != "<none>" {
		t.Errorf("row of a node that said nothing = %v", bare)
	}
}

// TestFault10TenantsAreListed creates a tenant and finds it in the list. Creating a second one
// of the same name is a conflict.
func TestFault10TenantsAreListed(t *testing.T) {
	t.Parallel()
	s := etcd.Stores(t, registry.Config{})
	foo := &rik.Tenant{ObjectMeta: metav1.ObjectMeta{Name: "foo"}, Spec: rik.TenantSpec{Users: []rik.TenantUser{{Name: "ann", Verbs: []string{"*"}, Resources: []string{"*"}}}}}
	if _, err := s.Tenants.Tenant.Create(wide(), foo.DeepCopy(), nil, &metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Tenants.Tenant.Create(wide(), foo.DeepCopy(), nil, &metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("the second = %v, want 409", err)
	}
	foobar := foo.DeepCopy()
	foobar.Name = "foobar"
	if _, err := s.Tenants.Tenant.Create(wide(), foobar, nil, &metav1.CreateOptions{}); err != nil {
		t.Errorf("one whose name begins alike = %v", err)
	}
	obj, err := s.Tenants.Tenant.List(wide(), &internalversion.ListOptions{})
	if err != nil || len(obj.(*rik.TenantList).Items) != 2 {
		t.Errorf("List = %v, %v, want two", obj, err)
	}
	got, err := s.Tenants.Tenant.Get(wide(), "foo", &metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tenant := got.(*rik.Tenant).DeepCopy()
	tenant.Status = rik.TenantStatus{Namespace: "foo", Instances: 3}
	tenant, err = update(controller(""), s.Tenants.Status, "foo", tenant)
	if err != nil || tenant.Status.Instances != 3 {
		t.Fatalf("status = %+v, %v", tenant, err)
	}
	if diff := cmp.Diff(map[string]any{"Name": "foo", "Namespace": "foo", "Users": "ann"}, row(t, s.Tenants.Tenant, tenant)); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
}

func TestRevisionTable(t *testing.T) {
	t.Parallel()
	s := etcd.Stores(t, registry.Config{})
	r := &rik.WorkloadRevision{ObjectMeta: metav1.ObjectMeta{Name: "web-x", Labels: map[string]string{"rik.dev/workload": "web"}}, Revision: 4}
	if diff := cmp.Diff(map[string]any{"Name": "web-x", "Workload": "web", "Revision": int64(4)}, row(t, s.Revisions.Revision, r)); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
}

// TestNames checks the short names and categories.
func TestNames(t *testing.T) {
	t.Parallel()
	s := etcd.Stores(t, registry.Config{})
	for _, tc := range []struct {
		short, categories, want []string
	}{
		{s.Workloads.Workload.ShortNames(), s.Workloads.Workload.Categories(), []string{"wl", "all"}},
		{s.Instances.Instance.ShortNames(), s.Instances.Instance.Categories(), []string{"inst", "ins", "all"}},
		{s.Nodes.Node.ShortNames(), s.Nodes.Node.Categories(), []string{"no"}},
		{s.Tenants.Tenant.ShortNames(), s.Tenants.Tenant.Categories(), []string{"ten"}},
		{s.Revisions.Revision.ShortNames(), s.Revisions.Revision.Categories(), []string{"wlrev"}},
	} {
		if diff := cmp.Diff(tc.want, append(tc.short, tc.categories...)); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
	}
}
