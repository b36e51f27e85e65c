package riklet

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/monitor"
	"rik.dev/rik/internal/riklet/network/proxy"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// lookInterval is the time between two checks of the machine's ports and address.
const lookInterval = 10 * time.Second

// ports are the ports on which processes of the machine listen, without rik's own. They belong to
// the goroutine that sends heartbeats.
type ports struct {
	reader   *monitor.Ports
	searched time.Time
	found    []monitor.Port
	reported []*schedulerv1.UsedPort
}

// facts returns the facts of the node. The caller must not change them.
func (r *Riklet) facts() *rikv1alpha1.NodeStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// refresh detects the node's address again, unless it was configured.
func (r *Riklet) refresh() *rikv1alpha1.NodeStatus {
	facts := r.facts()
	if r.cfg.InternalAddress != "" {
		return facts
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookup)
	defer cancel()
	address := monitor.Address(ctx, r.cfg.SchedulerAddr)
	if address == "" || address == facts.Info.InternalAddress {
		return facts
	}
	r.cfg.Logger.Info("the node's address changed", "node", r.cfg.NodeName, "address", address, "before", facts.Info.InternalAddress)
	facts = r.updateFacts(func(s *rikv1alpha1.NodeStatus) { s.Info.InternalAddress = address })
	r.updateAddress(facts)
	return facts
}

// updateFacts replaces the facts by a changed copy.
func (r *Riklet) updateFacts(change func(*rikv1alpha1.NodeStatus)) *rikv1alpha1.NodeStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	status := r.status.DeepCopy()
	change(status)
	r.status = status
	return status
}

// updateAddress sends the node's address to the network.
func (r *Riklet) updateAddress(facts *rikv1alpha1.NodeStatus) {
	if r.network == nil {
		return
	}
	address, _ := netip.ParseAddr(facts.Info.InternalAddress) // invalid: not known
	r.network.SetAddress(address.Unmap())
}

// followAddress registers again if the node's address has changed. A connection over the network
// breaks by itself when the address disappears. A connection in this process does not.
func (r *Riklet) followAddress() {
	if r.cfg.DialScheduler == nil {
		return
	}
	if before := r.facts(); r.refresh() != before {
		r.scheduler.Reconnect()
	}
}

// usedPorts returns the used ports for a heartbeat, and whether to send them. At most once per
// lookInterval, it checks the machine.
func (r *Riklet) usedPorts(whole bool) (used []*schedulerv1.UsedPort, changed bool) {
	if now := time.Now(); now.Sub(r.ports.searched) >= lookInterval {
		r.ports.searched = now
		changed = r.lookForPorts()
		r.followAddress()
	}
	if !changed && !whole {
		return nil, false
	}
	return r.ports.reported, true
}

// used converts a port for the scheduler. Loopback ports and ports that a workload also has
// affect only instances in the node's own network, which cannot listen on them.
func (r *Riklet) used(p monitor.Port) *schedulerv1.UsedPort {
	lost := r.network != nil && r.network.Lost(proxy.HostPort{Protocol: p.Protocol, Port: p.Port})
	return &schedulerv1.UsedPort{Protocol: string(p.Protocol), Port: int32(p.Port), HostNetworkOnly: p.Loopback || lost}
}

// troubles returns the parts of the network that do not work, the image archives that were
// refused, and why the controller refuses the node.
func (r *Riklet) troubles() (reported []*schedulerv1.NodeTrouble) {
	all := map[nodestate.TroubleKind]string{}
	if r.network != nil {
		maps.Copy(all, r.network.Troubles())
	}
	r.mu.Lock()
	if r.archives != "" {
		all[nodestate.TroubleImages] = r.archives
	}
	r.mu.Unlock()
	if refusal := r.controller.Refusal(); refusal != "" {
		all[nodestate.TroubleController] = refusal
	}
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		reported = append(reported, &schedulerv1.NodeTrouble{Kind: string(kind), Message: all[kind]})
	}
	return reported
}

// lookForPorts updates the used ports. It leaves out the name server and the instances in the
// node's own network, whose ports the scheduler knows.
func (r *Riklet) lookForPorts() (changed bool) {
	var own netip.AddrPort
	if r.network != nil {
		own = r.network.NameServer()
	}
	found, err := r.ports.reader.Look(own)
	if err != nil {
		r.cfg.Logger.Warn("listing the ports in use failed", "err", err)
		return false
	}
	instances := r.manager.HostPorts()
	found = slices.DeleteFunc(found, func(p monitor.Port) bool {
		return slices.ContainsFunc(instances, func(i rikv1alpha1.Port) bool {
			return cmp.Or(i.Protocol, rikv1alpha1.ProtocolTCP) == p.Protocol && (i.Port == int32(p.Port) || i.TargetPort == int32(p.Port))
		})
	})
	if r.network != nil && !slices.Equal(found, r.ports.found) {
		all := make([]proxy.Listener, len(found))
		for i, p := range found {
			at := proxy.HostPort{Protocol: p.Protocol, Port: p.Port}
			all[i] = proxy.Listener{HostPort: at, Loopback: p.Loopback, Privileged: p.Privileged}
		}
		r.network.SetListeners(all)
	}
	r.ports.found = found
	reported := make([]*schedulerv1.UsedPort, len(found))
	for i, p := range found {
		reported[i] = r.used(p)
	}
	same := slices.EqualFunc(reported, r.ports.reported, func(a, b *schedulerv1.UsedPort) bool { return proto.Equal(a, b) })
	r.ports.reported = reported
	return !same
}
