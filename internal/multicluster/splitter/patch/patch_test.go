package patch_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/internal/multicluster/splitter/patch"
)

func TestBody(t *testing.T) {
	t.Parallel()
	object := &metav1.ObjectMeta{UID: "u1", ResourceVersion: "7"}
	for name, tc := range map[string]struct {
		metadata, rest map[string]any
		want           string
	}{
		"nothing":  {want: `{"metadata":{"resourceVersion":"7","uid":"u1"}}`},
		"metadata": {metadata: map[string]any{"labels": map[string]any{"a": nil}}, want: `{"metadata":{"labels":{"a":null},"resourceVersion":"7","uid":"u1"}}`},
		"spec":     {rest: map[string]any{"spec": map[string]any{"replicas": 2}}, want: `{"metadata":{"resourceVersion":"7","uid":"u1"},"spec":{"replicas":2}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := patch.Body(object, tc.metadata, tc.rest)
			if err != nil || string(got) != tc.want {
				t.Errorf("Body = %s, %v, want %s", got, err, tc.want)
			}
		})
	}
}

func TestDifference(t *testing.T) {
	t.Parallel()
	got := patch.Difference(map[string]string{"same": "1", "gone": "1", "changed": "1"}, map[string]string{"same": "1", "changed": "2", "new": ""})
	if diff := cmp.Diff(map[string]any{"gone": nil, "changed": "2", "new": ""}, got); diff != "" {
		t.Errorf("Difference (-want +got):\n%s", diff)
	}
}
