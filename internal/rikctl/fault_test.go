package rikctl

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
)

// TestServerFault22 covers a fault of the published client. It printed success for every answer
// of the server, lost most of a definition, could not delete anything, accepted only plurals and
// had no machine-readable output.
func TestServerFault22(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	refused := s.do(t, "create", "instance", "--workload-id", "55555555-aaaa-bbbb-cccc-000000000000")
	refused.check(t, clierror.ExitNotFound)
	if refused.out != "" {
		t.Errorf("a refused create prints %q", refused.out)
	}

	file := s.file(t, `{"apiVersion":"v0","kind":"Function","name":"greet","replicas":3,"spec":{"containers":[],
		"function":{"execution":{"rootfs":"https://files.example/rootfs.ext4"},"exposure":{"port":30080,"targetPort":8080,"type":"NodePort"}}}}`)
	for i, word := range []string{"workload", "workloads"} {
		if i > 0 {
			s.deleteWorkload(t, word, "greet")
		}
		s.do(t, "create", word, "-f", file).check(t, clierror.ExitOK)
	}
	s.do(t, "create", "instance", "-w", "greet", "--name", "greet-1").check(t, clierror.ExitOK)

	answer := s.do(t, "get", "workload", "greet", "-o", "json")
	answer.check(t, clierror.ExitOK)
	w := rikv1alpha1.Workload{}
	if err := json.Unmarshal([]byte(answer.out), &w); err != nil {
		t.Fatalf("get -o json printed %q: %v", answer.out, err)
	}
	if w.Spec.Function == nil || w.Spec.Function.Exposure == nil || w.Spec.Replicas == nil {
		t.Fatalf("the function arrived as %+v", w.Spec)
	}
	got := []any{w.Spec.Kind, *w.Spec.Replicas, w.Spec.Function.Execution.Rootfs, w.Spec.Function.Exposure.Port, w.Spec.Function.Exposure.TargetPort}
	want := []any{rikv1alpha1.KindFunction, int32(3), "https://files.example/rootfs.ext4", int32(30080), int32(8080)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the function arrived changed (-want +got):\n%s", diff)
	}

	s.do(t, "delete", "instance", "greet-1", "--wait=false").check(t, clierror.ExitOK, "deleted")
	s.do(t, "delete", "instances", "greet-1", "--ignore-not-found", "--wait=false").check(t, clierror.ExitOK)
	if left := s.do(t, "get", "workloads", "-o", "name"); strings.Count(left.out, "\n") != 1 {
		t.Errorf("workloads left: %q, want one", left.out)
	}
}
