package rikctl

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
)

// twoContainers returns a manifest. Its second container is optional.
func twoContainers(name, tag string, second bool) string {
	text := fmt.Sprintf("apiVersion: rik.dev/v1alpha1\nkind: Workload\nmetadata: {name: %s}\nspec:\n  deploy: Automatic\n  containers:\n  - {name: main, image: \"docker://registry.example/web:%s\"}\n", name, tag)
	if second {
		text += "  - {name: side, image: \"docker://registry.example/side:1\"}\n"
	}
	return text
}

func (s site) containers(t *testing.T, name string) string {
	t.Helper()
	var w rikv1alpha1.Workload
	if err := s.c.Get(t.Context(), s.key(name), &w); err != nil {
		t.Fatal(err)
	}
	var out []string
	for i := range w.Spec.Containers {
		out = append(out, w.Spec.Containers[i].Name+" "+w.Spec.Containers[i].Image[len("docker://registry.example/"):])
	}
	return strings.Join(out, ", ")
}

// TestApplyRemovesWhatTheFileNoLongerHas creates an object in several ways. After apply, a
// container that the file no longer has is gone, and a value that changed in the file is
// changed, without a conflict.
func TestApplyRemovesWhatTheFileNoLongerHas(t *testing.T) {
	t.Parallel()
	const second = "docker://registry.example/side:1"
	// kubectl's commands write with other field managers.
	kubectl := func(t *testing.T, s site, owner client.FieldOwner) {
		t.Helper()
		w := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "web"}}
		w.Spec.Deploy = rikv1alpha1.DeployAutomatic
		w.Spec.Containers = []rikv1alpha1.Container{{Name: "main", Image: "docker://registry.example/web:1"}, {Name: "side", Image: second}}
		if err := s.c.Create(t.Context(), w, owner); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]func(t *testing.T, s site){
		"rikctl create": func(t *testing.T, s site) {
			s.do(t, "create", "workload", "-f", s.file(t, twoContainers("web", "1", true))).check(t, clierror.ExitOK)
		},
		"kubectl create":  func(t *testing.T, s site) { kubectl(t, s, "kubectl-create") },
		"kubectl apply":   func(t *testing.T, s site) { kubectl(t, s, "kubectl-client-side-apply") },
		"kubectl replace": func(t *testing.T, s site) { kubectl(t, s, "kubectl-replace") },
		"rikctl patch": func(t *testing.T, s site) {
			s.do(t, "apply", "-f", s.file(t, twoContainers("web", "1", false))).check(t, clierror.ExitOK)
			s.do(t, "patch", "workload", "web", "--type=json", "-p", `[{"op":"add","path":"/spec/containers/-","value":{"name":"side","image":"`+second+`"}}]`).check(t, clierror.ExitOK)
		},
		"kubectl patch": func(t *testing.T, s site) {
			s.do(t, "apply", "-f", s.file(t, twoContainers("web", "1", true))).check(t, clierror.ExitOK)
			w := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "web"}}
			patch := `[{"op":"replace","path":"/spec/containers/1/image","value":"docker://registry.example/side:2"}]`
			if err := s.c.Patch(t.Context(), w, client.RawPatch(types.JSONPatchType, []byte(patch)), client.FieldOwner("kubectl-patch")); err != nil {
				t.Fatal(err)
			}
		},
		"rikctl rollout undo": func(t *testing.T, s site) {
			s.do(t, "apply", "-f", s.file(t, twoContainers("web", "1", true))).check(t, clierror.ExitOK)
			s.do(t, "create", "instance", "-w", "web").check(t, clierror.ExitOK) // creates the revision
			s.do(t, "apply", "-f", s.file(t, twoContainers("web", "2", false))).check(t, clierror.ExitOK)
			s.do(t, "create", "instance", "-w", "web").check(t, clierror.ExitOK)
			s.do(t, "rollout", "undo", "workload/web").check(t, clierror.ExitOK)
		},
	}
	for name, before := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			before(t, s)
			if got := s.containers(t, "web"); !strings.Contains(got, "side") {
				t.Fatalf("containers are %q before", got)
			}
			s.do(t, "apply", "-f", s.file(t, twoContainers("web", "3", false))).check(t, clierror.ExitOK, "serverside-applied")
			if got := s.containers(t, "web"); got != "main web:3" {
				t.Errorf("containers are %q, want the file's one", got)
			}
		})
	}
}

// TestApplyRemovesWhatWasEdited does not run in parallel, because kubectl's code reads the
// editor from the environment.
func TestApplyRemovesWhatWasEdited(t *testing.T) {
	t.Setenv("KUBE_EDITOR", "sed -i s/side:1/side:2/")
	s := newSite(t)
	s.do(t, "apply", "-f", s.file(t, twoContainers("web", "1", true))).check(t, clierror.ExitOK)
	s.do(t, "edit", "workload", "web").check(t, clierror.ExitOK)
	if got := s.containers(t, "web"); got != "main web:1, side side:2" {
		t.Fatalf("containers are %q after the edit", got)
	}
	s.do(t, "apply", "-f", s.file(t, twoContainers("web", "1", false))).check(t, clierror.ExitOK)
	if got := s.containers(t, "web"); got != "main web:1" {
		t.Errorf("containers are %q, want the file's one", got)
	}
}

// TestApplyLeavesWhatOtherCommandsSet checks that apply keeps the replicas of scale, a pause, a
// restart, a label and the writes of other clients if the file does not have these fields.
func TestApplyLeavesWhatOtherCommandsSet(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do(t, "create", "workload", "-f", s.file(t, twoContainers("web", "1", false))).check(t, clierror.ExitOK)
	s.do(t, "scale", "workload", "web", "--replicas=4").check(t, clierror.ExitOK)
	s.do(t, "rollout", "pause", "workload/web").check(t, clierror.ExitOK)
	s.do(t, "rollout", "restart", "workload/web").check(t, clierror.ExitOK)
	s.do(t, "label", "workload", "web", "tier=front").check(t, clierror.ExitOK)
	w := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "web"}}
	if err := s.c.Patch(t.Context(), w, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"example.com/by":"robot"}}}`)), client.FieldOwner("robot")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s.do(t, "apply", "-f", s.file(t, twoContainers("web", "2", false))).check(t, clierror.ExitOK)
	}
	if err := s.c.Get(t.Context(), s.key("web"), w); err != nil {
		t.Fatal(err)
	}
	if w.Spec.Replicas == nil || *w.Spec.Replicas != 4 || !w.Spec.Paused || w.Spec.Annotations[rikv1alpha1.AnnotationRestartedAt] == "" ||
		w.Labels["tier"] != "front" || w.Annotations["example.com/by"] != "robot" {
		t.Errorf("after apply: replicas %v, paused %v, annotations %v and %v, labels %v", w.Spec.Replicas, w.Spec.Paused, w.Spec.Annotations, w.Annotations, w.Labels)
	}
}

// TestPreviewsShowWhatApplyDoes checks that the diff omits a container that the file no longer
// has. If apply would first take over fields, the preview says so and changes nothing.
func TestPreviewsShowWhatApplyDoes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do(t, "apply", "-f", s.file(t, twoContainers("web", "1", true))).check(t, clierror.ExitOK)
	r := s.do(t, "diff", "-f", s.file(t, twoContainers("web", "2", false)))
	if r.code != 1 || !strings.Contains(r.out, "-  - image: docker://registry.example/side:1") || !strings.Contains(r.out, "web:2") || strings.Contains(r.err, "note:") {
		t.Errorf("diff ends with %d: %s%s", r.code, r.out, r.err)
	}
	s.do(t, "create", "workload", "-f", s.file(t, twoContainers("made", "1", true))).check(t, clierror.ExitOK)
	changed := s.file(t, twoContainers("made", "2", false))
	s.do(t, "apply", "--dry-run=server", "-f", changed).check(t, clierror.ExitOK, "note: workloads/made was created", "does not show")
	if r := s.do(t, "diff", "-f", changed); r.code != 1 || !strings.Contains(r.out, "web:2") || !strings.Contains(r.err, "note: workloads/made was created") {
		t.Errorf("diff ends with %d: %s%s", r.code, r.out, r.err)
	}
	if got := s.containers(t, "made"); got != "main web:1, side side:1" {
		t.Errorf("a preview left %q", got)
	}
}
