package suggest

import (
	"slices"
	"testing"
)

func TestSimilar(t *testing.T) {
	t.Parallel()
	words := []string{"workloads", "workload", "nodes", "node", "instances/log", ""}
	if got := similar("workloadz", words); !slices.Equal(got, []string{"workload", "workloads"}) {
		t.Errorf("similar = %q", got)
	}
	if got := similar("xyz", words); len(got) != 0 {
		t.Errorf("similar = %q, want none", got)
	}
}
