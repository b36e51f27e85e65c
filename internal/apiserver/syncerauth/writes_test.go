package syncerauth

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/core"
)

// service is an object in the server's internal form, which has no JSON.
func service(change func(*core.Service)) *core.Service {
	s := &core.Service{Spec: core.ServiceSpec{Type: core.ServiceTypeClusterIP}}
	s.Name, s.ResourceVersion = "web", "1"
	s.Labels = map[string]string{"workloads.kcp.dev/cluster": "east"}
	s.Annotations = map[string]string{"note": "mine"}
	if change != nil {
		change(s)
	}
	return s
}

// defined is the same object in the form of a CRD's type.
func defined(t *testing.T, s *core.Service) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.Service{
		ObjectMeta: s.ObjectMeta, Spec: corev1.ServiceSpec{Type: corev1.ServiceType(s.Spec.Type)},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress(s)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: content}
}

func ingress(s *core.Service) []corev1.LoadBalancerIngress {
	var out []corev1.LoadBalancerIngress
	for _, i := range s.Status.LoadBalancer.Ingress {
		out = append(out, corev1.LoadBalancerIngress{IP: i.IP})
	}
	return out
}

func TestCheckChange(t *testing.T) {
	t.Parallel()
	annotate := func(key, value string) func(*core.Service) {
		return func(s *core.Service) { s.Annotations[key] = value }
	}
	finalizer := func(names ...string) func(*core.Service) {
		return func(s *core.Service) { s.Finalizers = names }
	}
	status := func(s *core.Service) { s.Status.LoadBalancer.Ingress = []core.LoadBalancerIngress{{IP: "192.0.2.1"}} }
	left := func(s *core.Service) { s.Labels, s.Finalizers = nil, []string{"syncer.workloads.kcp.dev/east"} }
	const own, others = "status.workloads.kcp.dev/east", "status.workloads.kcp.dev/west"
	for _, tc := range []struct {
		name, subresource string
		old, now          func(*core.Service)
		want              error
	}{
		{"nothing", "", nil, nil, nil},
		{"bookkeeping", "", nil, func(s *core.Service) { s.ResourceVersion, s.Generation = "2", 2 }, nil},
		{"own status annotation", "", nil, annotate(own, "{}"), nil},
		{"own problem annotation", "", nil, annotate("problem.workloads.kcp.dev/east", "x"), nil},
		{"own annotation removed", "", annotate(own, "{}"), nil, nil},
		{"another's annotation", "", nil, annotate(others, "{}"), errSyncerElse},
		{"another's annotation removed", "", annotate(others, "{}"), nil, errSyncerElse},
		{"a user's annotation", "", nil, annotate("note", "theirs"), errSyncerElse},
		{"all annotations", "", nil, func(s *core.Service) { s.Annotations = nil }, errSyncerElse},
		{"own finalizer", "", nil, finalizer("syncer.workloads.kcp.dev/east"), nil},
		{"own finalizer removed", "", finalizer("syncer.workloads.kcp.dev/east"), nil, nil},
		{"another's finalizer", "", nil, finalizer("syncer.workloads.kcp.dev/west"), errSyncerElse},
		{"another's finalizer removed", "", finalizer("a/b", "syncer.workloads.kcp.dev/east"), finalizer("syncer.workloads.kcp.dev/east"), errSyncerElse},
		{"label", "", nil, func(s *core.Service) { s.Labels["app"] = "x" }, errSyncerElse},
		{"target", "", nil, func(s *core.Service) { s.Labels["workloads.kcp.dev/cluster"] = "west" }, errSyncerElse},
		{"spec", "", nil, func(s *core.Service) { s.Spec.Type = core.ServiceTypeNodePort }, errSyncerElse},
		{"status in the object", "", nil, status, errSyncerElse},
		{"status", "status", nil, status, nil},
		{"spec by status", "status", nil, func(s *core.Service) { s.Spec.Type = core.ServiceTypeNodePort }, errSyncerElse},
		{"label by status", "status", nil, func(s *core.Service) { s.Labels["app"] = "x" }, errSyncerElse},
		{"status of a shared object", "status", func(s *core.Service) { s.Labels["sync.workloads.kcp.dev/west"] = "true" }, func(s *core.Service) {
			s.Labels["sync.workloads.kcp.dev/west"] = "true"
			status(s)
		}, errShared},
		{"left: finalizer taken back", "", left, func(s *core.Service) { s.Labels = nil }, nil},
		{"left: status", "status", left, func(s *core.Service) { left(s); status(s) }, errNotTarget},
		{"left: new annotation", "", left, func(s *core.Service) { left(s); annotate(own, "{}")(s) }, errNotTarget},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			old, now := service(tc.old), service(tc.now)
			if err := checkChange("east", tc.subresource, old, now); !errors.Is(err, tc.want) {
				t.Errorf("native: %v, want %v", err, tc.want)
			}
			if err := checkChange("east", tc.subresource, defined(t, old), defined(t, now)); !errors.Is(err, tc.want) {
				t.Errorf("of a CRD: %v, want %v", err, tc.want)
			}
			if err := checkChange("west", tc.subresource, service(nil), now); err == nil {
				t.Error("the syncer of another cluster may write it")
			}
		})
	}
}
