package workload

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// TestWinnerIsNamedInItsNamespaceOnly: an event must not name an instance of another namespace,
// because users of the event's namespace read it.
func TestWinnerIsNamedInItsNamespaceOnly(t *testing.T) {
	t.Parallel()
	at := func(namespace, name string) *rikv1alpha1.Instance {
		return &rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	for _, tc := range []struct {
		other *rikv1alpha1.Instance
		want  string
	}{
		{at("team", "high"), "high"}, {at("rivals", "secret"), "in another namespace"}, {nil, "which does not exist any more"},
	} {
		if got := winner(at("team", "low"), tc.other); got != tc.want {
			t.Errorf("winner = %q, want %q", got, tc.want)
		}
	}
}
