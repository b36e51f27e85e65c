package registry_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/autoscaling"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/registry"
	"rik.dev/rik/internal/apiserver/registry/registrytest"
	"rik.dev/rik/internal/apiserver/registry/workload"
)

func newWorkload(change func(*rik.WorkloadSpec)) *rik.Workload {
	replicas := int32(2)
	w := &rik.Workload{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "team"},
		Spec: rik.WorkloadSpec{
			Deploy: rik.DeployAutomatic, Replicas: &replicas, Strategy: rik.UpdateStrategy{Type: rik.Recreate},
			InstanceTemplate: rik.InstanceTemplate{
				Kind: rik.KindPod, RestartPolicy: rik.RestartAlways, OnDisconnect: rik.DisconnectKeep,
				Containers: []rik.Container{{Name: "main", Image: "nginx:1", ImagePullPolicy: rik.PullIfNotPresent}},
			},
		},
	}
	if change != nil {
		change(&w.Spec)
	}
	return w
}

func as(user string) context.Context {
	return registrytest.As(context.Background(), "team", user)
}

// updater is a store or a subresource.
type updater interface {
	Update(context.Context, string, rest.UpdatedObjectInfo, rest.ValidateObjectFunc, rest.ValidateObjectUpdateFunc, bool, *metav1.UpdateOptions) (runtime.Object, bool, error)
}

func update[T runtime.Object](ctx context.Context, u updater, name string, o T) (T, error) {
	obj, _, err := u.Update(ctx, name, rest.DefaultUpdatedObjectInfo(o), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		var none T
		return none, err
	}
	return obj.(T), nil
}

func createWorkload(t *testing.T, s registry.Stores, user string, w *rik.Workload) (*rik.Workload, error) {
	t.Helper()
	obj, err := s.Workloads.Workload.Create(as(user), w, nil, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*rik.Workload), nil
}

// TestReachingTheNode: only the administrator may write a template with access to the node, and
// only the administrator may change such a template later.
func TestReachingTheNode(t *testing.T) {
	t.Parallel()
	host := func(s *rik.WorkloadSpec) { s.HostNetwork = true }
	s := etcd.Stores(t, registry.Config{Authorizer: registrytest.Allow("root", workload.VerbPrivileged)})

	if _, err := createWorkload(t, s, "ann", newWorkload(host)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "spec.hostNetwork") {
		t.Errorf("Create by ann = %v, want 403 that names the field", err)
	}
	if _, err := s.Workloads.Workload.Create(context.Background(), newWorkload(host), nil, &metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("Create without a user = %v, want 403", err)
	}
	made, err := createWorkload(t, s, "root", newWorkload(host))
	if err != nil {
		t.Fatal(err)
	}
	borrowed := made.DeepCopy()
	borrowed.Spec.Containers[0].Image = "mine:1"
	if _, err := update(as("ann"), s.Workloads.Workload, "web", borrowed); !apierrors.IsForbidden(err) {
		t.Errorf("another image by ann = %v, want 403", err)
	}
	scaled := made.DeepCopy()
	three := int32(3)
	scaled.Spec.Replicas = &three
	made, err = update(as("ann"), s.Workloads.Workload, "web", scaled)
	if err != nil {
		t.Errorf("another number by ann = %v", err)
	}
	harmless := made.DeepCopy()
	harmless.Spec.HostNetwork = false
	if _, err := update(as("ann"), s.Workloads.Workload, "web", harmless); err != nil {
		t.Errorf("giving the privilege up = %v", err)
	}
	// Server-side apply creates through Update.
	_, _, err = s.Workloads.Workload.Update(as("ann"), "new", rest.DefaultUpdatedObjectInfo(func() runtime.Object {
		w := newWorkload(host)
		w.Name = "new"
		return w
	}()), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("applying a new one by ann = %v, want 403", err)
	}
}

func TestGenerationAndStatus(t *testing.T) {
	t.Parallel()
	s := etcd.Stores(t, registry.Config{})
	w := newWorkload(nil)
	w.Status.Replicas = 9
	w, err := createWorkload(t, s, "ann", w)
	if err != nil || w.Generation != 1 || w.Status.Replicas != 0 {
		t.Fatalf("Create = %+v, %v, want generation 1 and no status", w, err)
	}
	labeled := w.DeepCopy()
	labeled.Labels, labeled.Status.Replicas = map[string]string{"a": "b"}, 5
	w, err = update(as("ann"), s.Workloads.Workload, "web", labeled)
	if err != nil || w.Generation != 1 || w.Status.Replicas != 0 {
		t.Fatalf("a label = %+v, %v, want generation 1 and no status", w, err)
	}
	paused := w.DeepCopy()
	paused.Spec.Paused = true
	w, err = update(as("ann"), s.Workloads.Workload, "web", paused)
	if err != nil || w.Generation != 2 {
		t.Fatalf("a spec = %+v, %v, want generation 2", w, err)
	}
	seen := w.DeepCopy()
	seen.Status = rik.WorkloadStatus{Replicas: 2, ReadyReplicas: 1, CurrentRevision: "web-x"}
	seen.Spec.Paused, seen.Labels = false, nil
	if _, err := update(as("ann"), s.Workloads.Status, "web", seen); !apierrors.IsForbidden(err) {
		t.Errorf("the status by ann = %v, want 403", err)
	}
	w, err = update(controller("team"), s.Workloads.Status, "web", seen)
	if err != nil || w.Status.Replicas != 2 || !w.Spec.Paused || w.Labels["a"] != "b" || w.Generation != 2 {
		t.Fatalf("the status = %+v, %v, want nothing else changed", w, err)
	}
	bad := w.DeepCopy()
	bad.Status.Replicas = -1
	if _, err := update(controller("team"), s.Workloads.Status, "web", bad); !apierrors.IsInvalid(err) {
		t.Errorf("a negative count = %v, want 422", err)
	}
}

func TestScale(t *testing.T) {
	t.Parallel()
	s := etcd.Stores(t, registry.Config{})
	if _, err := createWorkload(t, s, "ann", newWorkload(nil)); err != nil {
		t.Fatal(err)
	}
	obj, err := s.Workloads.Scale.Get(as("ann"), "web", &metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	scale := obj.(*autoscaling.Scale)
	if scale.Spec.Replicas != 2 || scale.Status.Selector != "rik.dev/workload=web" {
		t.Errorf("Get = %+v", scale)
	}
	scale.Spec.Replicas = 5
	scale, err = update(as("ann"), s.Workloads.Scale, "web", scale)
	if err != nil || scale.Spec.Replicas != 5 {
		t.Fatalf("Update = %+v, %v", scale, err)
	}
	stored, err := s.Workloads.Workload.Get(as("ann"), "web", &metav1.GetOptions{})
	if err != nil || *stored.(*rik.Workload).Spec.Replicas != 5 || stored.(*rik.Workload).Generation != 2 {
		t.Errorf("workload = %+v, %v", stored, err)
	}
	for name, change := range map[string]func(*autoscaling.Scale){
		"negative":    func(s *autoscaling.Scale) { s.Spec.Replicas = -1 },
		"other UID":   func(s *autoscaling.Scale) { s.UID = "other" },
		"old version": func(s *autoscaling.Scale) { s.ResourceVersion = "1" },
	} {
		bad := scale.DeepCopy()
		change(bad)
		if _, err := update(as("ann"), s.Workloads.Scale, "web", bad); !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) {
			t.Errorf("%s: Update = %v, want 409 or 422", name, err)
		}
	}
	if _, err := s.Workloads.Scale.Get(as("ann"), "other", &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("Get of nothing = %v, want 404", err)
	}
	if _, err := update(as("ann"), s.Workloads.Scale, "other", scale); !apierrors.IsNotFound(err) {
		t.Errorf("Update of nothing = %v, want 404", err)
	}
}

// TestFault08ReplicasHaveBounds: the number of replicas is checked at and above its limits. No
// number overflows. A number counts the whole workload.
func TestFault08ReplicasHaveBounds(t *testing.T) {
	t.Parallel()
	s := etcd.Stores(t, registry.Config{})
	for _, n := range []int32{-1, -2147483648, 2147483647, 1_000_001} {
		_, err := createWorkload(t, s, "ann", newWorkload(func(spec *rik.WorkloadSpec) { spec.Replicas = &n }))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.replicas") {
			t.Errorf("%d replicas = %v, want 422 that names the field", n, err)
		}
	}
	none := int32(0)
	if w, err := createWorkload(t, s, "ann", newWorkload(func(spec *rik.WorkloadSpec) { spec.Replicas = &none })); err != nil || *w.Spec.Replicas != 0 {
		t.Errorf("0 replicas = %v, %v", w, err)
	}
}

func TestRevisionsNeverChange(t *testing.T) {
	t.Parallel()
	s := etcd.Stores(t, registry.Config{})
	w := newWorkload(nil)
	obj, err := s.Revisions.Revision.Create(controller("team"), &rik.WorkloadRevision{
		ObjectMeta: metav1.ObjectMeta{Name: "web-x", Namespace: "team"}, Revision: 1, Template: w.Spec.InstanceTemplate,
	}, nil, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := obj.(*rik.WorkloadRevision).DeepCopy()
	r.Template.Containers[0].Image = "other"
	if _, err := update(controller("team"), s.Revisions.Revision, "web-x", r); !apierrors.IsInvalid(err) {
		t.Errorf("another template = %v, want 422", err)
	}
	r = obj.(*rik.WorkloadRevision).DeepCopy()
	r.Revision = 7
	if got, err := update(controller("team"), s.Revisions.Revision, "web-x", r); err != nil || got.Revision != 7 {
		t.Errorf("a rollback's number = %v, %v", got, err)
	}
}

// row returns a table's only row, by column name.
func row(t *testing.T, c rest.TableConvertor, o runtime.Object) map[string]any {
	t.Helper()
	table, err := c.ConvertToTable(t.Context(), o, &metav1.TableOptions{})
	if err != nil || len(table.Rows) != 1 || len(table.Rows[0].Cells) != len(table.ColumnDefinitions) {
		t.Fatalf("ConvertToTable = %+v, %v", table, err)
	}
	out := map[string]any{}
	for i, c := range table.ColumnDefinitions {
		name := c.Name
		if c.Priority > 0 {
			name += "+"
		}
		out[name] = table.Rows[0].Cells[i]
	}
	delete(out, "Age")
	return out
}

func TestWorkloadTable(t *testing.T) {
	t.Parallel()
	s := etcd.Stores(t, registry.Config{})
	w := newWorkload(nil)
	w.Status = rik.WorkloadStatus{
		Replicas: 3, ReadyReplicas: 1, UpdatedReplicas: 2, CurrentRevision: "web-x", Addresses: []string{"10.63.0.1", "192.0.2.1"},
	}
	w.Spec.Containers[0].Ports = []rik.Port{
		{Port: 80, TargetPort: 8080, Protocol: rik.ProtocolTCP, Type: rik.PortClusterIP},
		{Port: 30053, TargetPort: 53, Protocol: rik.ProtocolUDP, Type: rik.PortLoadBalancer},
	}
	want := map[string]any{
		"Name": "web", "Kind": "Pod", "Deploy": "Automatic", "Ready": "1/2", "Up-to-date": int32(2), "Available": int32(1),
		"Address+": "10.63.0.1,192.0.2.1", "Ports+": "80/TCP,loadBalancer:30053/UDP",
		"Images+": "nginx:1", "Selector+": "rik.dev/workload=web", "Revision+": "web-x",
	}
	if diff := cmp.Diff(want, row(t, s.Workloads.Workload, w)); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	w.Spec.Deploy = rik.DeployManual
	if got := row(t, s.Workloads.Workload, &rik.WorkloadList{Items: []rik.Workload{*w}}); got["Ready"] != "1/3" {
		t.Errorf("Ready of a Manual one = %v, want 1/3", got["Ready"])
	}
}

// TestCascadeIsRemembered follows a deletion through the actions of Kubernetes' garbage
// collector.
func TestCascadeIsRemembered(t *testing.T) {
	t.Parallel()
	for policy, want := range map[metav1.DeletionPropagation]string{
		metav1.DeletePropagationOrphan: "orphan", metav1.DeletePropagationForeground: "foreground", metav1.DeletePropagationBackground: "",
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			s := etcd.Stores(t, registry.Config{})
			w, err := createWorkload(t, s, "ann", newWorkload(nil))
			if err != nil || !slices.Equal(w.Finalizers, []string{rikv1alpha1.FinalizerWorkload}) {
				t.Fatalf("Create = %v, %v, want the controller's finalizer", w.Finalizers, err)
			}
			claimed := w.DeepCopy()
			claimed.Annotations = map[string]string{rikv1alpha1.AnnotationCascade: "orphan"}
			if _, err := update(as("ann"), s.Workloads.Workload, "web", claimed); !apierrors.IsInvalid(err) {
				t.Errorf("claiming it before = %v, want 422", err)
			}
			if _, _, err := s.Workloads.Workload.Delete(as("ann"), "web", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			got, err := s.Workloads.Workload.Get(as("ann"), "web", &metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			collected := got.(*rik.Workload).DeepCopy()
			collected.Finalizers = []string{rikv1alpha1.FinalizerWorkload}
			collected, err = update(as("system:serviceaccount:kube-system:generic-garbage-collector"), s.Workloads.Workload, "web", collected)
			if err != nil || collected.Annotations[rikv1alpha1.AnnotationCascade] != want {
				t.Errorf("after the finalizer went the annotation is %q, %v, want %q", collected.Annotations[rikv1alpha1.AnnotationCascade], err, want)
			}
		})
	}
}

// TestPortsOfNodesAreLimited: node ports that the operator excludes are refused for every user.
// Ports that a workload already has are accepted.
func TestPortsOfNodesAreLimited(t *testing.T) {
	t.Parallel()
	serving := func(port int32) func(*rik.WorkloadSpec) {
		return func(s *rik.WorkloadSpec) {
			s.Containers[0].Ports = []rik.Port{{Name: "http", Port: port, TargetPort: 8080, Protocol: rik.ProtocolTCP, Type: rik.PortNodePort}}
		}
	}
	limits, err := validation.ParseNodePorts(validation.DefaultNodePorts, map[validation.OwnPort]string{{Protocol: rik.ProtocolTCP, Port: 5000}: "the API"})
	if err != nil {
		t.Fatal(err)
	}
	s := etcd.Stores(t, registry.Config{Authorizer: registrytest.Allow("root", workload.VerbPrivileged), NodePorts: limits})
	for _, port := range []int32{80, 5000} {
		_, err := createWorkload(t, s, "root", newWorkload(serving(port)))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.containers[0].ports[0].port") {
			t.Errorf("Create with the port %d = %v, want 422 that names the field", port, err)
		}
	}
	made, err := createWorkload(t, s, "root", newWorkload(serving(30080)))
	if err != nil {
		t.Fatal(err)
	}
	moved := made.DeepCopy()
	moved.Spec.Containers[0].Ports[0].Port = 443
	if _, err := update(as("root"), s.Workloads.Workload, "web", moved); !apierrors.IsInvalid(err) {
		t.Errorf("Update to the port 443 = %v, want 422", err)
	}
}
