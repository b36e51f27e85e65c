package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// predicted has the compared parts of the output of rikctl plan and rikctl whatif for a root.
type predicted struct {
	Name     string
	Clusters []struct {
		Cluster string
		End     *struct{ Has int }
	}
	Then map[string]int
}

// ends returns the parts at the end.
func (f predicted) ends() parts {
	got := parts{}
	for _, c := range f.Clusters {
		if c.End != nil && c.End.Has > 0 {
			got[c.Cluster] = c.End.Has
		}
	}
	return got
}

// planIsOutcome plans several changes. For each it checks that planning changes nothing, applies
// the change, and compares the result with the plan. The changes are a new root, another number
// of replicas, a Placement, and at last the loss of a cluster.
func planIsOutcome(c *splitCase) {
	c.why("deployment/web")
	everywhere := parts{"east": 3, "north": 3, "south": 2, "west": 2}
	steps := []struct {
		what, manifest string
		want           parts
	}{
		{"a new root", c.root("web", 10, map[string]string{"grace-period": "1s"}), everywhere},
		{"another number", c.root("web", 5, map[string]string{"grace-period": "1s"}), parts{"east": 2, "north": 1, "south": 1, "west": 1}},
		{"a Placement", `
apiVersion: workload.kcp.dev/v1alpha1
kind: Placement
metadata: {name: all}
spec:
  selector: {}
  strategy: weighted
  weights: [{cluster: west, weight: 2}, {cluster: east, weight: 3}]
  clusters: {matchLabels: {kind: rik}}
`, parts{"east": 3, "west": 2}},
	}
	before := parts{}
	for _, step := range steps {
		file := filepath.Join(c.tb.TempDir(), "planned.yaml")
		if err := os.WriteFile(file, []byte(step.manifest), 0o600); err != nil {
			c.tb.Fatal(err)
		}
		out := c.try("rikctl", "-n", c.namespace, "plan", "-f", file, "-o", "json")
		if out.Code != 1 {
			c.tb.Fatalf("the plan of %s ends with code %d, want 1: there are changes\n%s%s", step.what, out.Code, out.Stdout, out.Stderr)
		}
		var plan []predicted
		if err := json.Unmarshal([]byte(out.Stdout), &plan); err != nil || len(plan) != 1 {
			c.tb.Fatalf("the plan of %s: %v\n%s", step.what, err, out.Stdout)
		}
		if got := plan[0].ends(); !maps.Equal(got, step.want) {
			c.tb.Errorf("the plan of %s says %v, want %v\n%s", step.what, got, step.want, out.Stdout)
		}
		if err := c.isDivided("web", before); err != nil {
			c.tb.Errorf("planning %s has changed something: %v", step.what, err)
		}
		c.kubectl("apply", "-f", file)
		c.rests("web", plan[0].ends())
		if out := c.try("rikctl", "-n", c.namespace, "plan", "-f", file); out.Code != 0 {
			c.tb.Errorf("the plan of what there is, %s, ends with code %d\n%s%s", step.what, out.Code, out.Stdout, out.Stderr)
		}
		before = step.want
	}
	c.losingWest(before)
	c.remove("web")
}

// losingWest runs whatif for the loss of west, and then disconnects it.
func (c *splitCase) losingWest(before parts) {
	c.tb.Helper()
	out := c.do("rikctl", "whatif", "--lose-cluster", "west", "deployment/web", "-o", "json")
	var impact struct{ Changes []predicted }
	if err := json.Unmarshal([]byte(out), &impact); err != nil || len(impact.Changes) != 1 {
		c.tb.Fatalf("what if west is lost: %v\n%s", err, out)
	}
	then := parts{}
	for cluster, n := range impact.Changes[0].Then {
		if n > 0 {
			then[cluster] = n
		}
	}
	if want := (parts{"east": 5}); !maps.Equal(then, want) {
		c.tb.Errorf("if west is lost it is divided %v, want %v\n%s", then, want, out)
	}
	if err := c.isDivided("web", before); err != nil {
		c.tb.Errorf("asking has changed something: %v", err)
	}
	c.site["west"].Unplug()
	defer c.site["west"].Plug()
	c.restsAside("web", then)
	c.site["west"].Plug()
	c.awaitCluster("west", metav1.ConditionTrue)
	c.rests("web", before)
}

// fencedNeverExceeds disconnects a cluster until the replicas of a fenced root there are
// replaced, and counts everything that runs all the time.
func fencedNeverExceeds(c *splitCase) {
	c.why("deployment/web")
	const whole = 4
	c.eventually(func() error { return c.fences("east", "west") })
	c.deploy("web", whole, map[string]string{
		"clusters": onRik, "grace-period": "1s", "max-surge": "0", "workloads.kcp.dev/fence-after": "10s",
	})
	both := parts{"east": 2, "west": 2}
	c.rests("web", both)
	c.site["west"].Unplug()
	defer c.site["west"].Plug()
	// The replicas must stop in west before they are replaced in east.
	most := 0
	stopped := false
	c.eventually(func() error {
		// Read west first, so that a replica that moves in between is counted twice, not zero
		// times.
		west, _ := c.running("west", "web")
		east, _ := c.running("east", "web")
		most = max(most, west+east)
		stopped = stopped || west == 0
		if east != whole {
			return fmt.Errorf("%d run in east and %d in west", east, west)
		}
		return nil
	})
	if most > whole {
		c.tb.Errorf("%d replicas ran at once, want at most %d", most, whole)
	}
	if !stopped {
		c.tb.Error("west was never seen without replicas")
	}
	c.site["west"].Plug()
	c.awaitCluster("west", metav1.ConditionTrue)
	c.eventually(func() error {
		west, _ := c.running("west", "web")
		east, _ := c.running("east", "web")
		if west+east > whole {
			c.tb.Errorf("%d run in east and %d in west after it came back", east, west)
		}
		return c.isDivided("web", both)
	})
	c.rests("web", both)
	c.remove("web")
}

// fences returns an error unless the clusters report that they can fence.
func (c *splitCase) fences(names ...string) error {
	for _, name := range names {
		cluster, err := c.cluster(name)
		if err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(cluster.Status.Conditions, workloadv1alpha1.ConditionFencing) {
			return fmt.Errorf("%s cannot fence: %+v", name, cluster.Status.Conditions)
		}
	}
	return nil
}
