package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/network/iptables"
)

// The chains that are there on every node with a network. RIKLET-... of doc.go.
const (
	nat, filter = "nat", "filter"

	chainEntry   = "RIKLET"
	chainNames   = "RIKLET-D"
	chainVirtual = "RIKLET-V"
	chainPorts   = "RIKLET-P"
	chainPost    = "RIKLET-POST"
	chainLoop    = "RIKLET-LOOP"
	chainInput   = "RIKLET-INPUT"
	chainOutput  = "RIKLET-OUTPUT"
	chainForward = "RIKLET-FORWARD"
	chainRefused = "RIKLET-N"
)

// mark is set on connections to endpoints in another node's network: they are
// ours although nothing in their addresses says so. It is a bit of the connection's
// mark, not of the packets'; 0x2000 to 0x8000 are used by Kubernetes and CNI.
const mark = "0x1000/0x1000"

// markBit is the same as a number.
const markBit = 0x1000

// namePort is where instances ask for names, at the bridge's address. The name server
// listens at Facts.NamePort.
const namePort = 53

// protocol is one that ports can have.
type protocol struct {
	api  rikv1alpha1.Protocol
	name string
}

// protocols in the order of their rules, with the names that iptables has.
var protocols = []protocol{{rikv1alpha1.ProtocolTCP, "tcp"}, {rikv1alpha1.ProtocolUDP, "udp"}, {rikv1alpha1.ProtocolSCTP, "sctp"}}

// Render says which rules the node needs. It is pure, and the same input gives the
// same rules; a small change of the input changes few chains. A node without a
// network gets none.
func Render(in Input) iptables.Ruleset { return render(in, fronts(in)) }

func render(in Input, all []front) iptables.Ruleset {
	if !in.active() {
		return iptables.Ruleset{}
	}
	r := renderer{
		in: in, out: iptables.Ruleset{},
		cluster: in.Snapshot.Settings.ClusterCIDR.Masked().String(),
		service: in.Snapshot.Settings.ServiceCIDR.Masked().String(),
		pods:    in.Facts.PodCIDR.Masked().String(),
		gateway: in.Facts.gateway().String(),
	}
	r.routes(all)
	r.post()
	r.input()
	r.output()
	r.forward()
	r.out[nat].Jumps = []iptables.Jump{{From: "PREROUTING", To: chainEntry}, {From: "OUTPUT", To: chainEntry}, {From: "POSTROUTING", To: chainPost}}
	r.out[filter].Jumps = []iptables.Jump{{From: "INPUT", To: chainInput}, {From: "OUTPUT", To: chainOutput}, {From: "FORWARD", To: chainForward}}
	return r.out
}

type renderer struct {
	in  Input
	out iptables.Ruleset
	// ranges and addresses as they stand in rules
	cluster, service, pods, gateway string
}

// add writes a rule from its parts.
func (r *renderer) add(table, chain string, parts ...string) {
	r.out.Add(table, chain, strings.Join(parts, " "))
}

// routes makes the trees from address and port to endpoint, and that of the ports
// nobody serves.
func (r *renderer) routes(all []front) {
	var virtual []leaf
	ports, refused := make([][]leaf, len(protocols)), make([][]leaf, len(protocols))
	for i := range all {
		f := &all[i]
		p := slices.IndexFunc(protocols, func(x protocol) bool { return x.api == f.protocol })
		if p < 0 {
			continue
		}
		match := onPort(protocols[p].name, int(f.port))
		if len(f.ready) == 0 {
			if f.node {
				refused[p] = append(refused[p], spare(f, match)...)
				refused[p] = append(refused[p], leaf{uint32(f.port), r.onNode(f, match) + " " + refuse(protocols[p].name)})
			}
			continue // a virtual address that leads nowhere is refused as such
		}
		target := r.target(f, protocols[p].name)
		for _, a := range f.virtual {
			virtual = append(virtual, leaf{number(a), "-d " + a.String() + "/32 " + match + " " + target})
		}
		if f.node {
			ports[p] = append(ports[p], spare(f, match)...)
			ports[p] = append(ports[p], leaf{uint32(f.port), r.onNode(f, match) + " " + target})
		}
	}
	r.out.Chain(nat, chainEntry)
	r.names()
	if len(virtual) > 0 {
		r.virtualFrom()
		r.addresses(virtual)
	}
	if slices.ContainsFunc(ports, func(l []leaf) bool { return len(l) > 0 }) {
		r.add(nat, chainEntry, "-m addrtype --dst-type LOCAL -g", chainPorts)
	}
	r.out.Chain(filter, chainInput)
	r.guard()
	r.tunnel()
	r.strangers()
	for p, protocol := range protocols {
		if len(ports[p]) > 0 {
			r.add(nat, chainPorts, "-p", protocol.name, "-g", r.byPort(nat, chainPorts, protocol.name, ports[p]))
		}
		if len(refused[p]) > 0 {
			to := r.byPort(filter, chainRefused, protocol.name, refused[p])
			r.add(filter, chainInput, "-p", protocol.name, "-m addrtype --dst-type LOCAL -m conntrack --ctstate NEW -j", to)
		}
	}
}

// loopback is the range that only this machine reaches.
const loopback = "127.0.0.0/8"

// spare leaves a port at loopback addresses to the process that listens there.
func spare(f *front, match string) []leaf {
	if !f.spared {
		return nil
	}
	return []leaf{{uint32(f.port), "-d " + loopback + " " + match + " -j RETURN"}}
}

// onNode narrows a match to the node's addresses at which the port is the service's:
// names are asked for at the bridge's, and are the node's to answer there.
func (r *renderer) onNode(f *front, match string) string {
	if f.port == namePort && f.protocol != rikv1alpha1.ProtocolSCTP {
		return "! -d " + r.gateway + "/32 " + match
	}
	return match
}

// addresses is the tree of the virtual addresses.
func (r *renderer) addresses(leaves []leaf) {
	cidr := r.in.Snapshot.Settings.ServiceCIDR.Masked()
	tree{
		add:  func(chain, rule string) { r.out.Add(nat, chain, rule) },
		name: func(base uint32, bits int) string { return fmt.Sprintf("%s-%08X-%d", chainVirtual, base, bits) },
		match: func(base uint32, bits int) string {
			return "-d " + netip.PrefixFrom(address(base), bits).String()
		},
		width: 32,
	}.grow(chainVirtual, number(cidr.Addr()), cidr.Bits(), leaves)
}

// byPort is the tree of the ports of one protocol. It returns its first chain.
func (r *renderer) byPort(table, chain, protocol string, leaves []leaf) string {
	root := chain + "-" + strings.ToUpper(protocol)
	tree{
		add:  func(chain, rule string) { r.out.Add(table, chain, rule) },
		name: func(base uint32, bits int) string { return fmt.Sprintf("%s-%04X-%d", root, base, bits) },
		match: func(base uint32, bits int) string {
			return fmt.Sprintf("-p %s -m %s --dport %d:%d", protocol, protocol, base, base+1<<(16-bits)-1)
		},
		width: 16,
	}.grow(root, 0, 0, leaves)
	return root
}

func onPort(protocol string, port int) string {
	return "-p " + protocol + " -m " + protocol + " --dport " + strconv.Itoa(port)
}

// refuse is how a client hears at once that nobody answers.
func refuse(protocol string) string {
	if protocol == "tcp" {
		return "-j REJECT --reject-with tcp-reset"
	}
	return "-j REJECT --reject-with icmp-port-unreachable"
}

// target ends a rule: with one endpoint it leads there, with several to the chain
// that picks one.
func (r *renderer) target(f *front, protocol string) string {
	if len(f.ready) == 1 {
		return r.send(protocol, f.ready[0])
	}
	chain := hash("RIKLET-S-", f.name())
	r.balance(chain, f.name(), protocol, f.ready, 0)
	return "-g " + chain
}

// send leads to one endpoint.
func (r *renderer) send(protocol string, b backend) string {
	to := "-j DNAT --to-destination " + b.to.String()
	if !b.away {
		return to
	}
	chain := hash("RIKLET-H-", protocol, b.to.String())
	if _, ok := r.out.Chain(nat, chainEntry).Chains[chain]; !ok {
		r.add(nat, chain, "-j CONNMARK --set-xmark", mark)
		r.add(nat, chain, "-p", protocol, to)
	}
	return "-g " + chain
}

// post gives connections an address of ours where the replies would otherwise take
// another way back, or none.
func (r *renderer) post() {
	add := func(parts ...string) { r.add(nat, chainPost, parts...) }
	add("-m connmark --mark", mark, "-j MASQUERADE")
	// The node's own, sent to 127.0.0.1: no other machine answers to that.
	add("-s 127.0.0.0/8 -d", r.cluster, "-j SNAT --to-source", r.gateway)
	if r.loops() {
		add("-s", r.pods, "-d", r.pods, "-m conntrack --ctstate DNAT -g", chainLoop)
	}
	add("-d", r.pods, "-j RETURN")
	// The other node would answer the client itself, from an address that the client
	// never sent to. The bridge's address is one that it sends back to us.
	add("! -s", r.cluster, "-d", r.cluster, "-j SNAT --to-source", r.gateway)
	add("-s", r.pods, "-d 224.0.0.0/4 -j RETURN")
	add("-s", r.pods, "! -d", r.cluster, "! -o lo -j MASQUERADE")
}

// loops covers instances that were sent to themselves: they drop packets from
// their own address.
func (r *renderer) loops() bool {
	seen := map[netip.Addr]bool{}
	var leaves []leaf
	for _, endpoints := range r.in.Snapshot.Endpoints {
		for _, e := range endpoints {
			if seen[e.Address] || !e.Address.Is4() || !r.in.Facts.PodCIDR.Contains(e.Address) {
				continue
			}
			seen[e.Address] = true
			a := e.Address.String() + "/32"
			leaves = append(leaves, leaf{number(e.Address), "-s " + a + " -d " + a + " -j SNAT --to-source " + r.gateway})
		}
	}
	if len(leaves) == 0 {
		return false
	}
	cidr := r.in.Facts.PodCIDR.Masked()
	tree{
		add:   func(chain, rule string) { r.out.Add(nat, chain, rule) },
		name:  func(base uint32, bits int) string { return fmt.Sprintf("%s-%08X-%d", chainLoop, base, bits) },
		match: func(base uint32, bits int) string { return "-d " + netip.PrefixFrom(address(base), bits).String() },
		width: 32,
	}.grow(chainLoop, number(cidr.Addr()), cidr.Bits(), leaves)
	return true
}

// guard keeps the loopback range to the node itself. Links are told to let it
// through for the node's own connections (localnet.go); without these two rules,
// neighbors could reach what listens on 127.0.0.1 only, as in CVE-2020-8558.
func (r *renderer) guard() {
	r.add(filter, chainInput, "! -i lo -s 127.0.0.0/8 -j DROP")
	note := ""
	if len(r.in.Opened) > 0 {
		note = "-m comment --comment " + strconv.Quote(noteBegins+strings.Join(r.in.Opened, " ")) + " "
	}
	r.add(filter, chainInput, "! -i lo -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT "+note+"-j DROP")
}

// names redirects questions to the name server. Another one may have port 53 of all the
// node's addresses; it gets none of them.
func (r *renderer) names() {
	to := netip.AddrPortFrom(r.in.Facts.gateway(), r.in.Facts.NamePort)
	for _, p := range nameProtocols {
		chain := chainNames + "-" + strings.ToUpper(p)
		r.add(nat, chainEntry, "-d", r.gateway+"/32", onPort(p, namePort), "-j", chain)
		for _, from := range r.friends() {
			r.add(nat, chain, from, "-p", p, "-j DNAT --to-destination", to.String())
		}
	}
}

// nameProtocols are those that questions come by.
var nameProtocols = []string{"udp", "tcp"}

// input lets instances ask for names. A question that was not redirected, because somebody
// removed the rules of table nat, is dropped: a server of others could answer it.
func (r *renderer) input() {
	for _, p := range nameProtocols {
		r.add(filter, chainInput, "-s", r.pods, "-d", r.gateway+"/32", onPort(p, int(r.in.Facts.NamePort)), "-j ACCEPT")
		r.add(filter, chainInput, "! -i lo -d", r.gateway+"/32", onPort(p, namePort), "-j DROP")
	}
}

// output refuses the node's own connections to virtual addresses that lead
// nowhere: those that lead somewhere have got another destination by now.
func (r *renderer) output() { r.nowhere(chainOutput) }

func (r *renderer) nowhere(chain string) {
	r.add(filter, chain, "-d", r.service, "-p tcp", refuse("tcp"))
	r.add(filter, chain, "-d", r.service, refuse("icmp"))
}

// forward lets through what is of the cluster, and drops what strangers send to it.
func (r *renderer) forward() {
	add := func(parts ...string) { r.add(filter, chainForward, parts...) }
	r.nowhere(chainForward)
	if port := r.in.Facts.TunnelPort; port != 0 {
		// Behind the node's address these would look like the node's own.
		add("-i", r.in.Facts.Bridge, "! -d", r.cluster, onPort("udp", int(port)), "-j DROP")
	}
	r.add(filter, chainForward, "-d", r.cluster, "-j", chainStrangers)
	// A reply that the kernel cannot match to its connection keeps the instance's
	// address; the client would take it for a stranger's and break off.
	add("-s", r.pods, "-m conntrack --ctstate INVALID -j DROP")
	add("-s", r.cluster, "-d", r.cluster, "-j ACCEPT")
	add("-s", r.pods, "-j ACCEPT")
	add("-d", r.cluster, "-m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT")
	add("-s", r.cluster, "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	add("-m connmark --mark", mark, "-j ACCEPT")
}
