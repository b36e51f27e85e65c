package wait

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"rik.dev/rik/internal/rikctl/clierror"
)

func TestTheStateOfAnObjectInWords(t *testing.T) {
	t.Parallel()
	o := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{
		"phase": "Creating", "reason": "ImagePullFailed", "message": "the registry is away",
		"conditions": []any{
			map[string]any{"type": "Placed", "status": "True", "reason": "Bound"},
			map[string]any{"type": "Ready", "status": "False", "reason": "NotReady", "message": "not yet"}, "nonsense",
		},
	}}}
	want := "phase Creating, reason ImagePullFailed, message the registry is away, Placed=True, Ready=False (NotReady: not yet)"
	if got := stateOf(o); got != want {
		t.Errorf("stateOf() = %q, want %q", got, want)
	}
	if got := stateOf(&unstructured.Unstructured{Object: map[string]any{}}); got != "" {
		t.Errorf("stateOf(nothing) = %q", got)
	}
	if !errors.As(error(clierror.TimeoutError{What: "x"}), new(clierror.TimeoutError)) {
		t.Error("a timeout has no code")
	}
}
