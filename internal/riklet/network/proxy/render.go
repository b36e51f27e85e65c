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

// The chains that exist on every node with a network, see doc.go.
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
	chainForward = ForwardChain
	chainRefused = "RIKLET-N"
)

// ForwardChain is the chain that accepts the forwarded packets of instances. While a node runs, a
// jump to it is the first rule of FORWARD.
const ForwardChain = "RIKLET-FORWARD"

// mark is set on connections to endpoints in another node's network. Their addresses do not show
// that they are rik's. It is a bit of the connection's mark, not of the packets'. Kubernetes and
// CNI use 0x2000 to 0x8000.
const mark = "0x1000/0x1000"

// markBit is the same bit as a number.
const markBit = 0x1000

// namePort is the port for DNS queries of instances, at the bridge's address. The name server
// listens at Facts.NamePort.
const namePort = 53

// protocol is a protocol that ports can have.
type protocol struct {
	api  rikv1alpha1.Protocol
	name string
}

// protocols are in the order of their rules, with their names in iptables.
var protocols = []protocol{{rikv1alpha1.ProtocolTCP, "tcp"}, {rikv1alpha1.ProtocolUDP, "udp"}, {rikv1alpha1.ProtocolSCTP, "sctp"}}

// Render returns the rules that the node needs. It is pure, and the same input gives the same
// rules. A small change of the input changes few chains. A node without a network gets no rules.
func Render(in Input) iptables.Ruleset { return render(in, servicePorts(in)) }

func render(in Input, all []servicePort) iptables.Ruleset {
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
	// ranges and addresses as rules contain them
	cluster, service, pods, gateway string
}

// add adds a rule that consists of the parts.
func (r *renderer) add(table, chain string, parts ...string) {
	r.out.Add(table, chain, strings.Join(parts, " "))
}

// routes renders the trees from address and port to endpoint, and the tree of the ports without a
// ready endpoint.
func (r *renderer) routes(all []servicePort) {
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
	r.dropUnknown()
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
func spare(f *servicePort, match string) []leaf {
	if !f.exceptLoopback {
		return nil
	}
	return []leaf{{uint32(f.port), "-d " + loopback + " " + match + " -j RETURN"}}
}

// onNode narrows a match to the node addresses at which the service has the port. At the bridge's
// address, the DNS port belongs to the name server.
func (r *renderer) onNode(f *servicePort, match string) string {
	if f.port == namePort && f.protocol != rikv1alpha1.ProtocolSCTP {
		return "! -d " + r.gateway + "/32 " + match
	}
	return match
}

// addresses renders the tree of the virtual addresses.
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

// byPort renders the tree of the ports of one protocol. It returns the tree's first chain.
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

// refuse returns a target that makes connections fail at once.
func refuse(protocol string) string {
	if protocol == "tcp" {
		return "-j REJECT --reject-with tcp-reset"
	}
	return "-j REJECT --reject-with icmp-port-unreachable"
}

// target returns the end of a rule. With one endpoint the rule leads there, with several to a
// chain that selects one.
func (r *renderer) target(f *servicePort, protocol string) string {
	if len(f.ready) == 1 {
		return r.send(protocol, f.ready[0])
	}
	chain := hash("RIKLET-S-", f.name())
	r.balance(chain, f.name(), protocol, f.ready, 0)
	return "-g " + chain
}

// send returns a target that leads to one endpoint.
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

// post adds the rules for source addresses. They change the source of connections whose replies
// would otherwise take another path or none.
func (r *renderer) post() {
	add := func(parts ...string) { r.add(nat, chainPost, parts...) }
	add("-m connmark --mark", mark, "-j MASQUERADE")
	// The node's own connections to 127.0.0.1: no other machine can reply to that source.
	add("-s 127.0.0.0/8 -d", r.cluster, "-j SNAT --to-source", r.gateway)
	if r.loops() {
		add("-s", r.pods, "-d", r.pods, "-m conntrack --ctstate DNAT -g", chainLoop)
	}
	add("-d", r.pods, "-j RETURN")
	// Otherwise the other node would reply directly to the client, from an address that the
	// client never used. It sends replies to the bridge's address back to this node.
	add("! -s", r.cluster, "-d", r.cluster, "-j SNAT --to-source", r.gateway)
	add("-s", r.pods, "-d 224.0.0.0/4 -j RETURN")
	add("-s", r.pods, "! -d", r.cluster, "! -o lo -j MASQUERADE")
}

// loops adds rules for instances that connect to themselves through a service: they drop packets
// from their own address.
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

// guard protects the loopback range from other machines. localnet.go makes links accept these
// addresses for the node's own connections. Without these two rules, neighbors could reach
// services that listen only on 127.0.0.1, as in CVE-2020-8558.
func (r *renderer) guard() {
	r.add(filter, chainInput, "! -i lo -s 127.0.0.0/8 -j DROP")
	note := ""
	if len(r.in.Opened) > 0 {
		note = "-m comment --comment " + strconv.Quote(noteBegins+strings.Join(r.in.Opened, " ")) + " "
	}
	r.add(filter, chainInput, "! -i lo -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT "+note+"-j DROP")
}

// names redirects DNS queries to the name server. Another server may have port 53 of all the
// node's addresses; it receives none of these queries.
func (r *renderer) names() {
	to := netip.AddrPortFrom(r.in.Facts.gateway(), r.in.Facts.NamePort)
	for _, p := range nameProtocols {
		chain := chainNames + "-" + strings.ToUpper(p)
		r.add(nat, chainEntry, "-d", r.gateway+"/32", onPort(p, namePort), "-j", chain)
		for _, from := range r.knownSources() {
			r.add(nat, chain, from, "-p", p, "-j DNAT --to-destination", to.String())
		}
	}
}

// nameProtocols are the protocols of DNS queries.
var nameProtocols = []string{"udp", "tcp"}

// input allows DNS queries of instances. It drops a query that was not redirected because another
// program removed the rules of table nat: a foreign server could answer it.
func (r *renderer) input() {
	for _, p := range nameProtocols {
		r.add(filter, chainInput, "-s", r.pods, "-d", r.gateway+"/32", onPort(p, int(r.in.Facts.NamePort)), "-j ACCEPT")
		r.add(filter, chainInput, "! -i lo -d", r.gateway+"/32", onPort(p, namePort), "-j DROP")
	}
}

// output refuses the node's own connections to virtual addresses without a service. Connections
// to other virtual addresses already have a new destination at this point.
func (r *renderer) output() { r.addReject(chainOutput) }

func (r *renderer) addReject(chain string) {
	r.add(filter, chain, "-d", r.service, "-p tcp", refuse("tcp"))
	r.add(filter, chain, "-d", r.service, refuse("icmp"))
}

// forward accepts packets of the cluster, and drops those of unknown clients to it.
func (r *renderer) forward() {
	add := func(parts ...string) { r.add(filter, chainForward, parts...) }
	r.addReject(chainForward)
	if port := r.in.Facts.TunnelPort; port != 0 {
		// Behind the node's address these would look like the node's own.
		add("-i", r.in.Facts.Bridge, "! -d", r.cluster, onPort("udp", int(port)), "-j DROP")
	}
	r.add(filter, chainForward, "-d", r.cluster, "-j", chainUnknown)
	// A reply that the kernel cannot match to its connection keeps the instance's address. The
	// client would reject it and reset the connection.
	add("-s", r.pods, "-m conntrack --ctstate INVALID -j DROP")
	add("-s", r.cluster, "-d", r.cluster, "-j ACCEPT")
	add("-s", r.pods, "-j ACCEPT")
	add("-d", r.cluster, "-m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT")
	add("-s", r.cluster, "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	add("-m connmark --mark", mark, "-j ACCEPT")
}
