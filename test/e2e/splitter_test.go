package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// Hints that keep a root on clusters of one kind.
const (
	onRik        = "kind=rik"
	onKubernetes = "kind=kubernetes"
)

// TestPrivilegedSplitter splits roots over rik clusters, which run them, and a Kubernetes, which
// simulates that. All cases share one fleet. They run one after the other, and leave nothing in
// the clusters.
func TestPrivilegedSplitter(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	f := startFleet(t)
	f.register("north", "south", "east", "west")
	for i, tc := range []struct {
		name string
		run  func(*splitCase)
	}{
		{"a root is divided, and its status is the sum", dividedAndSummed},
		{"a root is rescaled", rescaled},
		{"a user changes and deletes leaves", leavesByHand},
		{"services and ingresses follow", servicesFollow},
		{"the strategy table", strategyTable},
		{"clusters that are not ready lose their parts after the grace period", notReady},
		{"hints", hintsCount},
		{"dependencies arrive before the root and leave after it", dependenciesFollow},
		{"a template reads its dependencies", dependenciesAreRead},
		{"clusters leave and come", clustersLeaveAndCome},
		{"any type", anyType},
		{"a template is rolled out cluster by cluster", rolledOut},
		{"the result is as planned", planIsOutcome},
		{"a fenced root never has more than its replicas", fencedNeverExceeds},
		{"the kcp is killed", killedKCP},
		{"no clusters", noClusters},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(f.newCase(t, fmt.Sprintf("case-%d", i))) })
	}
}

// dividedAndSummed tests what a user sees who knows nothing about clusters.
func dividedAndSummed(c *splitCase) {
	c.why("deployment/web")
	c.deploy("web", 10, map[string]string{"clusters": onKubernetes})
	c.rests("web", parts{"north": 5, "south": 5})
	if out := c.kubectl("rollout", "status", "deployment/web", "--timeout=60s"); !strings.Contains(out, "successfully rolled out") {
		c.tb.Errorf("the rollout says %q", out)
	}
	c.kubectl("wait", "--for=condition=Available", "deployment", "web", "web--north", "web--south", "--timeout=60s")
	leaves, err := c.leaves(deployments, "web")
	if err != nil {
		c.tb.Fatal(err)
	}
	for cluster, leaf := range leaves {
		owner := metav1.GetControllerOf(leaf)
		if leaf.GetName() != "web--"+cluster || leaf.GetLabels()["app"] != "web" || owner == nil || owner.Name != "web" || owner.Kind != "Deployment" {
			c.tb.Errorf("the leaf of %s is %s with the labels %v, of %v", cluster, leaf.GetName(), leaf.GetLabels(), owner)
		}
	}
	c.hints("web", map[string]string{"clusters": ""})
	// Ten over four: the remainder stays where replicas already run, so that none is moved for
	// it.
	c.rests("web", parts{"east": 2, "north": 3, "south": 3, "west": 2})
	c.remove("web")
}

func rescaled(c *splitCase) {
	c.why("deployment/web")
	c.deploy("web", 10, map[string]string{"clusters": onKubernetes})
	for _, step := range []struct {
		replicas int
		want     parts
	}{
		{10, parts{"north": 5, "south": 5}},
		{7, parts{"north": 4, "south": 3}},
		{1, parts{"north": 1}},
		{0, parts{}},
		{12, parts{"north": 6, "south": 6}},
	} {
		c.kubectl("scale", "deployment", "web", fmt.Sprintf("--replicas=%d", step.replicas))
		c.rests("web", step.want)
	}
	c.remove("web")
}

// leavesByHand checks that manual changes of leaves, upstream and downstream, are corrected, and
// that deleted leaves come back.
func leavesByHand(c *splitCase) {
	c.why("deployment/web")
	want := parts{"north": 2, "south": 2}
	c.deploy("web", 4, map[string]string{"clusters": onKubernetes})
	c.rests("web", want)
	c.kubectl("scale", "deployment", "web--north", "--replicas=9")
	c.kubectl("label", "deployment", "web--south", "app-")
	c.rests("web", want)
	c.eventually(func() error {
		leaves, err := c.leaves(deployments, "web")
		if err == nil && leaves["south"].GetLabels()["app"] != "web" {
			err = fmt.Errorf("the labels of the leaf are %v", leaves["south"].GetLabels())
		}
		return err
	})
	c.kubectl("delete", "deployment", "web--north", "--timeout=60s")
	c.rests("web", want)

	namespace, err := c.namespaceIn("south")
	if err != nil {
		c.tb.Fatal(err)
	}
	mergePatch(c.tb, c.down["south"].Resource(deployments).Namespace(namespace), "web--south", `{"spec":{"replicas":7}}`)
	c.eventually(func() error {
		leaf, err := c.has("south", deployments, "web--south")
		if n, _, _ := unstructured.NestedInt64(leaf.Object, "spec", "replicas"); err == nil && n != 2 {
			err = fmt.Errorf("it has %d replicas in south, want 2", n)
		}
		return err
	})
	c.rests("web", want)
	c.remove("web")
}

// hintsCount tests the settings of a Placement, and of annotations, which override them.
func hintsCount(c *splitCase) {
	c.why("deployment/web")
	c.deploy("web", 8, nil)
	c.create(placements, `
apiVersion: workload.kcp.dev/v1alpha1
kind: Placement
metadata: {name: web}
spec:
  targetRef: {group: apps, kind: Deployment, name: web}
  strategy: weighted
  weights: [{cluster: north, weight: 3}, {cluster: south, weight: 1}]
  clusters: {matchLabels: {kind: kubernetes}}
`)
	c.rests("web", parts{"north": 6, "south": 2})

	// An annotation in addition to the Placement excludes one of them.
	c.hints("web", map[string]string{"not-clusters": "workloads.kcp.dev/cluster=north"})
	c.rests("web", parts{"south": 8})
	c.hints("web", map[string]string{"not-clusters": "", "strategy": "even"})
	c.rests("web", parts{"north": 4, "south": 4})

	// A taint evicts it, unless it is tolerated.
	c.patchCluster("south", `{"spec":{"taints":[{"key":"spot","value":"yes","effect":"NoExecute"}]}}`)
	c.rests("web", parts{"north": 8})
	c.hints("web", map[string]string{"tolerations": "spot=yes:NoExecute"})
	c.rests("web", parts{"north": 4, "south": 4})
	c.patchCluster("south", `{"spec":{"taints":null}}`)

	// An invalid hint changes nothing, and the root's status reports the mistake.
	c.hints("web", map[string]string{"weights": "north:9"})
	c.scale("web", 2)
	c.eventually(func() error {
		root, err := c.up.Resource(deployments).Namespace(c.namespace).Get(c.tb.Context(), "web", metav1.GetOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(root.Object["status"]), `"north:9" is not CLUSTER=NUMBER`) {
			err = fmt.Errorf("the root does not say what is wrong: %v", root.Object["status"])
		}
		return err
	})
	if err := c.isDivided("web", parts{"north": 4, "south": 4}); err != nil {
		c.tb.Errorf("with a hint that cannot be read: %v", err)
	}
	c.hints("web", map[string]string{"weights": ""})
	c.rests("web", parts{"north": 1, "south": 1})
	c.remove("web")
}

// clustersLeaveAndCome tests that an unregistered cluster keeps its objects, and that their
// replicas are replaced elsewhere. When it is registered again, it gets parts, no more at a time
// than the root allows.
func clustersLeaveAndCome(c *splitCase) {
	c.why("deployment/web")
	c.deploy("web", 8, map[string]string{"clusters": onKubernetes})
	c.rests("web", parts{"north": 4, "south": 4})
	namespace, err := c.namespaceIn("south")
	if err != nil {
		c.tb.Fatal(err)
	}
	c.fleet.do("rikctl", "cluster", "unregister", "south")
	c.restsAside("web", parts{"north": 8})
	c.eventually(func() error {
		leaves, err := c.leaves(deployments, "web")
		if err == nil && leaves["south"] != nil {
			err = fmt.Errorf("the leaf of the cluster that left is there still: %v", leaves["south"].Object)
		}
		return err
	})
	left, err := c.down["south"].Resource(deployments).Namespace(namespace).Get(c.tb.Context(), "web--south", metav1.GetOptions{})
	if err != nil {
		c.tb.Fatalf("the cluster's own objects changed: %v", err)
	}
	if n, _, _ := unstructured.NestedInt64(left.Object, "status", "readyReplicas"); n != 4 {
		c.tb.Errorf("%d are ready in the cluster that left, want the 4 that it had", n)
	}

	c.hints("web", map[string]string{"max-moves": "2/1h"})
	delete(c.below, "south")
	c.register("south")
	c.rests("web", parts{"north": 6, "south": 2})
	c.hints("web", map[string]string{"max-moves": ""})
	c.rests("web", parts{"north": 4, "south": 4})
	c.remove("web")
	// The detached objects belong to the cluster now.
	if err := c.down["south"].Resource(namespaces).Delete(c.tb.Context(), namespace, metav1.DeleteOptions{}); err != nil {
		c.tb.Fatal(err)
	}
}

// rolledOut changes the template: the rollout reaches one cluster after the other, and stops at
// a cluster in which it fails.
func rolledOut(c *splitCase) {
	c.why("deployment/web")
	c.create(deployments, strings.Replace(c.root("web", 4, map[string]string{"clusters": onRik}), "  replicas: 4\n", "  replicas: 4\n  progressDeadlineSeconds: 10\n", 1))
	both := parts{"east": 2, "west": 2}
	c.rests("web", both)
	c.kubectl("set", "env", "deployment/web", "EDITION=2")
	c.inTurn("EDITION=2")
	c.rests("web", both)
	if err := c.environment("EDITION=2", both); err != nil {
		c.tb.Error(err)
	}

	c.kubectl("set", "image", "deployment/web", "hello=oci:/nowhere/of/this/machine:v1")
	c.awaitCondition("web", "Progressing", "False ProgressDeadlineExceeded")
	leaves, err := c.leaves(deployments, "web")
	if err != nil {
		c.tb.Fatal(err)
	}
	if got := imageOf(leaves["west"]); got != c.image {
		c.tb.Errorf("west has the image %s although it fails in east", got)
	}
	if n, _ := c.running("west", "web"); n != 2 {
		c.tb.Errorf("%d run in west, want 2", n)
	}
	if n, _ := c.running("east", "web"); n == 0 {
		c.tb.Error("none runs in east: a rollout that fails took the old ones away")
	}
	c.kubectl("set", "image", "deployment/web", "hello="+c.image)
	c.rests("web", both)
	c.remove("web")
}

// inTurn watches a new environment variable reach the leaves: west's must not have it before
// east's is done.
func (c *splitCase) inTurn(want string) {
	c.tb.Helper()
	c.eventually(func() error {
		// Read west first, so that what is read of east is newer.
		leaves, err := c.leaves(deployments, "web")
		if err != nil {
			return err
		}
		if !strings.Contains(fmt.Sprint(leaves["west"].Object["spec"]), strings.SplitN(want, "=", 2)[0]) {
			return fmt.Errorf("west does not have %s yet", want)
		}
		east := leaves["east"]
		updated, _, _ := unstructured.NestedInt64(east.Object, "status", "updatedReplicas")
		available, _, _ := unstructured.NestedInt64(east.Object, "status", "availableReplicas")
		if updated != 2 || available < 2 {
			c.tb.Errorf("west has %s while in east %d are updated and %d available of 2", want, updated, available)
		}
		return nil
	})
}

// environment returns an error unless the processes of both rik clusters have a variable.
func (c *splitCase) environment(want string, in parts) error {
	for cluster, n := range in {
		got := 0
		for _, processes := range c.rik[cluster].InstanceProcesses("hello") {
			for _, p := range processes {
				if slices.Contains(environ(p.PID), want) {
					got++
				}
			}
		}
		if got != n {
			return fmt.Errorf("%d processes in %s have %s, want %d", got, cluster, want, n)
		}
	}
	return nil
}

func imageOf(deployment *unstructured.Unstructured) string {
	containers, _, _ := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	if len(containers) == 0 {
		return ""
	}
	image, _ := containers[0].(map[string]any)["image"].(string)
	return image
}

// killedKCP kills the kcp between a change and its effects.
func killedKCP(c *splitCase) {
	c.why("deployment/web")
	c.deploy("web", 4, map[string]string{"clusters": onKubernetes})
	c.rests("web", parts{"north": 2, "south": 2})
	c.scale("web", 10)
	c.process.Kill()
	c.start(c.whole)
	c.rests("web", parts{"north": 5, "south": 5})
	c.remove("web")
}

// noClusters must be last: all clusters are unregistered, each keeps its objects, and the root's
// status reports it.
func noClusters(c *splitCase) {
	c.why("deployment/web")
	c.deploy("web", 4, nil)
	c.rests("web", parts{"east": 1, "north": 1, "south": 1, "west": 1})
	all := slices.Sorted(maps.Keys(c.down))
	for _, cluster := range all {
		// Prevent that one cluster takes the parts of another.
		c.patchCluster(cluster, `{"spec":{"unschedulable":true}}`)
	}
	for _, cluster := range all {
		c.fleet.do("rikctl", "cluster", "unregister", cluster)
	}
	c.awaitCondition("web", "Progressing", "False NoRegisteredClusters")
	for cluster := range c.rik {
		if n, err := c.running(cluster, "web"); n != 1 || err != nil {
			c.tb.Errorf("%d run in %s, want what it had (%v)", n, cluster, err)
		}
	}
}

var placements = workloadv1alpha1.SchemeGroupVersion.WithResource("placements")
