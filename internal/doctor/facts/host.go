package facts

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"rik.dev/rik/api/rik/nodestate"
	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/riklet/cgroup"
)

const resolvConf = "/etc/resolv.conf"

// engines are programs that run containers, by the name that the kernel shows.
var engines = map[string]string{
	"dockerd": "Docker", "containerd": "containerd", "crio": "CRI-O", "kubelet": "Kubernetes (kubelet)", "k3s-server": "k3s", "k3s-agent": "k3s",
	"k0s": "k0s", "nomad": "Nomad", "podman": "podman",
}

func (g *gatherer) host(ctx context.Context, name string) doctor.Host {
	h := doctor.Host{Resolve: probe(g.resolve(ctx, name)), NameProblems: nodestate.NodeNameProblems(strings.ToLower(name))}
	if name == "localhost" || strings.HasPrefix(name, "localhost.") {
		h.NameProblems = append(h.NameProblems, "every machine may have this name, and two nodes of a cluster may not")
	}
	config, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		h.ResolversErr = err.Error()
	} else {
		h.Resolvers = config.Servers
	}
	h.SwapBytes = swap()
	if layout, err := cgroup.Detect(); err == nil {
		h.SwapLimited = layout.SwapAccounting()
	}
	switch text("/sys/fs/selinux/enforce") {
	case "1":
		h.SELinux = "enforcing"
	case "0":
		h.SELinux = "permissive"
	}
	h.AppArmor = text("/sys/module/apparmor/parameters/enabled") == "Y"
	for _, p := range g.processes {
		if engine := engines[p.name]; engine != "" && !slices.Contains(h.Engines, engine) {
			h.Engines = append(h.Engines, engine)
		}
	}
	slices.Sort(h.Engines)
	return h
}

// resolve looks up a name as other programs do: getent(1) uses all modules of nsswitch.conf(5), such
// as the one of systemd for the machine's own name. Go's resolver does not.
func (g *gatherer) resolve(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeout)
	defer cancel()
	if path, err := exec.LookPath("getent"); err == nil && exec.CommandContext(ctx, path, "hosts", name).Run() == nil {
		return nil
	}
	_, err := net.DefaultResolver.LookupHost(ctx, name)
	return err
}

// swap returns the size of the active swap.
func swap() (bytes uint64) {
	f, err := os.Open("/proc/swaps")
	if err != nil {
		return 0
	}
	defer f.Close()
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		// Filename Type Size Used Priority, with sizes in KiB; the header has no number there.
		fields := strings.Fields(scanner.Text())
		if len(fields) < 3 {
			continue
		}
		if kib, err := strconv.ParseUint(fields[2], 10, 64); err == nil {
			bytes += kib << 10
		}
	}
	return bytes
}
