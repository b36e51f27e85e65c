package revision_test

import (
	"testing"
	"time"

	"rik.dev/rik/api/rik/fence"
	"rik.dev/rik/api/rik/revision"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// TestFenceIsOfTheRevision tests that a new fence makes a new revision. A rollout then replaces the
// instances without the fence, and nodes find the fence in the template.
func TestFenceIsOfTheRevision(t *testing.T) {
	t.Parallel()
	plain, fenced, own := workload(), workload(), workload()
	fenced.Annotations = map[string]string{fence.Annotation: "30s"}
	own.Spec.Annotations[fence.Annotation] = "1m"
	for _, w := range []*rikv1alpha1.Workload{plain, fenced, own} {
		if made := revision.For(w); made.Name != revision.Name(w) {
			t.Errorf("the revision is %s and its name %s", made.Name, revision.Name(w))
		}
	}
	if revision.Name(plain) == revision.Name(fenced) {
		t.Error("a fence makes no new revision")
	}
	template := revision.For(fenced).Template
	if template.OnDisconnect != rikv1alpha1.DisconnectStop || template.Annotations[fence.Annotation] != "30s" || template.Annotations["note"] != "template" {
		t.Errorf("the template has %q and %v", template.OnDisconnect, template.Annotations)
	}
	if _, changed := fenced.Spec.Annotations[fence.Annotation]; changed || fenced.Spec.OnDisconnect == rikv1alpha1.DisconnectStop {
		t.Error("the workload itself was changed")
	}
	if revision.For(own).Template.OnDisconnect != rikv1alpha1.DisconnectStop {
		t.Error("a template that asks for a fence itself goes on without contact")
	}
	for w, want := range map[*rikv1alpha1.Workload]time.Duration{plain: 0, fenced: 30 * time.Second, own: time.Minute} {
		if got, asks := revision.Fence(w); got != want || asks != (want > 0) {
			t.Errorf("Fence = %v, %v, want %v", got, asks, want)
		}
	}
}
