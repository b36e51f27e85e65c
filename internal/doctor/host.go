package doctor

import (
	"fmt"
	"strings"
)

func checkHostName(m *Machine) []Finding {
	switch {
	case len(m.Host.NameProblems) > 0:
		return []Finding{{
			Severity: Warning, Object: m.Hostname, Affects: "the default name of the node",
			Message: fmt.Sprintf("The host name %q is not a good name for a node: %s. Change it, or use --node-name.", m.Hostname, strings.Join(m.Host.NameProblems, "; ")),
			Fix:     "hostnamectl set-hostname NEW-NAME",
		}}
	case m.Host.Resolve.Failed():
		return []Finding{{
			Severity: Warning, Object: m.Hostname, Affects: "programs that look up the name of this machine, such as sudo and other machines' clients",
			Message: fmt.Sprintf("The host name %s cannot be resolved: %s.", m.Hostname, strings.TrimSuffix(m.Host.Resolve.Err, ".")),
			Fix:     fmt.Sprintf("echo '127.0.1.1 %s' >> /etc/hosts", m.Hostname),
		}}
	}
	return ok(fmt.Sprintf("The host name %s can be resolved, and is a name for a node.", m.Hostname))
}

func checkDNS(m *Machine) []Finding {
	switch {
	case m.Host.ResolversErr != "":
		return []Finding{{
			Severity: Warning, Message: "The name servers of this machine cannot be read: " + strings.TrimSuffix(m.Host.ResolversErr, ".") + ".",
			Affects: "images are not pulled from registries, and instances cannot resolve names outside the cluster", Fix: "echo 'nameserver ADDRESS_OF_A_NAME_SERVER' > /etc/resolv.conf",
		}}
	case len(m.Host.Resolvers) == 0:
		return []Finding{{
			Severity: Warning, Message: "/etc/resolv.conf names no name server.",
			Affects: "images are not pulled from registries, and instances cannot resolve names outside the cluster", Fix: "echo 'nameserver ADDRESS_OF_A_NAME_SERVER' >> /etc/resolv.conf",
		}}
	}
	return ok("The machine uses the name servers " + strings.Join(m.Host.Resolvers, ", ") + ".")
}

func checkSwap(m *Machine) []Finding {
	switch {
	case m.Host.SwapBytes == 0:
		return ok("The machine has no swap.")
	case m.Host.SwapLimited:
		return ok(fmt.Sprintf("The machine has %s of swap. rik limits the memory and swap of instances together.", bytesText(m.Host.SwapBytes)))
	}
	return []Finding{{
		Severity: Warning, Message: fmt.Sprintf("The machine has %s of swap, and the kernel cannot limit the swap of a cgroup.", bytesText(m.Host.SwapBytes)),
		Affects: "instances use swap beyond their memory limit", Fix: "swapoff -a",
	}}
}

func checkSELinux(m *Machine) []Finding {
	switch m.Host.SELinux {
	case "":
		return ok("SELinux is not enabled.")
	case "permissive":
		return ok("SELinux is permissive.")
	}
	return []Finding{{
		Severity: Warning, Message: "SELinux is enforcing, and rik has no policy for it. Its instances have the label of the service.",
		Affects: "containers may be denied access to volumes of this machine; look for denials with: ausearch -m avc -ts recent",
		Fix:     "semanage permissive -a unconfined_service_t",
	}}
}

func checkAppArmor(m *Machine) []Finding {
	if !m.Host.AppArmor {
		return ok("AppArmor is not enabled.")
	}
	return ok("AppArmor is enabled. rik sets no profile for instances, so it does not restrict them.")
}

func checkEngines(m *Machine) []Finding {
	if len(m.Host.Engines) == 0 {
		return ok("No other container engine runs on this machine.")
	}
	return []Finding{{
		Severity: Info, Message: fmt.Sprintf("Other programs that run containers are on this machine: %s. They work next to rik. Their firewall rules are checked by firewall-forward.", strings.Join(m.Host.Engines, ", ")),
	}}
}
