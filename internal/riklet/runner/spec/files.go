package spec

import (
	"fmt"
	"strings"
)

// Hosts renders the Pod's /etc/hosts.
func Hosts(hostname, address string) string {
	if address == "" {
		address = "127.0.1.1" // Debian's convention for a host without an address
	}
	var b strings.Builder
	b.WriteString("# written by rik; changes are lost when the instance ends\n")
	b.WriteString("127.0.0.1\tlocalhost\n")
	b.WriteString("::1\tlocalhost ip6-localhost ip6-loopback\n")
	fmt.Fprintf(&b, "%s\t%s\n", address, hostname)
	return b.String()
}

// maxHostname is HOST_NAME_MAX, see gethostname(2).
const maxHostname = 64

// Hostname returns the wanted name, or else the instance's name, in a form that the kernel and
// DNS accept.
func Hostname(wanted, instance string) string {
	name := wanted
	if name == "" {
		name = instance
	}
	name, _, _ = strings.Cut(name, ".")
	if len(name) >= maxHostname {
		name = name[:maxHostname-1]
	}
	name = strings.Trim(name, "-")
	if name == "" {
		return "instance"
	}
	return name
}
