package validation

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/internal/apiserver/apis/rik"
)

// DefaultNodePorts are the ports of nodes that a workload may have unless the operator says
// otherwise. Those below 1024 belong to the services of the machine.
const DefaultNodePorts = "1024-65535"

// NodePorts says which ports of nodes workloads may have. The zero value allows all.
type NodePorts struct {
	ranges []portRange
	own    map[OwnPort]string
}

// OwnPort is a port that rik listens on itself.
type OwnPort struct {
	Protocol rik.Protocol
	Port     int32
}

// portRange includes both ends.
type portRange struct{ first, last int32 }

// ParseNodePorts reads a list such as "80,443,30000-32767". own are rik's ports with what
// each is for: no range includes them, but a single port of the list does.
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
		n.ranges = append(n.ranges, portRange{int32(first), int32(last)}) //nolint:gosec // 16 bits
	}
	return n, nil
}

// Validate refuses the ports of a template that it may not have on nodes. Those that the old
// template, which may be nil, has already are not judged again.
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

// refuse says why a port may not be had; empty: it may.
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

// String gives the list.
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

// eachNodePort visits the ports that a template wants on nodes.
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
