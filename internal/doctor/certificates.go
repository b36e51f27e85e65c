package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"rik.dev/rik/internal/pki"
)

// expiresSoon is how long before its expiry a certificate that its program does not renew is
// reported. One that its program renews is reported when two thirds of its life are long over.
const (
	expiresSoon = 30 * 24 * time.Hour
	// renewalShare is the share of a certificate's life, in percent, after which its program should
	// have renewed it. Programs renew when two thirds are over.
	renewalShare = 85
)

func checkValidity(m *Machine) []Finding {
	var all []Finding
	for _, c := range m.Certificates {
		if f := c.validity(m); f.Severity != OK {
			f.Object = c.Path
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		return ok("All certificates on this machine are valid.")
	}
	return all
}

// title names a certificate in messages.
func (c Certificate) title() string {
	return map[CertificateKind]string{
		KindAuthority: "certificate of the cluster's authority", KindServer: "server's certificate",
		KindAdmin: "administrator's certificate", KindNode: "node's certificate",
	}[c.Kind]
}

func (c Certificate) affects() string {
	switch c.Kind {
	case KindAuthority:
		return "every TLS connection of the cluster"
	case KindServer:
		return "clients and nodes do not connect to this server"
	case KindAdmin:
		return "rikctl with the administrator's configuration"
	default:
		return "the node does not connect to its server; its instances keep running"
	}
}

func (c Certificate) validity(m *Machine) Finding {
	day := func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
	f := Finding{Severity: Error, Affects: c.affects(), Fix: c.renew()}
	switch {
	case c.Err != "":
		f.Message = fmt.Sprintf("The %s in %s cannot be read: %s.", c.title(), c.Path, strings.TrimSuffix(c.Err, "."))
	case m.Now.Before(c.NotBefore):
		f.Message = fmt.Sprintf("The %s in %s is not valid before %s. The clock shows %s: set it if it is wrong.", c.title(), c.Path, day(c.NotBefore), day(m.Now))
		f.Fix = clockFix(m)
	case !m.Now.Before(c.NotAfter):
		f.Message = fmt.Sprintf("The %s in %s expired on %s.", c.title(), c.Path, day(c.NotAfter))
		if c.Kind == KindNode {
			f.Message += " The node must join again with a token, which rikctl token create makes on the server."
		}
	case m.Now.After(c.soon()):
		f.Severity = Warning
		f.Message = fmt.Sprintf("The %s in %s expires on %s.", c.title(), c.Path, day(c.NotAfter))
		if c.Automatic {
			f.Message += " Its program should have renewed it."
		}
	default:
		return Finding{Severity: OK}
	}
	return f
}

// soon is when the certificate is reported, before it expires.
func (c Certificate) soon() time.Time {
	switch {
	case c.Kind == KindAuthority:
		return c.NotAfter.Add(-pki.ExpiresSoon)
	case c.Automatic:
		return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * renewalShare / 100)
	default:
		return c.NotAfter.Add(-expiresSoon)
	}
}

// renew returns the command that replaces the certificate. A server issues its own certificates
// again when it starts. A node joins again with a token. The administrator creates it on the server.
func (c Certificate) renew() string {
	switch {
	case c.Kind == KindAuthority:
		return ""
	case c.Kind == KindNode && c.Unit == "riklet":
		return fmt.Sprintf("echo 'RIK_TOKEN=TOKEN' >> %s && systemctl restart riklet", quote(c.Settings))
	}
	return "systemctl restart " + quote(c.Unit)
}

func checkNames(m *Machine) []Finding {
	var all []Finding
	for _, c := range m.Certificates {
		if c.Kind != KindServer || c.Err != "" || m.Server.Host == "" || !m.Server.here(c) {
			continue
		}
		all = append(all, Finding{
			Severity: Error, Object: c.Path,
			Message: fmt.Sprintf("The server's certificate in %s is not for %s; it is for %s. Start the server with --tls-san %s.", c.Path, m.Server.Host, strings.Join(c.Names, ", "), m.Server.Host),
			Affects: "clients and nodes that use this address do not connect",
			Fix:     fmt.Sprintf(`printf 'RIK_SERVER_FLAGS="%%s --tls-san %s"\n' "$(. %s; echo "$RIK_SERVER_FLAGS")" >> %s && systemctl restart %s`, m.Server.Host, quote(c.Settings), quote(c.Settings), quote(c.Unit)),
		})
	}
	if len(all) == 0 {
		return ok("The names in the certificates on this machine are right.")
	}
	return all
}

// here reports whether the certificate of this machine's server lacks the name of the server. Only
// a server on this machine has certificates here.
func (s Server) here(c Certificate) bool {
	return !covers(c.Names, s.Host)
}

// covers reports whether a certificate with some names is valid for a host. Servers of rik have no
// wildcards in their certificates.
func covers(names []string, host string) bool {
	address, err := netip.ParseAddr(host)
	for _, name := range names {
		if strings.EqualFold(name, host) {
			return true
		}
		if other, err2 := netip.ParseAddr(name); err == nil && err2 == nil && other == address {
			return true
		}
	}
	return false
}

func checkPermissions(m *Machine) []Finding {
	var all []Finding
	for _, path := range slices.Sorted(maps.Keys(m.Exposed)) {
		all = append(all, Finding{
			Severity: Error, Object: path, Message: capital(strings.TrimSuffix(m.Exposed[path], ".")) + ".",
			Affects: "other users of this machine can act in the name of its owner; the server does not start", Fix: "chmod 0600 " + quote(path),
		})
	}
	if len(all) == 0 {
		return ok("No private key on this machine is accessible to other users.")
	}
	return all
}
