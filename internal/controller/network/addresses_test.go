package network

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func TestAddressesExhausted(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Options{ServiceCIDR: "10.63.0.0/30"})
	port := rikv1alpha1.Port{Port: 80}
	a, b, c, none := w.workload("a", port), w.workload("b", port), w.workload("c", port), w.workload("none")
	if len(a.Status.Addresses) != 1 || len(b.Status.Addresses) != 1 || len(c.Status.Addresses) != 0 || len(none.Status.Addresses) != 0 {
		t.Fatalf("addresses %v, %v, %v, %v", a.Status.Addresses, b.Status.Addresses, c.Status.Addresses, none.Status.Addresses)
	}
	if _, problem := w.reconcile(c); !strings.Contains(problem, "all addresses of --service-cidr 10.63.0.0/30 are in use") {
		t.Errorf("Of = %q, want the reason", problem)
	}
	a = a.DeepCopy()
	w.bump(&a.ObjectMeta)
	w.workloads.Remove(a)
	if want := (types.NamespacedName{Namespace: "ns", Name: "c"}); !slices.Contains(w.wokenWorkloads, want) {
		t.Errorf("woke %v, want the workload that waits", w.wokenWorkloads)
	}
	if c, _ = w.reconcile(c); !slices.Equal(c.Status.Addresses, a.Status.Addresses) {
		t.Errorf("addresses %v, want the one that was freed: %v", c.Status.Addresses, a.Status.Addresses)
	}
	if got, problem := w.addresses.Of(a); got != nil || problem != "" {
		t.Errorf("Of a workload that is gone = %v, %q, want nothing to be taken", got, problem)
	}
}

// TestAddressIsFreedWhenStored: a workload that no longer serves ports keeps its address until
// the removal is stored.
func TestAddressIsFreedWhenStored(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Options{ServiceCIDR: "10.63.0.0/30"})
	port := rikv1alpha1.Port{Port: 80}
	a, b := w.workload("a", port), w.workload("b", port)
	c := w.workload("c", port)
	a = a.DeepCopy()
	a.Spec.Containers[0].Ports = nil
	w.bump(&a.ObjectMeta)
	w.workloads.Observe(a)
	if got, _ := w.addresses.Of(a); got != nil {
		t.Errorf("Of = %v, want no address for what serves nothing", got)
	}
	if c, _ = w.reconcile(c); len(c.Status.Addresses) > 0 {
		t.Fatalf("%v was given while a's status still has %v", c.Status.Addresses, a.Status.Addresses)
	}
	w.reconcile(a)
	if c, _ = w.reconcile(c); !slices.Equal(c.Status.Addresses, a.Status.Addresses) {
		t.Errorf("addresses %v, want %v; b has %v", c.Status.Addresses, a.Status.Addresses, b.Status.Addresses)
	}
}

// TestAddressTwice: two workloads may claim one address, because the API does not prevent it.
// The older one keeps the address and the other gets a new one.
func TestAddressTwice(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Options{})
	port := rikv1alpha1.Port{Port: 80}
	old, young := w.workload("old", port), w.workload("young", port)
	young.Status.Addresses = old.Status.Addresses
	again := newFixture(t, Options{})
	again.workloads.Observe(young)
	again.workloads.Observe(old)
	if want := (types.NamespacedName{Namespace: "ns", Name: "young"}); !slices.Equal(again.wokenWorkloads, []types.NamespacedName{want}) {
		t.Errorf("woke %v, want the one that lost", again.wokenWorkloads)
	}
	if got := again.addresses.usable(young); got != nil {
		t.Errorf("nodes may receive %v at the younger", got)
	}
	mine, _ := again.addresses.Of(old)
	other, _ := again.addresses.Of(young)
	if !slices.Equal(mine, old.Status.Addresses) || slices.Equal(mine, other) || len(other) != 1 {
		t.Errorf("addresses %v and %v, want the older to keep %v", mine, other, old.Status.Addresses)
	}
	moved := newFixture(t, Options{ServiceCIDR: "10.70.0.0/24"})
	moved.workloads.Observe(old)
	if got, _ := moved.addresses.Of(old); len(got) != 1 || !strings.HasPrefix(got[0], "10.70.0.") {
		t.Errorf("with another --service-cidr: %v", got)
	}
}

func TestAddressesOutside(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Options{})
	a := w.node("a", "192.0.2.1")
	b := w.node("b", "192.0.2.2")
	web := w.workload("web", rikv1alpha1.Port{Port: 80, Type: rikv1alpha1.PortLoadBalancer})
	api := w.workload("api", rikv1alpha1.Port{Port: 81, Type: rikv1alpha1.PortNodePort})
	if len(api.Status.Addresses) != 1 {
		t.Errorf("addresses of a nodePort %v, want the virtual one", api.Status.Addresses)
	}
	virtual := web.Status.Addresses[0]
	for _, step := range []struct {
		name   string
		change func()
		want   []string
	}{
		{"internal ones", func() {}, []string{virtual, "192.0.2.1", "192.0.2.2"}},
		{"external ones", func() {
			b = w.changeNode(b, func(n *rikv1alpha1.Node) { n.Status.Info.ExternalAddress = "198.51.100.2" })
		}, []string{virtual, "198.51.100.2"}},
		{"that node is silent", func() {
			b = w.changeNode(b, func(n *rikv1alpha1.Node) { n.Status.Conditions[0].Status = metav1.ConditionUnknown })
		}, []string{virtual, "192.0.2.1"}},
		{"no node", func() { w.nodes.Remove(w.changeNode(a, func(*rikv1alpha1.Node) {})) }, []string{virtual}},
	} {
		w.wokenWorkloads = nil
		step.change()
		if woken := len(w.wokenWorkloads) > 0; woken != (step.name != "internal ones") {
			t.Errorf("%s: woke %v", step.name, w.wokenWorkloads)
		}
		if web, _ = w.reconcile(web); !slices.Equal(web.Status.Addresses, step.want) {
			t.Errorf("%s: addresses %v, want %v", step.name, web.Status.Addresses, step.want)
		}
	}
}
