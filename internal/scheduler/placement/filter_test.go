package placement

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// TestFilters checks one filter per case. Each case has a node that the filter must reject and
// a node that it must accept.
func TestFilters(t *testing.T) {
	t.Parallel()
	gpu := func(c *ShapeConfig) { c.Template.NodeSelector = map[string]string{"gpu": "yes"} }
	newer := func(c *ShapeConfig) {
		affinityOf(c).NodeRequired = []rikv1alpha1.NodeTerm{{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "generation", Operator: metav1.LabelSelectorOpIn, Values: []string{"3", "4"}},
		}}}
	}
	function := func(c *ShapeConfig) {
		c.Template.Kind = rikv1alpha1.KindFunction
		c.Template.Containers = nil
		c.Template.Function = &rikv1alpha1.Function{}
	}
	app := func(c *ShapeConfig) {
		c.Template.Kind, c.Template.Containers, c.Template.App = rikv1alpha1.KindApp, nil, &rikv1alpha1.App{}
	}
	both := runs(rikv1alpha1.KindPod, rikv1alpha1.KindFunction)
	tests := map[string]struct {
		bad, good Node
		shape     []func(*ShapeConfig)
		milli     int64
		// on is the shape of an earlier workload, "other", placed on the node "bad" (or on the
		// node "good" if elsewhere is set).
		on        []func(*ShapeConfig)
		elsewhere bool
		filter    string
		reason    string
	}{
		"readiness": {
			bad:    testNode("bad", func(n *Node) { n.Ready, n.NotReady = false, "not connected" }),
			good:   testNode("good"),
			filter: "Readiness", reason: "not connected",
		},
		"cordon": {
			bad: testNode("bad", func(n *Node) { n.Unschedulable = true }), good: testNode("good"),
			filter: "Unschedulable", reason: "unschedulable",
		},
		"disk pressure": {
			bad: testNode("bad", func(n *Node) { n.DiskPressure = true }), good: testNode("good"),
			filter: "DiskPressure", reason: "disk pressure",
		},
		"taint": {
			bad: testNode("bad", taint("dedicated", rikv1alpha1.TaintNoSchedule)), good: testNode("good"),
			filter: "Taints", reason: "dedicated:NoSchedule",
		},
		"executing taint": {
			bad: testNode("bad", taint("broken", rikv1alpha1.TaintNoExecute)), good: testNode("good"),
			filter: "Taints", reason: "broken:NoExecute",
		},
		"tolerated taint": {
			bad:  testNode("bad", taint("other", rikv1alpha1.TaintNoSchedule)),
			good: testNode("good", taint("mine", rikv1alpha1.TaintNoSchedule)),
			shape: []func(*ShapeConfig){func(c *ShapeConfig) {
				c.Template.Tolerations = []rikv1alpha1.Toleration{{Key: "mine", Operator: rikv1alpha1.TolerationExists}}
			}},
			filter: "Taints", reason: "other:NoSchedule",
		},
		"selector": {
			bad: testNode("bad", label("gpu", "no")), good: testNode("good", label("gpu", "yes")),
			shape: []func(*ShapeConfig){gpu}, filter: "NodeSelector", reason: "gpu=yes",
		},
		"node affinity": {
			bad: testNode("bad", label("generation", "2")), good: testNode("good", label("generation", "4")),
			shape: []func(*ShapeConfig){newer}, filter: "NodeAffinity", reason: "any of the node terms: generation in (3,4)",
		},
		"kind": {
			bad: testNode("bad"), good: testNode("good", both),
			shape: []func(*ShapeConfig){function}, filter: "MicroVMs", reason: "cannot run microVMs",
		},
		"pod in a microVM": {
			bad: testNode("bad", runs(rikv1alpha1.KindPod, rikv1alpha1.KindApp)), good: testNode("good", both),
			shape: []func(*ShapeConfig){virtual}, filter: "MicroVMs", reason: "cannot run microVMs",
		},
		"app": {
			bad: testNode("bad", both), good: testNode("good", runs(rikv1alpha1.KindApp)),
			shape: []func(*ShapeConfig){app}, filter: "WorkloadKind", reason: "App",
		},
		"memory of a microVM": {
			bad:   testNode("bad", both, func(n *Node) { n.Allocatable.MemoryBytes = 255 << 20 }),
			good:  testNode("good", both, func(n *Node) { n.Allocatable.MemoryBytes = 256 << 20 }),
			shape: []func(*ShapeConfig){function}, filter: "Resources", reason: "needs 256Mi of memory, 255Mi free",
		},
		"runtime": {
			bad:    testNode("bad"),
			good:   testNode("good", func(n *Node) { n.Runtimes = []string{"runc", "runsc"} }),
			shape:  []func(*ShapeConfig){func(c *ShapeConfig) { c.Template.Runtime = "runsc" }},
			filter: "Runtime", reason: "runsc",
		},
		"network": {
			bad: testNode("bad", noNetwork), good: testNode("good"),
			shape:  []func(*ShapeConfig){port(80)},
			filter: "Network", reason: "the node has no network for instances, and this workload serves ports",
		},
		"network of an App": {
			bad:    testNode("bad", runs(rikv1alpha1.KindApp), noNetwork),
			good:   testNode("good", runs(rikv1alpha1.KindApp)),
			shape:  []func(*ShapeConfig){app, func(c *ShapeConfig) { c.Template.App.Ports = []rikv1alpha1.Port{{Port: 80}} }},
			filter: "Network", reason: "no network for instances",
		},
		"network of a Function": {
			bad: testNode("bad", both, noNetwork), good: testNode("good", both),
			shape:  []func(*ShapeConfig){function, func(c *ShapeConfig) { c.Template.Function.Exposure = &rikv1alpha1.Port{Port: 80} }},
			filter: "Network", reason: "no network for instances",
		},
		"cpu": {
			bad:  testNode("bad", func(n *Node) { n.Allocatable.MilliCPU = 100 }),
			good: testNode("good"), milli: 200, filter: "Resources", reason: "200m cpu, 100m free",
		},
		"cpu in use": {
			bad: testNode("bad"), good: testNode("good", func(n *Node) { n.Allocatable.MilliCPU = 8000 }),
			on: []func(*ShapeConfig){}, milli: 3000, filter: "Resources", reason: "1000m free",
		},
		"instances": {
			bad:  testNode("bad", func(n *Node) { n.Allocatable.Instances = 0 }),
			good: testNode("good"), filter: "Resources", reason: "at most 0 instances",
		},
		"port in the node's network": {
			bad: testNode("bad"), good: testNode("good"), on: []func(*ShapeConfig){hostPort(80)},
			shape: []func(*ShapeConfig){hostPort(80)}, filter: "HostPorts", reason: "in use",
		},
		"port of the machine, wanted in its network": {
			bad: testNode("bad", uses(22, 8080)), good: testNode("good", uses(22)),
			shape: []func(*ShapeConfig){hostPort(8080)}, filter: "HostPorts", reason: "port 8080/TCP is used by the machine itself",
		},
		"port of the machine, wanted on all nodes": {
			bad: testNode("bad", uses(8080)), good: testNode("good"),
			shape: []func(*ShapeConfig){nodePort(8080)}, filter: "HostPorts", reason: "port 8080/TCP is used by the machine itself",
		},
		"a network that does not work": {
			bad: testNode("bad", brokenNetwork), good: testNode("good"),
			filter: "Network", reason: "the node's network does not work: port 53 is taken",
		},
		"port of the machine's loopback, wanted in its network": {
			bad: testNode("bad", binds(8080)), good: testNode("good"),
			shape: []func(*ShapeConfig){hostPort(8080)}, filter: "HostPorts", reason: "port 8080/TCP is used by the machine itself",
		},
		"port of the machine, next to one of its loopback": {
			bad: testNode("bad", uses(8080)), good: testNode("good", binds(8080)),
			shape: []func(*ShapeConfig){nodePort(8080)}, filter: "HostPorts", reason: "port 8080/TCP is used by the machine itself",
		},
		"anti-affinity on the node": {
			bad: testNode("bad"), good: testNode("good"), on: []func(*ShapeConfig){},
			shape:  []func(*ShapeConfig){forbid("other", rikv1alpha1.LabelHostname)},
			filter: "InstanceAntiAffinity", reason: "instances it must be apart from, those with rik.dev/workload=other over " + rikv1alpha1.LabelHostname,
		},
		"anti-affinity of the other": {
			bad: testNode("bad"), good: testNode("good"),
			on:     []func(*ShapeConfig){forbid("mine", rikv1alpha1.LabelHostname)},
			filter: "InstanceAntiAffinity", reason: "instances that must be apart from those with " + rikv1alpha1.LabelWorkload + "=mine over " + rikv1alpha1.LabelHostname,
		},
		"anti-affinity over zones": {
			bad: testNode("bad", zone("a")), good: testNode("good", zone("b")), on: []func(*ShapeConfig){},
			shape:  []func(*ShapeConfig){forbid("other", rikv1alpha1.LabelZone)},
			filter: "InstanceAntiAffinity", reason: "instances it must be apart from, those with " + rikv1alpha1.LabelWorkload + "=other over " + rikv1alpha1.LabelZone,
		},
		"anti-affinity of the other over zones": {
			bad: testNode("bad", zone("a")), good: testNode("good", zone("b")),
			on:     []func(*ShapeConfig){forbid("mine", rikv1alpha1.LabelZone)},
			filter: "InstanceAntiAffinity", reason: "instances that must be apart from those with " + rikv1alpha1.LabelWorkload + "=mine over " + rikv1alpha1.LabelZone,
		},
		"affinity": {
			bad: testNode("bad", zone("a")), good: testNode("good", zone("b")),
			on: []func(*ShapeConfig){}, elsewhere: true,
			shape:  []func(*ShapeConfig){require("other", rikv1alpha1.LabelZone)},
			filter: "InstanceAffinity", reason: "away from the instances it must be with, those with " + rikv1alpha1.LabelWorkload + "=other over " + rikv1alpha1.LabelZone,
		},
		"topology spread": {
			bad: testNode("bad", func(n *Node) { delete(n.Labels, rikv1alpha1.LabelHostname) }), good: testNode("good", label("rack", "1")),
			shape:  []func(*ShapeConfig){spread("rack", 1, rikv1alpha1.DoNotSchedule)},
			filter: "TopologySpread", reason: "the node has no label rack: one more would break the topology spread: maxSkew 1 over rack",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := cluster(tc.bad, tc.good)
			shape := testShape(t, "mine", tc.milli, tc.shape...)
			// The view is created before the other workload is placed, so that the case also
			// covers the incremental update.
			Place(s, Request{Shape: shape})
			if tc.on != nil {
				on := "bad"
				if tc.elsewhere {
					on = "good"
				}
				s.Put(Occupant{UID: "other", Shape: testShape(t, "other", tc.milli, tc.on...), Node: on})
			}
			if got := Place(s, Request{Shape: shape}); got.Node != "good" {
				t.Errorf("Place() = %+v, want node good", got)
			}
			e := Explain(s, Request{Shape: shape})
			bad, good := e.Results[0], e.Results[1]
			if bad.Filter != tc.filter || !strings.Contains(bad.Reason, tc.reason) {
				t.Errorf("outcome on bad = %q %q, want %q with %q", bad.Filter, bad.Reason, tc.filter, tc.reason)
			}
			if good.Filter != "" || good.Score == 0 {
				t.Errorf("outcome on good = %+v, want a score", good)
			}
			s.RemoveNode("good")
			if got := Place(s, Request{Shape: shape}); got.Node != "" || got.Reason == "" || got.Message == "" {
				t.Errorf("Place() without good = %+v, want an explanation", got)
			}
		})
	}
}

func TestNodePortBelongsToOneWorkload(t *testing.T) {
	t.Parallel()
	s := cluster(testNode("a"), testNode("b"))
	web, rival := testShape(t, "web", 0, nodePort(30080)), testShape(t, "rival", 0, nodePort(30080))
	hostRival := testShape(t, "host", 0, hostPort(30080))
	if got := fill(s, web, 2); got["a"] != 1 || got["b"] != 1 {
		t.Fatalf("replicas of one workload share the port: got %v, want one on each", got)
	}
	balancedRival := testShape(t, "balanced", 0, balanced(30080))
	for name, shape := range map[string]*Shape{"node port": rival, "host network": hostRival, "load balancer": balancedRival} {
		d := Place(s, Request{Shape: shape})
		if d.Node != "" || d.Reason != "HostPortTaken" || !strings.Contains(d.Message, "30080") {
			t.Errorf("%s rival: Place() = %+v, want HostPortTaken", name, d)
		}
	}
	s.Remove("uid-0")
	s.Remove("uid-1")
	if d := Place(s, Request{Shape: rival}); d.Node == "" || len(d.HostPorts) != 1 || d.HostPorts[0] != 30080 {
		t.Errorf("Place() after release = %+v, want a node and port 30080", d)
	}
}

// TestPortsOfTheMachine: a port that cannot be reserved is refused with a helpful message. The
// shape is evaluated again when the port is free.
func TestPortsOfTheMachine(t *testing.T) {
	t.Parallel()
	s := cluster(testNode("a", uses(30080)))
	shape := testShape(t, "web", 0, balanced(30080))
	d := Place(s, Request{Shape: shape})
	if want := "0 of 1 nodes fit: 1 with a port used by the machine itself (port 30080/TCP on a)"; d.Reason != "HostPortTaken" || d.Message != want {
		t.Errorf("Place() = %+v, want HostPortTaken: %s", d, want)
	}
	udp := testShape(t, "dns", 0, func(c *ShapeConfig) {
		c.Template.Containers[0].Ports = []rikv1alpha1.Port{{Port: 30080, Protocol: rikv1alpha1.ProtocolUDP, Type: rikv1alpha1.PortNodePort}}
	})
	if d := Place(s, Request{Shape: udp}); d.Node != "a" {
		t.Errorf("Place() of another protocol = %+v, want a", d)
	}
	s.SetNode(testNode("a"))
	if d := Place(s, Request{Shape: shape}); d.Node != "a" {
		t.Errorf("Place() with the port free = %+v, want a", d)
	}
}

// TestNodeWithoutNetwork: the node accepts instances without ports and instances in the host
// network. It accepts all instances once it has a network.
func TestNodeWithoutNetwork(t *testing.T) {
	t.Parallel()
	s := cluster(testNode("a", noNetwork))
	for name, shape := range map[string]*Shape{
		"no ports": testShape(t, "batch", 0), "host network": testShape(t, "host", 0, hostPort(80)),
	} {
		if d := Place(s, Request{Shape: shape}); d.Node != "a" {
			t.Errorf("%s: Place() = %+v, want a", name, d)
		}
	}
	web := testShape(t, "web", 0, port(80))
	d := Place(s, Request{Shape: web})
	if want := "0 of 1 nodes fit: 1 without a network for instances"; d.Reason != "NodesWithoutNetwork" || d.Message != want {
		t.Errorf("Place() = %+v, want NodesWithoutNetwork: %s", d, want)
	}
	s.SetNode(testNode("a"))
	if d := Place(s, Request{Shape: web}); d.Node != "a" {
		t.Errorf("Place() once it has a network = %+v, want a", d)
	}
}

func TestAffinityToItselfCanStart(t *testing.T) {
	t.Parallel()
	s := cluster(testNode("a", zone("1")), testNode("b", zone("2")), testNode("c", zone("2")))
	together := testShape(t, "pack", 0, require("pack", rikv1alpha1.LabelZone))
	fill(s, together, 6)
	first, _ := s.Where("uid-0")
	for i := range s.nodes {
		n := s.nodes[i]
		same := n.Labels[rikv1alpha1.LabelZone] == s.nodes[s.byName[first]].Labels[rikv1alpha1.LabelZone]
		if got := len(n.occupants) > 0; got && !same {
			t.Errorf("node %s in zone %s has instances, first is on %s", n.Name, n.Labels[rikv1alpha1.LabelZone], first)
		}
	}
	if s.Occupants() != 6 {
		t.Errorf("placed %d, want 6", s.Occupants())
	}
}

func TestSummaryNamesMicroVMs(t *testing.T) {
	t.Parallel()
	s := cluster(testNode("a"), testNode("b"), testNode("c", runs(rikv1alpha1.KindFunction), func(n *Node) { n.Unschedulable = true }))
	d := Place(s, Request{Shape: testShape(t, "vm", 0, virtual)})
	const want = "0 of 3 nodes fit: 2 not able to run microVMs, 1 unschedulable"
	if d.Node != "" || d.Reason != "MicroVMsNotSupported" || d.Message != want {
		t.Errorf("Place() = %+v, want nowhere because %q", d, want)
	}
}

func TestSelfAntiAffinityPlacesOnePerNode(t *testing.T) {
	t.Parallel()
	s := cluster(testNode("a"), testNode("b"), testNode("c"))
	got := fill(s, testShape(t, "db", 0, forbid("db", rikv1alpha1.LabelHostname)), 4)
	for _, name := range []string{"a", "b", "c", ""} {
		if got[name] != 1 {
			t.Errorf("placed on %q = %d, want 1 (%v)", name, got[name], got)
		}
	}
}

func TestSharedHostnameIsOnePlace(t *testing.T) {
	t.Parallel()
	twin := label(rikv1alpha1.LabelHostname, "twin")
	s := cluster(testNode("a", twin), testNode("b", twin), testNode("c"))
	got := fill(s, testShape(t, "db", 0, forbid("db", rikv1alpha1.LabelHostname)), 3)
	if got["a"]+got["b"] != 1 || got["c"] != 1 || got[""] != 1 {
		t.Errorf("placed %v, want one on the twins, one on c, one nowhere", got)
	}
}

func TestTopologySpread(t *testing.T) {
	t.Parallel()
	nodes := []Node{
		testNode("a1", zone("a")), testNode("a2", zone("a")), testNode("a3", zone("a")),
		testNode("b1", zone("b"), func(n *Node) { n.Allocatable.Instances = 2 }),
	}
	t.Run("hard", func(t *testing.T) {
		t.Parallel()
		s := cluster(nodes...)
		got := fill(s, testShape(t, "w", 0, spread(rikv1alpha1.LabelZone, 1, rikv1alpha1.DoNotSchedule)), 8)
		if got["b1"] != 2 || got["a1"]+got["a2"]+got["a3"] != 3 || got[""] != 3 {
			t.Errorf("placed %v, want 2 in zone b (full), 3 in zone a, 3 nowhere", got)
		}
	})
	t.Run("soft", func(t *testing.T) {
		t.Parallel()
		s := cluster(nodes...)
		got := fill(s, testShape(t, "w", 0, spread(rikv1alpha1.LabelZone, 1, rikv1alpha1.ScheduleAnyway)), 8)
		if got["b1"] != 2 || got[""] != 0 {
			t.Errorf("placed %v, want zone b filled and none left over", got)
		}
	})
}

func TestInvalidSelectorIsRefused(t *testing.T) {
	t.Parallel()
	bad := rikv1alpha1.InstanceTerm{Selector: metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Resembles"}},
	}}
	_, err := NewShape(ShapeConfig{Template: &rikv1alpha1.InstanceTemplate{
		Affinity: &rikv1alpha1.Affinity{InstanceForbidden: []rikv1alpha1.InstanceTerm{bad}},
	}})
	if err == nil || !strings.Contains(err.Error(), "instanceForbidden[0].selector") {
		t.Errorf("NewShape() = %v, want an error that names the field", err)
	}
}

func TestTextsAreShort(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		bytes      int64
		need, free string
	}{
		{0, "0", "0"}, {1023, "1023", "1023"}, {9 << 30, "9Gi", "9Gi"}, {8455716864, "7.9Gi", "7.8Gi"},
		{1 << 20, "1Mi", "1Mi"}, {1<<20 + 1, "1.1Mi", "1Mi"}, {-(3 << 29), "-1.5Gi", "-1.5Gi"}, {5 << 50, "5120Ti", "5120Ti"},
	} {
		if need, free := needText(tc.bytes), freeText(tc.bytes); need != tc.need || free != tc.free {
			t.Errorf("%d bytes: %q needed, %q free, want %q and %q", tc.bytes, need, free, tc.need, tc.free)
		}
	}
	var terms []labels.Selector
	for i := range 100 {
		selector, err := labels.Parse(fmt.Sprintf("rack=r%d,generation in (3,4)", i))
		if err != nil {
			t.Fatal(err)
		}
		terms = append(terms, selector)
	}
	if got, want := termsText(terms[:2]), "generation in (3,4),rack=r0, or generation in (3,4),rack=r1"; got != want {
		t.Errorf("termsText = %q, want %q", got, want)
	}
	if got := termsText(terms); len([]rune(got)) != maxText+1 || !strings.HasSuffix(got, "…") {
		t.Errorf("termsText of many = %q, want it cut off", got)
	}
	if got := selectorText(labels.Everything()); got != "any labels" {
		t.Errorf("selectorText of everything = %q", got)
	}
}

// TestABrokenNetworkTakesTheHostNetworks: instances in the host network do not need the
// instance network.
func TestABrokenNetworkTakesTheHostNetworks(t *testing.T) {
	t.Parallel()
	s := cluster(testNode("a", brokenNetwork))
	if d := Place(s, Request{Shape: testShape(t, "host", 0, hostPort(80))}); d.Node != "a" {
		t.Errorf("host network: Place() = %+v, want a", d)
	}
	if d := Place(s, Request{Shape: testShape(t, "batch", 0)}); d.Node != "" {
		t.Errorf("its own network: Place() = %+v, want no node", d)
	}
}
