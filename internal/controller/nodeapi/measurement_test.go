package nodeapi

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
)

// measure sends usages of the node and of the given instances.
func (l *link) measure(t *testing.T, cpuMillis int64, uids ...string) {
	t.Helper()
	m := &nodev1.Measurements{Usages: []*nodev1.Usage{{CpuMillis: cpuMillis, Machine: &nodev1.MachineUsage{Cpus: 1}}}}
	for _, uid := range uids {
		m.Usages = append(m.Usages, &nodev1.Usage{Uid: uid, CpuMillis: cpuMillis})
	}
	if err := l.Send(&nodev1.NodeMessage{Message: &nodev1.NodeMessage_Measurements{Measurements: m}}); err != nil {
		t.Fatal(err)
	}
}

// on returns an instance that is bound to a node.
func on(node string) *rikv1alpha1.Instance {
	return &rikv1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-" + node, UID: types.UID("on " + node)},
		Spec:       rikv1alpha1.InstanceSpec{NodeName: node, Revision: "web-1"},
	}
}

// TestNodesMeasureTheirOwn: the certificate and the bindings decide what a node's measurements
// count for. Measurements go with their objects, and no later message of the node brings them
// back.
func TestNodesMeasureTheirOwn(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	links := map[string]*link{}
	for _, name := range []string{"node-1", "node-2"} {
		pair, err := w.join(t, name, "machine of "+name)
		if err != nil {
			t.Fatal(err)
		}
		links[name] = w.connect(t, pair, name)
		w.instances.Observe(on(name))
	}
	store := w.server.cfg.Measurements
	// state waits until the node has measured the value, then returns what is stored.
	state := func(node string, cpuMillis int64) string {
		t.Helper()
		eventually(t, func() error {
			if got := store.Nodes()[node].GetCpuMillis(); got != cpuMillis {
				return fmt.Errorf("the usage of %s is %d, want %d", node, got, cpuMillis)
			}
			return nil
		})
		nodes, instances := map[string]int64{}, map[types.UID]int64{}
		for name, u := range store.Nodes() {
			nodes[name] = u.GetCpuMillis()
		}
		for uid, u := range store.Instances() {
			instances[uid] = u.GetCpuMillis()
		}
		return fmt.Sprint(nodes, instances)
	}
	links["node-1"].measure(t, 1, "on node-1", "on node-2", "invented")
	if got, want := state("node-1", 1), "map[node-1:1] map[on node-1:1]"; got != want {
		t.Errorf("after the first node: %s, want %s", got, want)
	}
	links["node-2"].measure(t, 2, "on node-1", "on node-2")
	if got, want := state("node-2", 2), "map[node-1:1 node-2:2] map[on node-1:1 on node-2:2]"; got != want {
		t.Errorf("after the second node: %s, want %s", got, want)
	}
	w.instances.Remove(on("node-2"))
	links["node-2"].measure(t, 3, "on node-2")
	if got, want := state("node-2", 3), "map[node-1:1 node-2:3] map[on node-1:1]"; got != want {
		t.Errorf("after an instance went: %s, want %s", got, want)
	}
	// A connection that ends leaves the last measurement.
	if err := links["node-1"].CloseSend(); err != nil {
		t.Fatal(err)
	}
	w.remove(t, "node-2")
	links["node-2"].measureLate(4, "on node-2")
	if got, want := state("node-1", 1), "map[node-1:1] map[on node-1:1]"; got != want {
		t.Errorf("after a node went: %s, want %s", got, want)
	}
}

// measureLate sends a measurement on a connection that may have ended.
func (l *link) measureLate(cpuMillis int64, uid string) {
	_ = l.Send(&nodev1.NodeMessage{Message: &nodev1.NodeMessage_Measurements{Measurements: &nodev1.Measurements{Usages: []*nodev1.Usage{
		{CpuMillis: cpuMillis, Machine: &nodev1.MachineUsage{Cpus: 1}}, {Uid: uid, CpuMillis: cpuMillis},
	}}}})
	for {
		if _, err := l.Recv(); err != nil {
			return // the server has ended the connection
		}
	}
}
