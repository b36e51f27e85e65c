package placement

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// testNode is a ready node with 4 cores, 8 GiB and room for 100 instances.
func testNode(name string, change ...func(*Node)) Node {
	n := Node{
		Name:   name,
		Ready:  true,
		Labels: map[string]string{rikv1alpha1.LabelHostname: name},
		Allocatable: Resources{
			MilliCPU: 4000, MemoryBytes: 8 << 30, DiskBytes: 100 << 30, Instances: 100,
		},
	}
	for _, f := range change {
		f(&n)
	}
	return n
}

func label(key, value string) func(*Node) {
	return func(n *Node) { n.Labels[key] = value }
}

func zone(name string) func(*Node) { return label(rikv1alpha1.LabelZone, name) }

func taint(key string, effect rikv1alpha1.TaintEffect) func(*Node) {
	return func(n *Node) { n.Taints = append(n.Taints, rikv1alpha1.Taint{Key: key, Effect: effect}) }
}

// testShape is a Pod of one container that requests the given millicores.
func testShape(t testing.TB, workload string, milli int64, change ...func(*ShapeConfig)) *Shape {
	t.Helper()
	c := ShapeConfig{
		Namespace: "default", Workload: workload,
		Labels:   map[string]string{rikv1alpha1.LabelWorkload: workload},
		Template: &rikv1alpha1.InstanceTemplate{Containers: []rikv1alpha1.Container{{Name: "main", Image: "img"}}},
	}
	if milli > 0 {
		c.Template.Containers[0].Resources.Requests = rikv1alpha1.ResourceList{
			rikv1alpha1.ResourceCPU: *resource.NewMilliQuantity(milli, resource.DecimalSI),
		}
	}
	for _, f := range change {
		f(&c)
	}
	shape, err := NewShape(c)
	if err != nil {
		t.Fatalf("NewShape(%s) = %v", workload, err)
	}
	return shape
}

func priority(p int32) func(*ShapeConfig) {
	return func(c *ShapeConfig) { c.Template.Priority = p }
}

func forbid(workload, key string) func(*ShapeConfig) {
	return func(c *ShapeConfig) {
		affinityOf(c).InstanceForbidden = append(affinityOf(c).InstanceForbidden, termOn(workload, key))
	}
}

func require(workload, key string) func(*ShapeConfig) {
	return func(c *ShapeConfig) {
		affinityOf(c).InstanceRequired = append(affinityOf(c).InstanceRequired, termOn(workload, key))
	}
}

func spread(key string, skew int32, action rikv1alpha1.SpreadAction) func(*ShapeConfig) {
	return func(c *ShapeConfig) {
		c.Template.TopologySpread = append(c.Template.TopologySpread, rikv1alpha1.TopologySpread{
			MaxSkew: skew, TopologyKey: key, WhenUnsatisfiable: action,
		})
	}
}

func affinityOf(c *ShapeConfig) *rikv1alpha1.Affinity {
	if c.Template.Affinity == nil {
		c.Template.Affinity = &rikv1alpha1.Affinity{}
	}
	return c.Template.Affinity
}

func termOn(workload, key string) rikv1alpha1.InstanceTerm {
	return rikv1alpha1.InstanceTerm{
		Selector:    metav1.LabelSelector{MatchLabels: map[string]string{rikv1alpha1.LabelWorkload: workload}},
		TopologyKey: key,
	}
}

// brokenNetwork gives the node a network trouble. noNetwork gives the node's instances only
// their loopback.
func brokenNetwork(n *Node) { n.NetworkTrouble = "port 53 is taken" }

func noNetwork(n *Node) { n.NoNetwork = true }

// port adds a port that is served inside the cluster.
func port(number int32) func(*ShapeConfig) {
	return func(c *ShapeConfig) {
		c.Template.Containers[0].Ports = append(c.Template.Containers[0].Ports, rikv1alpha1.Port{Port: number})
	}
}

func hostPort(number int32) func(*ShapeConfig) {
	return func(c *ShapeConfig) {
		c.Template.HostNetwork = true
		c.Template.Containers[0].Ports = append(c.Template.Containers[0].Ports, rikv1alpha1.Port{Port: number})
	}
}

func nodePort(number int32) func(*ShapeConfig) {
	return func(c *ShapeConfig) {
		c.Template.Containers[0].Ports = append(c.Template.Containers[0].Ports,
			rikv1alpha1.Port{Port: number, TargetPort: 80, Type: rikv1alpha1.PortNodePort})
	}
}

func balanced(number int32) func(*ShapeConfig) {
	return func(c *ShapeConfig) {
		c.Template.Containers[0].Ports = append(c.Template.Containers[0].Ports,
			rikv1alpha1.Port{Port: number, TargetPort: 80, Type: rikv1alpha1.PortLoadBalancer})
	}
}

// uses makes processes of the machine use TCP ports.
func uses(numbers ...int32) func(*Node) {
	return func(n *Node) {
		n.UsedPorts = map[Port]bool{}
		for _, number := range numbers {
			n.UsedPorts[Port{rikv1alpha1.ProtocolTCP, number}] = false
		}
	}
}

// binds is like uses, for ports that conflict only with instances in the node's own network.
func binds(numbers ...int32) func(*Node) {
	return func(n *Node) {
		n.UsedPorts = map[Port]bool{}
		for _, number := range numbers {
			n.UsedPorts[Port{rikv1alpha1.ProtocolTCP, number}] = true
		}
	}
}

// cluster creates a snapshot of nodes.
func cluster(nodes ...Node) *Snapshot {
	s := NewSnapshot(Options{Salt: 7})
	for _, n := range nodes {
		s.SetNode(n)
	}
	return s
}

// fill places n instances of a shape, as the scheduler does, and returns the number on each
// node.
func fill(s *Snapshot, shape *Shape, n int) map[string]int {
	got := map[string]int{}
	for range n {
		d := Place(s, Request{Shape: shape})
		got[d.Node]++
		if d.Node != "" {
			s.Put(Occupant{UID: fmt.Sprintf("uid-%d", s.Occupants()), Shape: shape, Node: d.Node})
		}
	}
	return got
}

func runs(kinds ...rikv1alpha1.WorkloadKind) func(*Node) { return func(n *Node) { n.Kinds = kinds } }

// virtual puts the Pod into a microVM.
func virtual(c *ShapeConfig) { c.Template.Isolation = rikv1alpha1.IsolationMicroVM }
