package validation_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
)

// onNodes returns templates of all kinds with one port on all nodes.
func onNodes(port int32, protocol rik.Protocol, kind rik.PortType) map[string]*rik.InstanceTemplate {
	p := rik.Port{Port: port, TargetPort: 8080, Protocol: protocol, Type: kind}
	return map[string]*rik.InstanceTemplate{
		"spec.containers[0].ports[0].port":     {Containers: []rik.Container{{Ports: []rik.Port{p}}}},
		"spec.function.exposure.port":          {Function: &rik.Function{Exposure: &p}},
		"spec.app.ports[0].port":               {App: &rik.App{Ports: []rik.Port{p}}},
		"spec.initContainers[0].ports[0].port": {InitContainers: []rik.Container{{Ports: []rik.Port{p}}}},
	}
}

// TestNodePorts tests that workloads cannot use ports of the machine's services and of rik, unless
// the operator allows it.
func TestNodePorts(t *testing.T) {
	t.Parallel()
	own := map[validation.OwnPort]string{{Protocol: rik.ProtocolTCP, Port: 5000}: "the API", {Protocol: rik.ProtocolUDP, Port: 8472}: "tunnels"}
	cases := []struct {
		list     string
		port     int32
		protocol rik.Protocol
		kind     rik.PortType
		want     string // part of the error; empty: none
	}{
		{validation.DefaultNodePorts, 30080, rik.ProtocolTCP, rik.PortNodePort, ""},
		{validation.DefaultNodePorts, 1024, rik.ProtocolUDP, rik.PortLoadBalancer, ""},
		{validation.DefaultNodePorts, 80, rik.ProtocolTCP, rik.PortNodePort, "1024-65535 (the server's --service-node-port-range)"},
		{validation.DefaultNodePorts, 53, rik.ProtocolUDP, rik.PortLoadBalancer, "outside"},
		{validation.DefaultNodePorts, 80, rik.ProtocolTCP, rik.PortClusterIP, ""},
		{validation.DefaultNodePorts, 5000, rik.ProtocolTCP, rik.PortNodePort, "used by rik itself for the API"},
		{validation.DefaultNodePorts, 5000, "", rik.PortNodePort, "used by rik itself"},
		{validation.DefaultNodePorts, 5000, rik.ProtocolUDP, rik.PortNodePort, ""},
		{validation.DefaultNodePorts, 8472, rik.ProtocolUDP, rik.PortNodePort, "used by rik itself"},
		{"80, 443,30000-32767", 443, rik.ProtocolTCP, rik.PortNodePort, ""},
		{"80,30000-32767", 8080, rik.ProtocolTCP, rik.PortNodePort, "outside the node ports of workloads, 80,30000-32767"},
		{"5000,30000-32767", 5000, rik.ProtocolTCP, rik.PortNodePort, ""},
		{"1-65535", 5000, rik.ProtocolTCP, rik.PortNodePort, "used by rik itself"},
	}
	for _, tc := range cases {
		ports, err := validation.ParseNodePorts(tc.list, own)
		if err != nil {
			t.Fatal(err)
		}
		for where, template := range onNodes(tc.port, tc.protocol, tc.kind) {
			errs := ports.Validate(field.NewPath("spec"), template, nil)
			if len(errs) == 0 && tc.want == "" {
				continue
			}
			if len(errs) != 1 || tc.want == "" || errs[0].Field != where || !strings.Contains(errs[0].Detail, tc.want) {
				t.Errorf("%s: %d/%s: got %v, want %q at %s", tc.list, tc.port, tc.protocol, errs, tc.want, where)
			}
			if errs := ports.Validate(field.NewPath("spec"), template, template); len(errs) != 0 {
				t.Errorf("what was had before: %v", errs)
			}
		}
	}
	for _, bad := range []string{"", "0", "80-", "90-80", "65536", "x", "80,,90", "-1"} {
		if _, err := validation.ParseNodePorts(bad, nil); err == nil {
			t.Errorf("ParseNodePorts(%q) = nil, want an error", bad)
		}
	}
	if errs := (validation.NodePorts{}).Validate(field.NewPath("spec"), onNodes(80, rik.ProtocolTCP, rik.PortNodePort)["spec.app.ports[0].port"], nil); len(errs) != 0 {
		t.Errorf("the zero value: %v", errs)
	}
}

// TestOwnPorts tests that the ports of rik, also those that every node uses, are not for workloads.
func TestOwnPorts(t *testing.T) {
	t.Parallel()
	own := validation.OwnPorts(validation.ServerPorts{API: 5000, Nodes: 4997, Workers: 4995})
	for _, p := range []validation.OwnPort{
		{Protocol: rik.ProtocolTCP, Port: 5000}, {Protocol: rik.ProtocolTCP, Port: 4997}, {Protocol: rik.ProtocolTCP, Port: 4995}, {Protocol: rik.ProtocolTCP, Port: 4996},
		{Protocol: rik.ProtocolUDP, Port: 8472}, {Protocol: rik.ProtocolUDP, Port: 4953}, {Protocol: rik.ProtocolTCP, Port: 4953},
	} {
		if own[p] == "" {
			t.Errorf("workloads may use %s port %d", p.Protocol, p.Port)
		}
	}
	if len(own) != 7 {
		t.Errorf("OwnPorts() = %v, want seven ports", own)
	}
}
