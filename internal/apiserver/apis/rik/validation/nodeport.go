package validation

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
)

// DefaultNodePorts are the ports of nodes that workloads may use by default. The ports below 1024
// belong to the services of the machine.
const DefaultNodePorts = "1024-65535"

// NodePorts is the set of node ports that workloads may use. The zero value allows all ports.
type NodePorts struct {
	ranges []portRange
	own    map[OwnPort]string
}

// OwnPort is a port on which rik listens.
type OwnPort struct {
	Protocol rik.Protocol
	Port     int32
}

// The ports that every node uses, and the usual port of a scheduler that runs as a separate process.
const (
	portTunnels   = 8472 // VXLAN
	portNames     = 4953
	portScheduler = rikv1alpha1.PortScheduler
)

// ServerPorts are the ports of a control plane and of its scheduler.
// Peers is 0 for a server that is never one of several.
type ServerPorts struct{ API, Nodes, Workers, Peers int }

// OwnPorts returns rik's own ports with their purposes. Workloads may not use them, because clients
// of a restarting server would otherwise reach a workload.
func OwnPorts(s ServerPorts) map[OwnPort]string {
	const names = "the nodes' name servers"
	own := map[OwnPort]string{
		{Protocol: rik.ProtocolUDP, Port: portTunnels}: "the tunnels between nodes (VXLAN)",
		{Protocol: rik.ProtocolUDP, Port: portNames}:   names,
		{Protocol: rik.ProtocolTCP, Port: portNames}:   names,
	}
	for port, what := range map[int]string{
		s.API: "the API", s.Nodes: "connections of nodes to the controller", s.Workers: "connections of nodes to the scheduler", portScheduler: "the scheduler", s.Peers: "connections of other servers",
	} {
		if port == 0 {
			continue
		}
		own[OwnPort{Protocol: rik.ProtocolTCP, Port: int32(port)}] = what
	}
	return own
}

// portRange is a range of ports, including both ends.
type portRange struct{ first, last int32 }

// ParseNodePorts parses a list such as "80,443,30000-32767". own maps rik's ports to their
// purposes. A range of the list does not include them, but the list can name one as a single
// port.
func ParseNodePorts(list string, own map[OwnPort]string) (NodePorts, error) {
	n := NodePorts{own: own}
	for _, text := range strings.Split(list, ",") {
		from, to, found := strings.Cut(strings.TrimSpace(text), "-")
		if !found {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		if err != nil || err2 != nil || first == 0 || last < first {
			return NodePorts{}, fmt.Errorf("%q is neither a port nor a range of ports such as 30000-32767", text)
		}
		n.ranges = append(n.ranges, portRange{int32(first), int32(last)})
	}
	return n, nil
}

// Validate rejects the node ports of a template that workloads may not use. It accepts the ports of
// the old template, which may be nil.
func (n NodePorts) Validate(at *field.Path, t, old *rik.InstanceTemplate) field.ErrorList {
	if len(n.ranges) == 0 {
		return nil
	}
	had := map[OwnPort]bool{}
	if old != nil {
		eachNodePort(at, old, func(_ *field.Path, p OwnPort) { had[p] = true })
	}
	var errs field.ErrorList
	eachNodePort(at, t, func(where *field.Path, p OwnPort) {
		if why := n.refuse(p); why != "" && !had[p] {
			errs = append(errs, field.Forbidden(where, why))
		}
	})
	return errs
}

// refuse returns why a port is not allowed, or "".
func (n NodePorts) refuse(p OwnPort) string {
	within := false
	for _, r := range n.ranges {
		if r.first == p.Port && r.last == p.Port {
			return ""
		}
		within = within || r.first <= p.Port && p.Port <= r.last
	}
	const flag = "the server's --service-node-port-range"
	if what, taken := n.own[p]; taken {
		return fmt.Sprintf("is used by rik itself for %s; the operator can allow it by listing the single port in %s", what, flag)
	}
	if !within {
		return fmt.Sprintf("is outside the node ports of workloads, %s (%s)", n, flag)
	}
	return ""
}

// String returns the list in the format of ParseNodePorts.
func (n NodePorts) String() string {
	var parts []string
	for _, r := range n.ranges {
		text := strconv.Itoa(int(r.first))
		if r.last != r.first {
			text += "-" + strconv.Itoa(int(r.last))
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ",")
}

// eachNodePort calls visit for each node port of a template.
func eachNodePort(at *field.Path, t *rik.InstanceTemplate, visit func(*field.Path, OwnPort)) {
	one := func(where *field.Path, port int32, protocol rik.Protocol, kind rik.PortType) {
		if kind != rik.PortNodePort && kind != rik.PortLoadBalancer {
			return
		}
		if protocol == "" {
			protocol = rik.ProtocolTCP
		}
		visit(where, OwnPort{protocol, port})
	}
	list := func(where *field.Path, ports []rik.Port) {
		for i := range ports {
			one(where.Index(i).Child("port"), ports[i].Port, ports[i].Protocol, ports[i].Type)
		}
	}
	for i := range t.Containers {
		list(at.Child("containers").Index(i).Child("ports"), t.Containers[i].Ports)
	}
	for i := range t.InitContainers {
		list(at.Child("initContainers").Index(i).Child("ports"), t.InitContainers[i].Ports)
	}
	if t.Function != nil && t.Function.Exposure != nil {
		e := t.Function.Exposure
		one(at.Child("function", "exposure", "port"), e.Port, e.Protocol, e.Type)
	}
	if t.App != nil {
		list(at.Child("app", "ports"), t.App.Ports)
	}
}
