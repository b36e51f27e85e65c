package network

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
)

// fixture is a table over views that a test fills like watches do. It is used by one goroutine.
type fixture struct {
	t         testing.TB
	nodes     *index.Objects[*rikv1alpha1.Node]
	workloads *index.Objects[*rikv1alpha1.Workload]
	revisions *index.Objects[*rikv1alpha1.WorkloadRevision]
	instances *index.Instances
	silent    map[string]bool
	ranges    *Ranges
	addresses *Addresses
	table     *Table

	wokenNodes     []string
	wokenWorkloads []types.NamespacedName
	version        int
}

func newFixture(t testing.TB, o Options) *fixture {
	s, err := o.Parse()
	if err != nil {
		t.Fatal(err)
	}
	w := &fixture{
		t: t, nodes: index.NewObjects[*rikv1alpha1.Node](), workloads: index.NewObjects[*rikv1alpha1.Workload](),
		revisions: index.NewObjects[*rikv1alpha1.WorkloadRevision](), instances: index.NewInstances(), silent: map[string]bool{},
	}
	w.ranges = NewRanges(s, func(name string) { w.wokenNodes = append(w.wokenNodes, name) })
	w.addresses = NewAddresses(s, w.workloads, w.nodes, func(key types.NamespacedName) { w.wokenWorkloads = append(w.wokenWorkloads, key) })
	w.nodes.Subscribe(w.ranges.Observe)
	w.nodes.Subscribe(w.addresses.ObserveNode)
	w.workloads.Subscribe(w.addresses.Observe)
	w.table = NewTable(Config{
		Settings: s, Nodes: w.nodes, Workloads: w.workloads, Revisions: w.revisions, Instances: w.instances,
		Seen: func(node string) bool { return !w.silent[node] }, Ranges: w.ranges, Addresses: w.addresses,
	})
	return w
}

func (w *fixture) meta(namespace, name string) metav1.ObjectMeta {
	w.version++
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(name), ResourceVersion: strconv.Itoa(w.version),
		CreationTimestamp: metav1.NewTime(time.Unix(int64(w.version), 0)),
	}
}

// bump gives a changed object its next version.
func (w *fixture) bump(m *metav1.ObjectMeta) {
	w.version++
	m.ResourceVersion = strconv.Itoa(w.version)
}

// node creates a node with an address and its allocated range.
func (w *fixture) node(name, address string) *rikv1alpha1.Node {
	n := &rikv1alpha1.Node{ObjectMeta: w.meta("", name)}
	n.Status.Info.InternalAddress = address
	n.Status.Conditions = []metav1.Condition{{Type: rikv1alpha1.NodeReady, Status: metav1.ConditionTrue}}
	n.Spec.PodCIDR, _ = w.ranges.Of(n)
	w.nodes.Observe(n)
	return n
}

func (w *fixture) changeNode(n *rikv1alpha1.Node, change func(*rikv1alpha1.Node)) *rikv1alpha1.Node {
	n = n.DeepCopy()
	change(n)
	w.bump(&n.ObjectMeta)
	w.nodes.Observe(n)
	return n
}

// reconcile sets the addresses that a workload should have, as its reconciler does, and returns
// the problem.
func (w *fixture) reconcile(o *rikv1alpha1.Workload) (*rikv1alpha1.Workload, string) {
	o = o.DeepCopy()
	var problem string
	o.Status.Addresses, problem = w.addresses.Of(o)
	w.bump(&o.ObjectMeta)
	w.workloads.Put(o)
	return o, problem
}

func (w *fixture) workload(name string, ports ...rikv1alpha1.Port) *rikv1alpha1.Workload {
	o := &rikv1alpha1.Workload{ObjectMeta: w.meta("ns", name)}
	o.Spec.Containers = []rikv1alpha1.Container{{Name: "main", Ports: ports}}
	w.workloads.Observe(o)
	r := &rikv1alpha1.WorkloadRevision{ObjectMeta: w.meta("ns", name+"-1"), Template: o.Spec.InstanceTemplate}
	r.Labels = map[string]string{rikv1alpha1.LabelWorkload: name}
	w.revisions.Observe(r)
	o, _ = w.reconcile(o)
	return o
}

// instance creates a running and ready instance of a workload.
func (w *fixture) instance(workload, name, node, address string) *rikv1alpha1.Instance {
	in := &rikv1alpha1.Instance{ObjectMeta: w.meta("ns", name)}
	in.Spec = rikv1alpha1.InstanceSpec{Workload: workload, Revision: workload + "-1", NodeName: node}
	in.Status = rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceRunning, Ready: true, Address: address}
	w.instances.Observe(in)
	return in
}

func (w *fixture) change(in *rikv1alpha1.Instance, change func(*rikv1alpha1.Instance)) *rikv1alpha1.Instance {
	in = in.DeepCopy()
	change(in)
	w.bump(&in.ObjectMeta)
	w.instances.Put(in)
	return in
}

func (w *fixture) remove(in *rikv1alpha1.Instance) {
	in = in.DeepCopy()
	w.bump(&in.ObjectMeta)
	w.instances.Remove(in)
}

func uidOf(i int) types.UID { return types.UID("i" + strconv.Itoa(i)) }

// timePasses lets a pause end, in a synctest bubble.
func timePasses() {
	<-time.After(2 * pace)
	synctest.Wait()
}
