package describe

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// TestForeignTextCannotForgeADescription checks that foreign text adds no line, no column and no color.
func TestForeignTextCannotForgeADescription(t *testing.T) {
	t.Parallel()
	const forged = "x\nStatus:\tRunning\r\x1b[31m\u2028\u202e"
	meta := metav1.ObjectMeta{Name: "n", Annotations: map[string]string{"a": forged}, Labels: map[string]string{"b": "c"}}
	conditions := []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Message: forged}}
	events := &corev1.EventList{Items: []corev1.Event{{Reason: "R", Message: forged, Type: "Normal", Source: corev1.EventSource{Component: forged}}}}
	node := &rikv1alpha1.Node{ObjectMeta: meta}
	node.Status.Info.Hostname, node.Status.Info.Distribution, node.Status.Info.RuntimeVersion = forged, forged, forged
	node.Status.Conditions = conditions
	instance := &rikv1alpha1.Instance{ObjectMeta: meta}
	instance.Status.Message = forged
	instance.Status.Containers = []rikv1alpha1.ContainerStatus{{Name: "c", Message: forged, Reason: forged}}
	workload := &rikv1alpha1.Workload{ObjectMeta: meta}
	workload.Spec.Containers = []rikv1alpha1.Container{{Name: "c", Command: []string{forged}, Env: []rikv1alpha1.EnvVar{{Name: "V", Value: forged}}}}
	workload.Status.Conditions = conditions
	for kind, object := range map[string]client.Object{"Node": node, "Instance": instance, "Workload": workload} {
		text, err := rendered(renderers[kind], object, &details{events: events, instances: []rikv1alpha1.Instance{*instance}})
		if err != nil {
			t.Fatal(err)
		}
		honest, _, _ := strings.Cut(text, "Events:")
		for _, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "Status:") && strings.Contains(line, "Running") {
				t.Errorf("%s: a forged line: %q", kind, line)
			}
		}
		if strings.ContainsAny(text, "\x1b\r\u2028\u202e") {
			t.Errorf("%s: control characters are in %q", kind, text)
		}
		if !strings.Contains(honest, `x\nStatus:\tRunning`) {
			t.Errorf("%s: the value is not shown: %s", kind, text)
		}
	}
}
