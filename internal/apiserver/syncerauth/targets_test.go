package syncerauth

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

func object(labels map[string]string, finalizers ...string) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Labels: labels, Finalizers: finalizers}
}

func following(labels map[string]string, clusters string) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"workloads.kcp.dev/follows": clusters}}
}

func TestTouched(t *testing.T) {
	t.Parallel()
	cluster := func(name string) map[string]string { return map[string]string{"workloads.kcp.dev/cluster": name} }
	target := func(name, value string) map[string]string {
		return map[string]string{"sync.workloads.kcp.dev/" + name: value}
	}
	for _, tc := range []struct {
		name        string
		before, now *metav1.ObjectMeta
		want        []string
	}{
		{"no labels", none, object(nil), nil},
		{"set at creation", none, object(cluster("east")), []string{"east"}},
		{"kept", object(cluster("east")), object(cluster("east")), nil},
		{"moved", object(cluster("east")), object(cluster("west")), []string{"east", "west"}},
		{"taken away", object(cluster("east")), object(nil), []string{"east"}},
		{"the other form", object(cluster("east")), object(target("east", "true")), nil},
		{"shared", object(cluster("east")), object(map[string]string{"workloads.kcp.dev/cluster": "east", "sync.workloads.kcp.dev/west": "true"}), []string{"west"}},
		{"switched off", object(target("east", "true")), object(target("east", "false")), []string{"east"}},
		{"never on", object(target("east", "false")), object(nil), nil},
		{"a syncer's finalizer", object(nil), object(nil, "syncer.workloads.kcp.dev/east", "other"), []string{"east"}},
		{"taken back", object(nil, "syncer.workloads.kcp.dev/east"), object(nil), nil},
		{"given to the splitter", object(target("east", "true")), following(target("east", "true"), "east"), []string{"east"}},
		{"taken from the splitter", following(nil, "east,west"), following(nil, "west"), []string{"east"}},
		{"another label", object(nil), object(map[string]string{"app": "east"}), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, touched(tc.before, tc.now), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("touched() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]map[string]bool{
		"workloads.kcp.dev/cluster":   {"east": false, "": false, "a.b": true, "East": true},
		"sync.workloads.kcp.dev/east": {"true": false, "false": true, "": true, "yes": true},
		"sync.workloads.kcp.dev/a.b":  {"true": true},
		"app":                         {"a.b": false},
	} {
		for value, bad := range want {
			now := object(map[string]string{key: value})
			if err := malformed(none, now); (err != nil) != bad {
				t.Errorf("malformed(%s=%s) = %v, want an error: %v", key, value, err, bad)
			}
			if err := malformed(now, now); err != nil {
				t.Errorf("malformed(%s=%s), which was there before, = %v", key, value, err)
			}
		}
	}
}

// labelSets draws labels that are targets, or look like targets.
func labelSets() *rapid.Generator[map[string]string] {
	keys := []string{"workloads.kcp.dev/cluster", "sync.workloads.kcp.dev/a", "sync.workloads.kcp.dev/b", "app"}
	return rapid.MapOf(rapid.SampledFrom(keys), rapid.SampledFrom([]string{"a", "b", "true", "false", ""}))
}

// TestEveryChangeOfTargetsIsSeen: without permission for a cluster, no write adds or removes
// that cluster as a target.
func TestEveryChangeOfTargetsIsSeen(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		before, now := object(labelSets().Draw(t, "before")), object(labelSets().Draw(t, "now"))
		names := touched(before, now)
		for _, cluster := range []string{"a", "b", "true", "false"} {
			changed := slices.Contains(workloadv1alpha1.Targets(before.Labels), cluster) != slices.Contains(workloadv1alpha1.Targets(now.Labels), cluster)
			if changed != slices.Contains(names, cluster) {
				t.Fatalf("touched(%v, %v) = %v, and %s changed: %v", before.Labels, now.Labels, names, cluster, changed)
			}
		}
		if concerned := concerns(now, "a"); !concerns(before, "a") && concerned && !slices.Contains(names, "a") {
			t.Fatal("the syncer of a came to see an object without leave")
		}
	})
}
