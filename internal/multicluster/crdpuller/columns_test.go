package crdpuller_test

import (
	"slices"
	"testing"

	"rik.dev/rik/internal/testkit/kube"
)

// TestColumnsOfBuiltInTypes tests the columns that kubectl shows after the name.
func TestColumnsOfBuiltInTypes(t *testing.T) {
	for name, want := range map[string][]string{
		"deployments.apps":                  {"Desired", "Ready", "Up-to-date", "Available", "Age", "Containers", "Images"},
		"daemonsets.apps":                   {"Desired", "Current", "Ready", "Up-to-date", "Available", "Age", "Containers", "Images"},
		"jobs.batch":                        {"Status", "Completions", "Succeeded", "Failed", "Age", "Containers", "Images"},
		"cronjobs.batch":                    {"Schedule", "Timezone", "Suspend", "Last Schedule", "Age", "Containers", "Images"},
		"ingresses.networking.k8s.io":       {"Class", "Hosts", "Address", "Host Name", "Age"},
		"networkpolicies.networking.k8s.io": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, c := range only(t, pull(t, kube.Shared(t).Rest(), name)).Spec.Versions[0].AdditionalPrinterColumns {
				got = append(got, c.Name)
			}
			if !slices.Equal(got, want) {
				t.Errorf("columns %q, want %q", got, want)
			}
		})
	}
}
