package renewal_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/multicluster/syncer/renewal"
)

const (
	upstream   = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: team, uid: u1, annotations: {workloads.kcp.dev/fence-after: 30s}}, spec: {replicas: 2}}`
	downstream = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: kcp-x, generation: 3, annotations: {workloads.kcp.dev/fence-after: 30s, workloads.kcp.dev/upstream-uid: u1}}, spec: {replicas: 2}, status: {observedGeneration: 3}}`
)

// TestBehind tests what prevents the renewal of a Lease after a disconnection.
func TestBehind(t *testing.T) {
	t.Parallel()
	change := func(text, old, with string) string { return strings.Replace(text, old, with, 1) }
	for name, tc := range map[string]struct {
		up, down string
		yields   bool
		want     string
	}{
		"the same":                     {up: upstream, down: downstream},
		"fewer downstream":             {up: upstream, down: change(downstream, "replicas: 2", "replicas: 1")},
		"more downstream":              {up: change(upstream, "replicas: 2", "replicas: 0"), down: downstream, want: "2 replicas and should have 0"},
		"more, and the cluster's say":  {up: upstream, down: change(downstream, "replicas: 2", "replicas: 5"), yields: true},
		"not there downstream":         {up: upstream},
		"gone upstream":                {down: downstream, want: "should have 0"},
		"gone upstream, and at 0":      {down: change(downstream, "replicas: 2", "replicas: 0")},
		"another one upstream":         {up: change(upstream, "u1", "u2"), down: downstream, want: "should have 0"},
		"being deleted upstream":       {up: change(upstream, "uid: u1", "uid: u1, deletionTimestamp: '2026-01-02T03:04:05Z'"), down: downstream, want: "should have 0"},
		"deleted upstream, yielded":    {up: change(upstream, "uid: u1", "uid: u1, deletionTimestamp: '2026-01-02T03:04:05Z'"), down: downstream, yields: true, want: "should have 0"},
		"not observed":                 {up: upstream, down: change(downstream, "observedGeneration: 3", "observedGeneration: 2"), want: "has not processed the change"},
		"never observed":               {up: upstream, down: change(downstream, "observedGeneration: 3", "phase: New"), want: "has not processed the change"},
		"the default of replicas is 1": {up: change(upstream, "replicas: 2", "a: 1"), down: change(downstream, "replicas: 2", "a: 1")},
		"no fence":                     {up: change(upstream, "workloads.kcp.dev/fence-after: 30s", "a: b"), down: change(change(downstream, "workloads.kcp.dev/fence-after: 30s, ", ""), "replicas: 2", "replicas: 5")},
		"a fence that is new upstream": {up: upstream, down: change(change(downstream, "workloads.kcp.dev/fence-after: 30s, ", ""), "replicas: 2", "replicas: 5"), want: "should have 2"},
		"another owner downstream":     {down: change(downstream, ", workloads.kcp.dev/upstream-uid: u1", "")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := renewal.Behind(parse(t, tc.up), parse(t, tc.down), func(_, _ *unstructured.Unstructured) bool { return tc.yields })
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("Behind = %q, want %q", got, tc.want)
			}
		})
	}
}

func parse(t *testing.T, text string) []unstructured.Unstructured {
	t.Helper()
	if text == "" {
		return nil
	}
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var o unstructured.Unstructured
	if err := o.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return []unstructured.Unstructured{o}
}
