package target

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func TestParseTarget(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		want Target
		bad  bool
	}{
		"web-1": {want: Target{Name: "web-1"}}, "instance/web-1": {want: Target{Name: "web-1"}}, "inst/a": {want: Target{Name: "a"}},
		"workload/web": {want: Target{true, "web"}}, "wl/web": {want: Target{true, "web"}}, "workloads.rik.dev/web": {want: Target{true, "web"}},
		"pod/a": {bad: true}, "workload/": {bad: true}, "/a": {bad: true},
	}
	for arg, tc := range tests {
		got, err := Parse(arg)
		if (err != nil) != tc.bad || (err == nil && got != tc.want) {
			t.Errorf("parseTarget(%q) = %v, %v; want %v, error %v", arg, got, err, tc.want, tc.bad)
		}
	}
}

func TestWorkloadArg(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{"web": "web", "workload/web": "web", "workload web": "web", "wl web": "web",
		"instance/web": "", "node web": "", "web other": "", "workload/web other": ""} {
		got, err := WorkloadName(&cobra.Command{}, strings.Fields(line))
		if got != want || (err != nil) != (want == "") {
			t.Errorf("workloadArg(%q) = %q, %v; want %q", line, got, err, want)
		}
	}
}

// TestExecNeedsItsContainerOnly checks that exec works in a running container while another
// container cannot start.
func TestExecNeedsItsContainerOnly(t *testing.T) {
	t.Parallel()
	waits := rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Name: "waits"}, Status: rikv1alpha1.InstanceStatus{
		Phase: rikv1alpha1.InstanceCreating,
		Containers: []rikv1alpha1.ContainerStatus{
			{Name: "broken", State: rikv1alpha1.ContainerWaiting, Reason: "StartError"}, {Name: "good", State: rikv1alpha1.ContainerRunning},
		},
	}}
	runs := rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Name: "runs"}, Status: rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceRunning}}
	for _, tc := range []struct {
		container string
		of        []rikv1alpha1.Instance
		want      string // empty: no instance
		words     []string
	}{
		{"good", []rikv1alpha1.Instance{waits}, "waits", nil},
		{"broken", []rikv1alpha1.Instance{waits}, "", []string{"broken", "Waiting", "StartError"}},
		{"nosuch", []rikv1alpha1.Instance{waits}, "", []string{`container "nosuch" not found`, "broken, good"}},
		{"", []rikv1alpha1.Instance{waits}, "", []string{"waits is Creating"}},
		{"", []rikv1alpha1.Instance{{}}, "", []string{"Pending"}},
		{"good", []rikv1alpha1.Instance{waits, runs}, "runs", nil},
	} {
		got, err := FirstRunning(tc.of, tc.container)
		for _, word := range tc.words {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("firstRunning(%q) = %v, want it to say %q", tc.container, err, word)
			}
		}
		if (err == nil) != (tc.want != "") || err == nil && got.Name != tc.want {
			t.Errorf("firstRunning(%q) = %v, %v, want %q", tc.container, got, err, tc.want)
		}
	}
}
