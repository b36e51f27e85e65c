package revision_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/api/rik/revision"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func workload() *rikv1alpha1.Workload {
	return &rikv1alpha1.Workload{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web", UID: "u-1"},
		Spec: rikv1alpha1.WorkloadSpec{InstanceTemplate: rikv1alpha1.InstanceTemplate{
			Kind: rikv1alpha1.KindPod, Labels: map[string]string{"app": "web", "tier": "front"},
			Annotations: map[string]string{"note": "template"},
			Containers: []rikv1alpha1.Container{{Name: "c", Image: "nginx", Resources: rikv1alpha1.Resources{
				Limits: rikv1alpha1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")},
			}}},
		}},
	}
}

func TestHash(t *testing.T) {
	t.Parallel()
	base := revision.Name(workload())
	for name, tc := range map[string]struct {
		change func(*rikv1alpha1.Workload)
		same   bool
	}{
		"nothing":            {func(*rikv1alpha1.Workload) {}, true},
		"replicas":           {func(w *rikv1alpha1.Workload) { n := int32(7); w.Spec.Replicas = &n }, true},
		"paused":             {func(w *rikv1alpha1.Workload) { w.Spec.Paused = true }, true},
		"status":             {func(w *rikv1alpha1.Workload) { w.Status.Replicas = 3 }, true},
		"another UID":        {func(w *rikv1alpha1.Workload) { w.UID = "u-2" }, false},
		"image":              {func(w *rikv1alpha1.Workload) { w.Spec.Containers[0].Image = "nginx:2" }, false},
		"restart annotation": {func(w *rikv1alpha1.Workload) { w.Spec.Annotations[rikv1alpha1.AnnotationRestartedAt] = "now" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := workload()
			tc.change(w)
			if got := revision.Name(w); (got == base) != tc.same {
				t.Errorf("Name = %q, base %q, want same %v", got, base, tc.same)
			}
		})
	}
}

// TestHashIsStable tests that the hash does not change. With another hash, an upgrade would start a
// rollout of each Automatic workload.
func TestHashIsStable(t *testing.T) {
	t.Parallel()
	if got, want := revision.Name(workload()), "web-g84zn5r9k8"; got != want {
		t.Errorf("Name = %q, want %q", got, want)
	}
}

func TestFor(t *testing.T) {
	t.Parallel()
	w := workload()
	r := revision.For(w)
	if r.Name != revision.Name(w) || r.Namespace != "team" || r.OwnerReferences[0].UID != w.UID {
		t.Errorf("For = %+v", r.ObjectMeta)
	}
	if diff := cmp.Diff(w.Spec.InstanceTemplate, r.Template); diff != "" {
		t.Errorf("template (-want +got):\n%s", diff)
	}
	r.Template.Labels["app"] = "changed"
	if w.Spec.Labels["app"] != "web" {
		t.Error("the revision shares memory with the workload")
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	if got := revision.Next(nil); got != 1 {
		t.Errorf("Next(nil) = %d, want 1", got)
	}
	if got := revision.Next([]rikv1alpha1.WorkloadRevision{{Revision: 3}, {Revision: 7}, {Revision: 2}}); got != 8 {
		t.Errorf("Next = %d, want 8", got)
	}
}

func TestStamp(t *testing.T) {
	t.Parallel()
	r := revision.For(workload())
	i := &rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{"tier": "own", rikv1alpha1.LabelWorkload: "forged"}, Finalizers: []string{"a/b"},
	}}
	revision.Stamp(i, r)
	want := &rikv1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", GenerateName: "web-",
			Labels: map[string]string{
				"app": "web", "tier": "own",
				rikv1alpha1.LabelWorkload: "web", rikv1alpha1.LabelRevision: r.Labels[rikv1alpha1.LabelRevision],
			},
			Annotations:     map[string]string{"note": "template"},
			Finalizers:      []string{"a/b", rikv1alpha1.FinalizerNode},
			OwnerReferences: r.OwnerReferences,
		},
		Spec: rikv1alpha1.InstanceSpec{Workload: "web", Revision: r.Name},
	}
	if diff := cmp.Diff(want, i); diff != "" {
		t.Errorf("Stamp (-want +got):\n%s", diff)
	}
	again := i.DeepCopy()
	revision.Stamp(again, r)
	if diff := cmp.Diff(i, again); diff != "" {
		t.Errorf("stamping twice changes the instance:\n%s", diff)
	}
}
