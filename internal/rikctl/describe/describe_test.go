package describe

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/rikctltest"
	"rik.dev/rik/internal/rikctl/scheme"
	"rik.dev/rik/internal/testkit/golden"
)

func TestDescribeGolden(t *testing.T) {
	t.Parallel()
	pending := rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Name: "web-q9d4c", Namespace: "shop"},
		Status: rikv1alpha1.InstanceStatus{Reason: "Unplaced", Message: "0 of 2 nodes: 2 memory"}}
	functionOnly := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Name: "resize", Namespace: "shop"}, Spec: rikv1alpha1.WorkloadSpec{
		Deploy: rikv1alpha1.DeployManual, InstanceTemplate: rikv1alpha1.InstanceTemplate{Kind: rikv1alpha1.KindFunction, Function: &rikv1alpha1.Function{
			Execution: rikv1alpha1.FunctionExecution{Rootfs: "https://example.org/r.ext4"}, Exposure: &rikv1alpha1.Port{Port: 45123, TargetPort: 8080}}}}}
	app := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Name: "tool", Namespace: "shop"}, Spec: rikv1alpha1.WorkloadSpec{
		Deploy: rikv1alpha1.DeployManual, InstanceTemplate: rikv1alpha1.InstanceTemplate{Kind: rikv1alpha1.KindApp,
			App: &rikv1alpha1.App{Repo: "https://example.org/tool.tar.gz", Version: "2.0", Command: []string{"./tool"}, Args: []string{"-v"}, User: "tool"}}}}
	tenant := &rikv1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{Name: "acme", UID: "99"}, Spec: rikv1alpha1.TenantSpec{
		Users: []rikv1alpha1.TenantUser{{Name: "ada"}, {Name: "bob", Verbs: []string{"get", "list"}, Resources: []string{"workloads"}}}},
		Status: rikv1alpha1.TenantStatus{Namespace: "acme", Instances: 4}}
	gone := rikctltest.Instance()
	deleted := rikctltest.At(10)
	gone.DeletionTimestamp, gone.Finalizers = &deleted, []string{rikv1alpha1.FinalizerNode}
	template := rikctltest.Template()
	tests := []struct {
		name string
		obj  client.Object
		d    details
	}{
		{"describe-workload", rikctltest.Workload(), details{instances: []rikv1alpha1.Instance{*rikctltest.Instance(), pending}}},
		{"describe-function", functionOnly, details{events: &corev1.EventList{}}},
		{"describe-app", app, details{}},
		{"describe-instance", rikctltest.Instance(), details{template: &template}},
		{"describe-instance-without-revision", gone, details{}},
		{"describe-node", rikctltest.Node(), details{instances: []rikv1alpha1.Instance{*rikctltest.Instance()}}},
		{"describe-tenant", tenant, details{}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			gvks, _, err := scheme.Scheme.ObjectKinds(tc.obj)
			if err != nil {
				t.Fatal(err)
			}
			got, err := rendered(renderers[gvks[0].Kind], tc.obj, &tc.d)
			if err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, tc.name+".golden", []byte(got))
		})
	}
}
