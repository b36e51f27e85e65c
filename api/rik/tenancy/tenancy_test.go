package tenancy_test

import (
	"slices"
	"testing"

	"rik.dev/rik/api/rik/tenancy"
)

func TestGranted(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"workloads":         {"workloads", "workloads/scale", "workloads/status"},
		"instances/exec":    {"instances/exec"},
		"deployments":       {"deployments", "deployments/scale", "deployments/status"},
		"workloadrevisions": {"workloadrevisions"},
		"events":            {"events", "events"},
		"instance":          nil,
		"nodes":             nil,
		"roles":             nil,
		"":                  nil,
	} {
		var got []string
		for _, r := range tenancy.Granted(name) {
			got = append(got, r.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("Granted(%q) = %v, want %v", name, got, want)
		}
	}
	for _, name := range tenancy.Names() {
		if len(tenancy.Granted(name)) == 0 {
			t.Errorf("Granted(%q) is empty", name)
		}
	}
}

// TestTrustedResourcesAreReadOnly tests the resources whose content the controller, nodes and other
// users trust.
func TestTrustedResourcesAreReadOnly(t *testing.T) {
	t.Parallel()
	for _, r := range tenancy.Granted(tenancy.All) {
		switch r.Name {
		case "workloads/status", "instances/status", "deployments/status", "workloadrevisions", "events":
			if !r.ReadOnly {
				t.Errorf("%s can be written", r.Name)
			}
		}
	}
}
