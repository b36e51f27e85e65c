package finalstate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

func TestAs(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	tests := []struct {
		name   string
		passed any
		want   bool
	}{
		{"an object", pod, true},
		{"a missed deletion", cache.DeletedFinalStateUnknown{Key: "a/b", Obj: pod}, true},
		{"another type", &corev1.Node{}, false},
		{"a missed deletion of another type", cache.DeletedFinalStateUnknown{Obj: &corev1.Node{}}, false},
		{"a missed deletion without a state", cache.DeletedFinalStateUnknown{Key: "a/b"}, false},
		{"nothing", nil, false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, ok := As[*corev1.Pod](tc.passed)
			if ok != tc.want || ok && got != pod {
				t.Errorf("As(%v) = %v, %v, want the pod: %v", tc.passed, got, ok, tc.want)
			}
		})
	}
}

func TestOf(t *testing.T) {
	t.Parallel()
	if got := Of(cache.DeletedFinalStateUnknown{Obj: "last"}); got != "last" {
		t.Errorf("Of() = %v, want the last known state", got)
	}
	if got := Of("object"); got != "object" {
		t.Errorf("Of() = %v, want the object itself", got)
	}
}
