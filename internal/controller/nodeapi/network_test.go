package nodeapi

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/network"
)

// TestNodesReceiveTheNetwork: a node receives the netmap without a request, and again after
// every connect.
func TestNodesReceiveTheNetwork(t *testing.T) {
	t.Parallel()
	settings, err := network.Options{}.Parse()
	if err != nil {
		t.Fatal(err)
	}
	nodes, workloads := index.NewObjects[*rikv1alpha1.Node](), index.NewObjects[*rikv1alpha1.Workload]()
	ranges := network.NewRanges(settings, func(string) {})
	addresses := network.NewAddresses(settings, workloads, nodes, func(types.NamespacedName) {})
	nodes.Subscribe(ranges.Observe)
	publisher := network.NewPublisher()
	publisher.Set(network.NewTable(network.Config{
		Settings: settings, Nodes: nodes, Workloads: workloads, Revisions: index.NewObjects[*rikv1alpha1.WorkloadRevision](),
		Instances: index.NewInstances(), Seen: func(string) bool { return true }, Ranges: ranges, Addresses: addresses,
	}))
	w := newFixtureOf(t, publisher)
	pair, err := w.join(t, "node-1", "machine-1")
	if err != nil {
		t.Fatal(err)
	}
	stream := w.connect(t, pair, "node-1")
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	m := first.GetNetwork()
	if !m.GetBegin() || !m.GetComplete() || m.GetSettings().GetServiceCidr() != network.DefaultServiceCIDR {
		t.Fatalf("the first message was %v, want the whole network", first)
	}
	nodes.Observe(&rikv1alpha1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-2", UID: "u2", ResourceVersion: "5"},
		Spec:       rikv1alpha1.NodeSpec{PodCIDR: "10.62.7.0/24"},
	})
	change, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if m := change.GetNetwork(); m.GetBegin() || len(m.GetPeers()) != 1 || m.GetPeers()[0].GetPodCidr() != "10.62.7.0/24" {
		t.Errorf("the change was %v, want the new node alone", change)
	}
	again, err := w.connect(t, pair, "node-1").Recv()
	if err != nil {
		t.Fatal(err)
	}
	if m := again.GetNetwork(); !m.GetBegin() || len(m.GetPeers()) != 1 {
		t.Errorf("after another connect: %v, want the whole", again)
	}
}
