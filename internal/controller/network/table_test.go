package network

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/instance"
)

var web = rikv1alpha1.Port{Name: "web", Port: 80, TargetPort: 8080, Type: rikv1alpha1.PortNodePort}

// state describes an endpoint: its address, and whether it may get new connections.
func (w *fixture) state(uid string) string {
	e := w.table.journal.get(key{kind: endpointKind, name: uid})
	switch {
	case e == nil:
		return "gone"
	case e.endpoint.GetReady():
		return e.endpoint.GetAddress()
	case e.endpoint.GetDraining():
		return e.endpoint.GetAddress() + " draining"
	default:
		return e.endpoint.GetAddress() + " not ready"
	}
}

// serve creates a workload with a revision "web-1" whose template change may modify.
func (w *fixture) serve(change func(*rikv1alpha1.InstanceTemplate)) {
	o := &rikv1alpha1.Workload{ObjectMeta: w.meta("ns", "web")}
	o.Spec.Containers = []rikv1alpha1.Container{{Name: "main", Ports: []rikv1alpha1.Port{web}}}
	if change != nil {
		change(&o.Spec.InstanceTemplate)
	}
	w.workloads.Observe(o)
	w.reconcile(o)
	r := &rikv1alpha1.WorkloadRevision{ObjectMeta: w.meta("ns", "web-1"), Template: o.Spec.InstanceTemplate}
	r.Labels = map[string]string{rikv1alpha1.LabelWorkload: "web"}
	w.revisions.Observe(r)
}

// TestInstancesOfAnEarlierWorkloadGetNoTraffic: an instance of an earlier Workload with the same
// name does not serve clients of its successor. The order in which the two are observed does
// not matter.
func TestInstancesOfAnEarlierWorkloadGetNoTraffic(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*rikv1alpha1.Instance)
		want   string
	}{
		"its own": {func(in *rikv1alpha1.Instance) {
			in.OwnerReferences = []metav1.OwnerReference{{Kind: "Workload", UID: "web"}}
		}, "10.62.0.5"},
		"not bound yet": {func(*rikv1alpha1.Instance) {}, "10.62.0.5"},
		"of an earlier one": {func(in *rikv1alpha1.Instance) {
			in.OwnerReferences = []metav1.OwnerReference{{Kind: "Workload", UID: "earlier"}}
		}, "gone"},
		"orphaned": {func(in *rikv1alpha1.Instance) {
			in.Annotations = map[string]string{rikv1alpha1.AnnotationOrphaned: "web"}
		}, "gone"},
	} {
		for _, workloadFirst := range []bool{true, false} {
			w := newFixture(t, Options{})
			w.node("n", "192.0.2.1")
			if workloadFirst {
				w.serve(nil)
			}
			w.change(w.instance("web", "i", "n", "10.62.0.5"), tc.change)
			if !workloadFirst {
				w.serve(nil)
			}
			if got := w.state("i"); got != tc.want {
				t.Errorf("%s, the workload first %v: %s, want %s", name, workloadFirst, got, tc.want)
			}
		}
	}
}

func TestEndpoint(t *testing.T) {
	t.Parallel()
	onHost := func(t *rikv1alpha1.InstanceTemplate) { t.HostNetwork = true }
	unheard := func(ready bool) func(*rikv1alpha1.Instance) {
		return func(in *rikv1alpha1.Instance) {
			in.Status.Phase, in.Status.Ready, in.Status.Reason = rikv1alpha1.InstanceUnknown, false, instance.ReasonSchedulerUnavailable
			in.Status.Containers = []rikv1alpha1.ContainerStatus{{Name: "main", Ready: true}, {Name: "beside", Ready: ready}}
		}
	}
	for name, tc := range map[string]struct {
		template func(*rikv1alpha1.InstanceTemplate)
		change   func(*rikv1alpha1.Instance)
		silent   bool
		want     string
	}{
		"ready":   {want: "10.62.0.5"},
		"waiting": {change: func(in *rikv1alpha1.Instance) { in.Status.Ready = false }, want: "10.62.0.5 not ready"},
		"being made": {change: func(in *rikv1alpha1.Instance) {
			in.Status = rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceCreating}
		}, want: "gone"},
		"ending":                  {change: func(in *rikv1alpha1.Instance) { in.DeletionTimestamp = &metav1.Time{} }, want: "10.62.0.5 draining"},
		"ending on a silent node": {change: func(in *rikv1alpha1.Instance) { in.DeletionTimestamp = &metav1.Time{} }, silent: true, want: "10.62.0.5 not ready"},
		"ending while it is suspended": {change: func(in *rikv1alpha1.Instance) {
			in.DeletionTimestamp, in.Status.Suspended = &metav1.Time{}, true
		}, want: "10.62.0.5 not ready"},
		"ended":                         {change: func(in *rikv1alpha1.Instance) { in.Status.Phase = rikv1alpha1.InstanceFailed }, want: "gone"},
		"lost":                          {change: func(in *rikv1alpha1.Instance) { in.Status.Phase = rikv1alpha1.InstanceUnknown }, want: "10.62.0.5 not ready"},
		"unknown phase":                 {change: unheard(true), want: "10.62.0.5"},
		"unknown phase, unready before": {change: unheard(false), want: "10.62.0.5 not ready"},
		"silent node":                   {silent: true, want: "10.62.0.5 not ready"},
		"of another":                    {change: func(in *rikv1alpha1.Instance) { in.Status.Address = "10.62.1.5" }, want: "gone"},
		"nonsense":                      {change: func(in *rikv1alpha1.Instance) { in.Status.Address = "here" }, want: "gone"},
		"no ports":                      {template: func(t *rikv1alpha1.InstanceTemplate) { t.Containers[0].Ports = nil }, want: "gone"},
		"host network":                  {template: onHost, change: func(in *rikv1alpha1.Instance) { in.Status.Address = "" }, want: "192.0.2.1"},
		"app": {template: func(t *rikv1alpha1.InstanceTemplate) {
			*t = rikv1alpha1.InstanceTemplate{Kind: rikv1alpha1.KindApp, App: &rikv1alpha1.App{Ports: []rikv1alpha1.Port{web}}}
		}, want: "10.62.0.5"},
		"app on the host": {template: func(t *rikv1alpha1.InstanceTemplate) {
			*t = rikv1alpha1.InstanceTemplate{Kind: rikv1alpha1.KindApp, HostNetwork: true, App: &rikv1alpha1.App{Ports: []rikv1alpha1.Port{web}}}
		}, change: func(in *rikv1alpha1.Instance) { in.Status.Address = "" }, want: "192.0.2.1"},
		"suspended": {change: func(in *rikv1alpha1.Instance) {
			in.Status.Suspended, in.Status.Ready, in.Status.Reason = true, false, rikv1alpha1.ReasonSuspended
		}, want: "10.62.0.5 not ready"},
		"function": {template: func(t *rikv1alpha1.InstanceTemplate) {
			*t = rikv1alpha1.InstanceTemplate{Kind: rikv1alpha1.KindFunction, Function: &rikv1alpha1.Function{Exposure: &web}}
		}, want: "10.62.0.5"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t, Options{})
			w.node("n", "192.0.2.1")
			w.serve(tc.template)
			w.silent["n"] = tc.silent
			in := w.instance("web", "i", "n", "10.62.0.5")
			if tc.change != nil {
				in = w.change(in, tc.change)
			}
			if got := w.state("i"); got != tc.want {
				t.Errorf("the endpoint is %q, want %q", got, tc.want)
			}
			w.remove(in)
			if got := w.state("i"); got != "gone" {
				t.Errorf("after its end the endpoint is %q", got)
			}
		})
	}
}

// TestEndpointFollowsItsNode: the fields of an endpoint that depend on the node follow the
// node's changes.
func TestEndpointFollowsItsNode(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Options{})
	n := w.node("n", "192.0.2.1")
	w.serve(func(t *rikv1alpha1.InstanceTemplate) { t.HostNetwork = true })
	w.instance("web", "i", "n", "")
	n = w.changeNode(n, func(n *rikv1alpha1.Node) { n.Status.Info.InternalAddress = "192.0.2.7" })
	if got := w.state("i"); got != "192.0.2.7" {
		t.Errorf("after a change of address: %q", got)
	}
	w.silent["n"] = true
	w.table.NodeChanged("n")
	if got := w.state("i"); got != "192.0.2.7 not ready" {
		t.Errorf("silent: %q", got)
	}
	w.silent["n"] = false
	w.table.NodeChanged("n")
	if got := w.state("i"); got != "192.0.2.7" {
		t.Errorf("reports again: %q", got)
	}
	peer := func() bool { return w.table.journal.get(key{kind: peerKind, name: "n"}).peer.GetAnswers() }
	if !peer() {
		t.Error("the others do not receive that the node reports")
	}
	w.silent["n"] = true
	w.table.NodeChanged("n")
	if peer() {
		t.Error("the others do not receive that the node is silent")
	}
	w.silent["n"] = false
	w.table.config.Carries = func(string) bool { return false }
	w.table.NodeChanged("n")
	if peer() || w.state("i") != "192.0.2.7" {
		t.Errorf("without a network of instances the node answers: %v, and its endpoint is %q", peer(), w.state("i"))
	}
	w.table.config.Carries = nil
	w.table.NodeChanged("n")
	before := w.table.journal.version
	w.table.NodeChanged("n")
	w.changeNode(n, func(n *rikv1alpha1.Node) { n.Labels = map[string]string{"a": "b"} })
	if got := w.table.journal.version; got != before {
		t.Errorf("%d changes by updates without effect", got-before)
	}
}

// TestRevisionAfterItsInstances: the lists arrive in any order.
func TestRevisionAfterItsInstances(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Options{})
	w.instance("web", "i", "n", "10.62.0.5")
	w.serve(nil)
	if got := w.state("i"); got != "gone" {
		t.Errorf("without a node: %q", got)
	}
	w.node("n", "192.0.2.1")
	if got := w.state("i"); got != "10.62.0.5" {
		t.Errorf("with all: %q", got)
	}
	r := w.revisions.Get(types.NamespacedName{Namespace: "ns", Name: "web-1"}).DeepCopy()
	w.bump(&r.ObjectMeta)
	w.revisions.Remove(r)
	if got := w.state("i"); got != "gone" || len(w.table.exposed) > 0 {
		t.Errorf("without the revision: %q", got)
	}
}

func TestService(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Options{})
	o := w.workload("web", web, rikv1alpha1.Port{Port: 53, Protocol: rikv1alpha1.ProtocolUDP})
	line := func() string {
		e := w.table.journal.get(key{kind: serviceKind, namespace: "ns", name: "web"})
		if e == nil {
			return "gone"
		}
		out := fmt.Sprint(e.service.GetAddresses())
		for _, p := range e.service.GetPorts() {
			out += fmt.Sprintf(" %s %d->%d/%s %s", p.GetName(), p.GetPort(), p.GetTargetPort(), p.GetProtocol(), p.GetType())
		}
		return out
	}
	if got, want := line(), "[10.63.0.1] web 80->8080/TCP nodePort  53->53/UDP clusterIP"; got != want {
		t.Errorf("the service is %q, want %q", got, want)
	}
	before := w.table.journal.version
	o = o.DeepCopy()
	o.Status.Replicas = 7
	w.bump(&o.ObjectMeta)
	w.workloads.Put(o)
	if got := w.table.journal.version; got != before {
		t.Errorf("%d changes by a status", got-before)
	}
	o = o.DeepCopy()
	o.Spec.Containers[0].Ports = nil
	w.bump(&o.ObjectMeta)
	w.workloads.Put(o)
	if got := line(); got != "gone" {
		t.Errorf("without ports the service is %q", got)
	}
}

// TestTableConverges: after any changes in any order, and reads at any time, a node has the
// same netmap as a table that is built from the objects.
func TestTableConverges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newFixture(testing.TB(nil), Options{ClusterCIDR: "10.62.0.0/22"})
		w.table.journal.mostGone = rapid.IntRange(0, 3).Draw(t, "remembered")
		reader, version := &mirror{}, uint64(0)
		read := func() {
			b, _ := w.table.changes(version)
			if b == nil || reader.lines == nil {
				b = w.table.whole()
			}
			for _, m := range b.messages {
				reader.apply(m)
			}
			version = b.to
		}
		t.Repeat(randomSteps(w, read))
		read()
		if reader.problem != "" {
			t.Fatal(reader.problem)
		}
		if got, want := reader.lines, linesOf(again(w).table.journal); !equal(got, want) {
			t.Fatalf("the node has %v, want %v", got, want)
		}
	})
}

func randomSteps(w *fixture, read func()) map[string]func(*rapid.T) {
	name := func(t *rapid.T, prefix string) string {
		return fmt.Sprint(prefix, rapid.IntRange(0, 4).Draw(t, prefix))
	}
	return map[string]func(*rapid.T){
		"node": func(t *rapid.T) {
			who := name(t, "n")
			n := w.nodes.Get(types.NamespacedName{Name: who})
			if n == nil {
				w.node(who, "192.0.2.1")
				return
			}
			n = w.changeNode(n, func(n *rikv1alpha1.Node) {
				n.Status.Info.InternalAddress = rapid.SampledFrom([]string{"", "192.0.2.1", "192.0.2.2"}).Draw(t, "address")
				n.Spec.PodCIDR, _ = w.ranges.Of(n)
			})
			if rapid.IntRange(0, 3).Draw(t, "fate") == 0 {
				w.nodes.Remove(w.changeNode(n, func(*rikv1alpha1.Node) {}))
			}
		},
		"silence": func(t *rapid.T) {
			who := name(t, "n")
			w.silent[who] = !w.silent[who]
			w.table.NodeChanged(who)
		},
		"workload": func(t *rapid.T) {
			who := name(t, "w")
			if o := w.workloads.Get(types.NamespacedName{Namespace: "ns", Name: who}); o != nil {
				o, _ = w.reconcile(o)
				o = o.DeepCopy()
				w.bump(&o.ObjectMeta)
				w.workloads.Remove(o)
				return
			}
			// A revision name always has the same template.
			if who == "w0" || who == "w1" {
				w.workload(who)
			} else {
				w.workload(who, web)
			}
		},
		"instance": func(t *rapid.T) {
			who := name(t, "i")
			in := w.instances.Get(types.NamespacedName{Namespace: "ns", Name: who})
			if in == nil {
				in = w.instance(name(t, "w"), who, name(t, "n"), fmt.Sprintf("10.62.%d.7", rapid.IntRange(0, 3).Draw(t, "range")))
			}
			in = w.change(in, func(in *rikv1alpha1.Instance) { in.Status.Ready = rapid.Bool().Draw(t, "ready") })
			if rapid.IntRange(0, 3).Draw(t, "fate") == 0 {
				w.remove(in)
			}
		},
		"read": func(*rapid.T) { read() },
	}
}

// again creates a fixture of the same objects, as a controller that starts does.
func again(w *fixture) *fixture {
	out := newFixture(testing.TB(nil), Options{ClusterCIDR: "10.62.0.0/22"})
	out.silent = w.silent
	for _, in := range w.instances.All() {
		out.instances.Observe(in)
	}
	for _, r := range w.revisions.All() {
		out.revisions.Observe(r)
	}
	for _, o := range w.workloads.All() {
		out.workloads.Observe(o)
	}
	for _, n := range w.nodes.All() {
		out.nodes.Observe(n)
	}
	return out
}

// BenchmarkInstanceWithoutPorts measures a change of an instance that serves no ports, in a
// cluster where other instances do.
func BenchmarkInstanceWithoutPorts(b *testing.B) {
	w := newFixture(b, Options{})
	w.node("n", "192.0.2.1")
	w.serve(nil)
	w.workload("batch")
	in := w.instance("batch", "i", "n", "10.62.0.5")
	b.ReportAllocs()
	for b.Loop() {
		w.table.observeInstance(in, in)
	}
}

// BenchmarkInstanceChange measures a change of readiness among 100,000 endpoints.
func BenchmarkInstanceChange(b *testing.B) {
	w := newFixture(b, Options{ClusterCIDR: "10.0.0.0/12", ServiceCIDR: "10.63.0.0/16"})
	w.serve(nil)
	for n := range 1000 {
		prefix := w.node(fmt.Sprint("n", n), "192.0.2.1").Spec.PodCIDR
		for i := range 100 {
			w.instance("web", fmt.Sprintf("%d-%d", n, i), fmt.Sprint("n", n), fmt.Sprintf("%s.%d", prefix[:len(prefix)-len(".0/24")], i+2))
		}
	}
	in := w.instances.ByUID("500-50")
	b.ReportAllocs()
	for b.Loop() {
		in = w.change(in, func(in *rikv1alpha1.Instance) { in.Status.Ready = !in.Status.Ready })
	}
}
