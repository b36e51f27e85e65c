package doctor

import (
	"fmt"
	"slices"
	"strings"
)

const noServer = "No server was named with --server, and none runs on this machine."

func checkServerAddress(m *Machine) []Finding {
	switch {
	case m.Server.URL == "":
		return ok(noServer)
	case m.Server.Address.Failed():
		return []Finding{{
			Severity: Error, Object: m.Server.Host, Affects: "the node does not connect",
			Message: fmt.Sprintf("The name %s of the server cannot be resolved: %s.", m.Server.Host, strings.TrimSuffix(m.Server.Address.Err, ".")),
			Fix:     fmt.Sprintf("echo 'ADDRESS_OF_THE_SERVER %s' >> /etc/hosts", m.Server.Host),
		}}
	}
	return ok(fmt.Sprintf("The server's name %s can be resolved.", m.Server.Host))
}

func checkReachable(m *Machine) []Finding {
	if m.Server.URL == "" {
		return ok(noServer)
	}
	var all []Finding
	for _, e := range m.Server.Endpoints {
		f := Finding{Object: e.Address, Severity: OK, Message: fmt.Sprintf("%s answers, for %s.", e.Address, e.Purpose)}
		if e.Connect.Failed() {
			f = Finding{
				Object: e.Address, Severity: Error, Affects: e.Purpose,
				Message: fmt.Sprintf("%s cannot be reached: %s. Check that the server runs, and that every firewall on the way accepts the port.", e.Address, strings.TrimSuffix(e.Connect.Err, ".")),
				Fix:     m.startServer(),
			}
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		return ok(fmt.Sprintf("No port of the server %s was tried, because its name cannot be resolved.", m.Server.Host))
	}
	return all
}

// startServer returns the command that starts a server on this machine. For another machine, there
// is no command to run here.
func (m *Machine) startServer() string {
	if m.Role == RoleServer {
		return "systemctl start rik"
	}
	return ""
}

func checkServerCertificate(m *Machine) []Finding {
	s := m.Server
	switch {
	case s.URL == "":
		return ok(noServer)
	case !s.Verified.Tried && s.Presented.NotAfter.IsZero():
		return ok("The server's certificate was not checked, because the server does not answer.")
	case s.Verified.Failed():
		f := Finding{
			Severity: Error, Object: s.Host, Affects: "the node and clients do not connect",
			Message: fmt.Sprintf("The certificate of %s is refused: %s.", s.URL, strings.TrimSuffix(s.Verified.Err, ".")),
		}
		if !covers(s.Presented.Names, s.Host) {
			f.Message += fmt.Sprintf(" It is for %s. Use one of these names, or start the server with --tls-san %s.", strings.Join(s.Presented.Names, ", "), s.Host)
		}
		return []Finding{f}
	case !s.Verified.Tried && !covers(s.Presented.Names, s.Host):
		return []Finding{{
			Severity: Error, Object: s.Host, Affects: "the node and clients do not connect",
			Message: fmt.Sprintf("The certificate of %s is not for %s; it is for %s. Use one of these names, or start the server with --tls-san %s.", s.URL, s.Host, strings.Join(s.Presented.Names, ", "), s.Host),
		}}
	case !s.Verified.Tried:
		return ok(fmt.Sprintf("The certificate of %s is for this name. Its authority is not known here before the node joins.", s.URL))
	}
	return ok(fmt.Sprintf("The certificate of %s is valid.", s.URL))
}

func checkServerVersion(m *Machine) []Finding {
	switch {
	case m.Server.URL == "":
		return ok(noServer)
	case m.Server.Version == "":
		return ok("The version of the server is not known, because it does not answer.")
	}
	i := slices.IndexFunc(m.Programs, func(p Program) bool { return p.Name == "riklet" && p.Version != "" })
	local := m.Version
	if i >= 0 {
		local = m.Programs[i].Version
	}
	if local == m.Server.Version {
		return ok(fmt.Sprintf("This machine and the server have the same version, %s.", local))
	}
	return []Finding{{
		Severity: Warning, Object: m.Server.Host,
		Message: fmt.Sprintf("This machine has rik %s, and the server %s has %s.", local, m.Server.Host, m.Server.Version),
		Affects: "a server refuses nodes with another version of the node protocol", Fix: m.reinstall(),
	}}
}
