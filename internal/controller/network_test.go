package controller_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller"
	"rik.dev/rik/internal/controller/network"
	"rik.dev/rik/internal/controller/node"
	"rik.dev/rik/internal/controller/workload"
	"rik.dev/rik/internal/rpc/nodev1"
)

// serving is an Automatic workload with a port.
func serving(namespace, name string, replicas int32, port rikv1alpha1.Port) *rikv1alpha1.Workload {
	w := automatic(namespace, name, replicas)
	w.Spec.Containers[0].Ports = []rikv1alpha1.Port{port}
	return w
}

// reported is the netmap that a node received, in the form in which the node uses it. A
// follower fills it.
type reported struct {
	mu sync.Mutex
	// mu guards the fields below.
	peers     map[string]string // name -> range
	services  map[string]string // name -> addresses
	endpoints map[string]string // name of the instance -> address and readiness
	names     map[string]string // instance UID -> name
	wholes    int
}

// follow reads the netmap that the current controller sends, until the test ends.
func (c *cluster) follow() *reported {
	c.Helper()
	out := &reported{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.controller.Network().Follow(ctx, out.take) }()
	c.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.Errorf("Follow = %v", err)
		}
	})
	return out
}

func (o *reported) take(m *nodev1.NetworkChanges) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if m.GetBegin() {
		o.peers, o.services = map[string]string{}, map[string]string{}
		o.endpoints, o.names = map[string]string{}, map[string]string{}
	}
	for _, p := range m.GetPeers() {
		o.peers[p.GetName()] = p.GetPodCidr()
	}
	for _, s := range m.GetServices() {
		o.services[s.GetKey().GetWorkload()] = strings.Join(s.GetAddresses(), " ")
	}
	for _, e := range m.GetEndpoints() {
		o.names[e.GetUid()] = e.GetName()
		o.endpoints[e.GetName()] = fmt.Sprintf("%s %v", e.GetAddress(), e.GetReady())
	}
	for _, name := range m.GetPeersGone() {
		delete(o.peers, name)
	}
	for _, key := range m.GetServicesGone() {
		delete(o.services, key.GetWorkload())
	}
	for _, uid := range m.GetEndpointsGone() {
		delete(o.endpoints, o.names[uid])
	}
	if m.GetComplete() {
		o.wholes++
	}
	return nil
}

// eventually waits until check returns an empty string.
func (o *reported) eventually(c *cluster, what string, check func() string) {
	c.Helper()
	c.eventually(what, func() string {
		o.mu.Lock()
		defer o.mu.Unlock()
		return check()
	})
}

func (c *cluster) podCIDRs() map[string]string {
	c.Helper()
	var list rikv1alpha1.NodeList
	if err := c.client.List(c.Context(), &list); err != nil {
		c.Fatal(err)
	}
	out := map[string]string{}
	for i := range list.Items {
		out[list.Items[i].Name] = list.Items[i].Spec.PodCIDR
	}
	return out
}

// addresses waits for the addresses of a workload.
func (c *cluster) addresses(name string) []string {
	c.Helper()
	var out []string
	c.eventually("an address of "+name, func() string {
		out = c.workload(name).Status.Addresses
		if len(out) == 0 {
			return "it has none"
		}
		return ""
	})
	return out
}

// TestAddressesAreKept: nodes and workloads get addresses once and keep them when the
// controller restarts. The addresses of deleted objects are freed.
func TestAddressesAreKept(t *testing.T) {
	c := start(t, nil, "n1", "n2")
	c.create(serving(c.namespace, "web", 1, rikv1alpha1.Port{Port: 80}))
	c.create(serving(c.namespace, "api", 1, rikv1alpha1.Port{Port: 80, Type: rikv1alpha1.PortLoadBalancer}))
	c.create(automatic(c.namespace, "batch", 1))
	manual := serving(c.namespace, "manual", 0, rikv1alpha1.Port{Port: 80})
	manual.Spec.Deploy, manual.Spec.Replicas = rikv1alpha1.DeployManual, nil
	c.create(manual)
	c.wantRunning("batch", 1)
	c.wantRunning("web", 1)
	web, api, hand := c.addresses("web"), c.addresses("api"), c.addresses("manual")
	service := netip.MustParsePrefix(network.DefaultServiceCIDR)
	for _, list := range [][]string{web, api, hand} {
		if a, err := netip.ParseAddr(list[0]); err != nil || !service.Contains(a) {
			t.Errorf("the first address of %v is not a virtual one", list)
		}
	}
	if web[0] == api[0] || api[0] == hand[0] || web[0] == hand[0] {
		t.Errorf("addresses %v, %v, %v are not different", web, api, hand)
	}
	c.eventually("the nodes' address on the load balancer", func() string {
		if api = c.addresses("api"); !slices.Equal(api[1:], []string{"192.0.2.1"}) {
			return fmt.Sprint(api)
		}
		return ""
	})
	if got := c.workload("batch").Status.Addresses; got != nil {
		t.Errorf("a workload without ports has %v", got)
	}
	cidrs := c.podCIDRs()
	if len(cidrs) != 2 || cidrs["n1"] == "" || cidrs["n2"] == "" || cidrs["n1"] == cidrs["n2"] {
		t.Errorf("ranges of nodes: %v, want one each", cidrs)
	}
	c.settled()
	if got := c.podCIDRs(); !maps.Equal(got, cidrs) {
		t.Errorf("after a restart: %v, want %v", got, cidrs)
	}
	if got := c.addresses("web"); !slices.Equal(got, web) {
		t.Errorf("after a restart: %v, want %v", got, web)
	}
}

// TestAddressesRunOut: a node or workload that gets no address reports that, and later gets a
// freed address.
func TestAddressesRunOut(t *testing.T) {
	c := start(t, func(config *controller.Config) {
		config.Network = network.Options{ClusterCIDR: "10.62.0.0/24", ServiceCIDR: "10.63.0.0/30"}
	}, "n1")
	c.eventually("a range of the first node", func() string {
		if got := c.podCIDRs(); got["n1"] != "10.62.0.0/24" {
			return fmt.Sprint(got)
		}
		return ""
	})
	c.scheduler.connect("n2")
	var late rikv1alpha1.Node
	c.eventually("the reason why the second node has no range", func() string {
		if err := c.client.Get(c.Context(), types.NamespacedName{Name: "n2"}, &late); err != nil {
			return err.Error()
		}
		condition := meta.FindStatusCondition(late.Status.Conditions, node.ConditionNetworkUnavailable)
		if late.Spec.PodCIDR != "" || condition == nil || !strings.Contains(condition.Message, "--cluster-cidr 10.62.0.0/24") {
			return fmt.Sprintf("%q %+v", late.Spec.PodCIDR, late.Status.Conditions)
		}
		return ""
	})
	for _, name := range []string{"a", "b"} {
		c.create(serving(c.namespace, name, 0, rikv1alpha1.Port{Port: 80}))
		c.addresses(name)
	}
	c.create(serving(c.namespace, "c", 0, rikv1alpha1.Port{Port: 80}))
	c.eventually("the reason why the third workload has no address", func() string {
		condition := meta.FindStatusCondition(c.workload("c").Status.Conditions, workload.ConditionAddressFailure)
		if condition == nil || !strings.Contains(condition.Message, "--service-cidr 10.63.0.0/30") {
			return fmt.Sprintf("%+v", c.workload("c").Status)
		}
		return ""
	})

	c.scheduler.disconnect("n1")
	for _, o := range []client.Object{&rikv1alpha1.Node{}, c.workload("a")} {
		if o.GetName() == "" {
			o.SetName("n1")
		}
		if err := c.client.Delete(c.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	c.eventually("the range that was freed", func() string {
		if err := c.client.Get(c.Context(), types.NamespacedName{Name: "n2"}, &late); err != nil {
			return err.Error()
		}
		condition := meta.FindStatusCondition(late.Status.Conditions, node.ConditionNetworkUnavailable)
		if late.Spec.PodCIDR != "10.62.0.0/24" || condition != nil {
			return fmt.Sprintf("%q %+v", late.Spec.PodCIDR, condition)
		}
		return ""
	})
	c.addresses("c")
	c.eventually("no failure any more", func() string {
		if condition := meta.FindStatusCondition(c.workload("c").Status.Conditions, workload.ConditionAddressFailure); condition != nil {
			return condition.Message
		}
		return ""
	})
}

// TestNodesAreReported: a node receives nodes, services and instances. It receives an ending
// instance before that is gone. It receives everything again from the next controller.
func TestNodesAreReported(t *testing.T) {
	c := start(t, nil, "n1")
	c.scheduler.do(func() { c.scheduler.address = "10.62.0.9" })
	seen := c.follow()
	c.create(serving(c.namespace, "web", 1, rikv1alpha1.Port{Port: 80}))
	in := c.wantRunning("web", 1)[0]
	complete := func() string {
		address := strings.Join(c.workload("web").Status.Addresses, " ")
		if seen.wholes == 0 || seen.peers["n1"] != "10.62.0.0/24" || seen.services["web"] != address || address == "" ||
			seen.endpoints[in.Name] != "10.62.0.9 true" {
			return fmt.Sprintf("nodes %v, services %v, endpoints %v", seen.peers, seen.services, seen.endpoints)
		}
		return ""
	}
	seen.eventually(c, "the node, the service and its instance", complete)

	c.stop()
	c.run()
	seen = c.follow()
	seen.eventually(c, "all of it again", complete)

	// The node does not stop the instance. The instance stays, but gets no new connections.
	c.scheduler.do(func() { c.scheduler.nodes["n1"] = false })
	if err := c.client.Delete(c.Context(), c.workload("web")); err != nil {
		t.Fatal(err)
	}
	seen.eventually(c, "an ending instance gets nothing new", func() string {
		if got := seen.endpoints[in.Name]; got != "10.62.0.9 false" {
			return fmt.Sprintf("it is %q", got)
		}
		return ""
	})
	c.scheduler.connect("n1")
	seen.eventually(c, "nothing of it is left", func() string {
		if len(seen.services) > 0 || len(seen.endpoints) > 0 {
			return fmt.Sprintf("services %v, endpoints %v", seen.services, seen.endpoints)
		}
		return ""
	})
}

// TestSilentNodeGetsNothingNew: the instances of a lost node are sent as not ready before any
// instance is replaced.
func TestSilentNodeGetsNothingNew(t *testing.T) {
	c := start(t, nil, "n1")
	c.scheduler.do(func() { c.scheduler.address = "10.62.0.9" })
	seen := c.follow()
	c.create(serving(c.namespace, "web", 1, rikv1alpha1.Port{Port: 80}))
	in := c.wantRunning("web", 1)[0]
	readiness := func(want string) {
		t.Helper()
		seen.eventually(c, "the instance", func() string {
			if got := seen.endpoints[in.Name]; got != "10.62.0.9 "+want {
				return fmt.Sprintf("it is %q, want %s", got, want)
			}
			return ""
		})
	}
	readiness("true")
	// The only node is never given up, so no instance is replaced.
	c.scheduler.disconnect("n1")
	readiness("false")
	c.scheduler.connect("n1")
	readiness("true")
}
