package doctor

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/portowner"
	"rik.dev/rik/internal/riklet/network/iptables"
)

var (
	now       = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	instances = netip.MustParsePrefix("10.62.0.0/16")
)

// healthy is a server with a node on which all is well.
func healthy() *Machine {
	works := Probe{Tried: true}
	m := &Machine{
		Role: RoleServer, Root: true, Version: "v1.0.0", Now: now, Hostname: "alpha",
		Distribution: Distribution{ID: "debian", Name: "Debian GNU/Linux", Version: "12"},
		Kernel: Kernel{
			Release: "6.1.0-13-amd64", Config: map[string]string{}, Loaded: map[string]bool{}, Builtin: map[string]bool{}, Installed: map[string]bool{},
			Probes: map[Feature]Probe{},
		},
		Cgroup: Cgroup{Mode: "v2", Controllers: []string{"cpu", "io", "memory", "pids"}, Write: works},
		Firewall: Firewall{Range: instances, Variants: []Variant{
			{Name: "nf_tables", Program: "iptables", Used: true, Own: true, Filter: map[string]iptables.Chain{
				"FORWARD": {Policy: "ACCEPT", Rules: []string{"-j RIKLET-FORWARD"}}, "INPUT": {Policy: "ACCEPT"},
			}},
			{Name: "legacy", Program: "iptables-legacy"},
		}},
		Network: Network{Forward: "1", RPFilter: map[string]string{"eth0": "2"}, Tracked: 10, MaxTracked: 1000, Overlay: []string{}, Names: []string{}},
		Ports: []Port{
			{ID: "port-api", Number: 5000, Protocol: portowner.TCP, Purpose: "the API", Flag: "--port", Taken: true, Owner: portowner.Owner{PID: 7, Program: "rik"}},
			{ID: "port-workers", Number: 4995, Protocol: portowner.TCP, Purpose: "the connections of nodes to the scheduler", Flag: "--worker-port"},
			{ID: "port-nodes", Number: 4997, Protocol: portowner.TCP, Purpose: "the connections of nodes to the controller", Flag: "--node-port"},
			{ID: "port-names", Number: 4953, Protocol: portowner.UDP, Purpose: "DNS queries of instances"},
			{ID: "port-overlay", Number: 8472, Protocol: portowner.UDP, Purpose: "the tunnels to other nodes", Taken: true, Device: "rik.1"},
		},
		Clock: Clock{Known: true, Synchronized: true, Service: "chrony", Skew: new(time.Duration)},
		Directories: []Directory{
			{Path: "/var/lib/rik/data", Flag: "--data-dir", Use: UseData, Exists: true, MountPoint: "/", FileSystem: "ext4", Options: []string{"rw", "relatime"}, FreeBytes: 60 << 30, TotalBytes: 100 << 30, FreeInodes: 900, TotalInodes: 1000},
			{Path: "/var/lib/riklet", Flag: "--state-dir", Use: UseState, Exists: true, MountPoint: "/", FileSystem: "ext4", Options: []string{"rw", "relatime"}, FreeBytes: 60 << 30, TotalBytes: 100 << 30, FreeInodes: 900, TotalInodes: 1000, Upper: works},
			{Path: "/run/riklet", Flag: "--run-dir", Use: UseRun, Exists: true, MountPoint: "/run/riklet", FileSystem: "tmpfs", Options: []string{"rw", "nosuid", "nodev"}, FreeBytes: 60 << 20, TotalBytes: 64 << 20, FreeInodes: 900, TotalInodes: 1000},
		},
		Limits: Limits{Process: "rik", Unit: "rik", OpenFiles: 1048576, MemoryLock: 8 << 20, PIDMax: 4194304, InotifyInstances: 8192, InotifyWatches: 524288},
		Programs: []Program{
			{Name: "rik", Path: "/usr/bin/rik", Version: "v1.0.0", Part: true}, {Name: "rikctl", Path: "/usr/bin/rikctl", Version: "v1.0.0", Part: true},
			{Name: "runc", Path: "/usr/lib/rik/runc", Version: "1.5.2", Part: true, Required: "Pods do not start"},
			{Name: "rik-shim", Path: "/usr/lib/rik/rik-shim", Part: true, Required: "instances do not start"},
			{Name: "qemu-system-x86_64", Path: "/usr/bin/qemu-system-x86_64", Version: "7.2"},
		},
		Processes: []Process{{PID: 7, Program: "rik", Unit: "rik"}},
		Certificates: []Certificate{
			{Path: "/var/lib/rik/data/pki/ca.crt", Kind: KindAuthority, NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(9, 0, 0), Unit: "rik"},
			{Path: "/var/lib/rik/data/pki/server.crt", Kind: KindServer, NotBefore: now.AddDate(0, 0, -10), NotAfter: now.AddDate(0, 0, 355), Names: []string{"localhost", "127.0.0.1"}, Unit: "rik", Settings: "/etc/default/rik", Automatic: true},
			{Path: "/var/lib/riklet/identity.pem", Kind: KindNode, NotBefore: now.AddDate(0, 0, -10), NotAfter: now.AddDate(0, 0, 20), Unit: "riklet", Settings: "/etc/default/riklet", Automatic: true},
		},
		Exposed: map[string]string{},
		Server: Server{
			URL: "https://127.0.0.1:5000", Host: "127.0.0.1", Address: works, Verified: works, Version: "v1.0.0",
			Endpoints: []Endpoint{{Address: "127.0.0.1:5000", Purpose: "the API", Connect: works}},
			Presented: Certificate{NotAfter: now.AddDate(1, 0, 0), Names: []string{"127.0.0.1"}},
		},
		Node: Node{StateDir: "/var/lib/riklet", RunDir: "/run/riklet", CgroupParent: "/rik", Installed: true, Running: "process 7 (rik)", Links: []string{"rik0"}},
		Host: Host{Resolve: works, Resolvers: []string{"192.0.2.53"}},
	}
	for _, f := range features {
		m.Kernel.Probes[f.name] = works
		for _, option := range f.options {
			m.Kernel.Config[option] = "m"
		}
	}
	return m
}

// broken is a machine with one fault, and the finding that reports it.
type broken struct {
	name     string
	change   func(*Machine)
	id       string
	severity Severity
	// says are parts of the message, and fix is a part of the command, or the whole if it begins with
	// "=". An empty fix means that there must be none.
	says []string
	fix  string
}

var failed = Probe{Tried: true, Err: "operation not supported"}

// lacks makes a probe of the kernel fail.
func lacks(f Feature) func(*Machine) {
	return func(m *Machine) { m.Kernel.Probes[f] = failed }
}

// dropping makes a chain drop by default.
func dropping(v *Variant, chain string, rules ...string) {
	filter := maps.Clone(v.Filter)
	if filter == nil {
		filter = map[string]iptables.Chain{}
	}
	filter[chain] = iptables.Chain{Policy: "DROP", Rules: rules}
	v.Filter = filter
}

// table has every fault that the checks know.
var table = []broken{
	{"not root", func(m *Machine) { m.Root = false }, "host-root", Warning, []string{"did not run as root"}, "sudo rik doctor"},
	{"old kernel", func(m *Machine) { m.Kernel.Release = "4.18.0-553.el8" }, "kernel-version", Error, []string{"4.18.0", "5.11 or later"}, "=apt-get install -y linux-image-generic"},
	{"an old minor version", func(m *Machine) { m.Kernel.Release = "5.10.0-28-amd64" }, "kernel-version", Error, []string{"5.10.0"}, "linux-image"},
	{"strange kernel", func(m *Machine) { m.Kernel.Release = "next" }, "kernel-version", Warning, []string{`"next"`}, ""},

	{"no overlay", lacks(FeatureOverlay), "kernel-overlay", Error, []string{"overlay file systems", "operation not supported", "module overlay is not installed"}, "apt-get install -y linux-image-amd64"},
	{"a module that is not loaded", func(m *Machine) {
		lacks(FeatureVXLAN)(m)
		m.Kernel.Installed["vxlan"] = true
	}, "kernel-vxlan", Warning, []string{"module vxlan is installed and not loaded"}, "=modprobe -a vxlan && printf 'vxlan\\n' >> /etc/modules-load.d/rik.conf"},
	{"a kernel without the option", func(m *Machine) {
		lacks(FeatureVeth)(m)
		m.Kernel.Config["CONFIG_VETH"] = "n"
	}, "kernel-veth", Error, []string{"built without CONFIG_VETH"}, ""},
	{"modules in another package of Ubuntu", func(m *Machine) {
		lacks(FeatureBridge)(m)
		m.Distribution.ID, m.Kernel.Config = "ubuntu", nil
	}, "kernel-bridge", Error, []string{"module bridge is not installed"}, "=apt-get install -y linux-modules-extra-$(uname -r)"},
	{"modules in another package of Fedora", func(m *Machine) {
		lacks(FeatureTUN)(m)
		m.Distribution, m.Kernel.Config = Distribution{ID: "rocky", Like: []string{"rhel"}}, nil
	}, "kernel-tun", Warning, []string{"TAP devices"}, "=dnf install -y kernel-modules-extra-$(uname -r)"},
	{"rules that iptables refuses", lacks(FeatureRules), "kernel-rules", Error, []string{"firewall rules of rik"}, "linux-image-amd64"},
	{"no seccomp", func(m *Machine) {
		lacks(FeatureSeccomp)(m)
		m.Kernel.Config = nil
	}, "kernel-seccomp", Error, []string{"seccomp filters"}, ""},
	{"no user namespaces", func(m *Machine) {
		lacks(FeatureUsers)(m)
		m.Kernel.Config = nil
	}, "kernel-user-namespaces", Info, []string{"user namespaces"}, ""},
	{"no KVM", lacks(FeatureKVM), "kernel-kvm", Info, []string{"KVM", "nested virtualization"}, ""},
	{"an untested feature", func(m *Machine) { m.Kernel.Probes[FeatureVeth], m.Kernel.Config = Probe{}, nil }, "kernel-veth", Info, []string{"not tested"}, "=sudo rik doctor"},
	{"an untested feature that is off", func(m *Machine) {
		m.Kernel.Probes[FeatureVXLAN], m.Kernel.Config["CONFIG_VXLAN"] = Probe{}, "n"
	}, "kernel-vxlan", Warning, []string{"built without CONFIG_VXLAN"}, ""},

	{"no cgroups", func(m *Machine) { m.Cgroup = Cgroup{Problem: "this process has no mounted cgroup hierarchy."} }, "cgroup-mode", Error, []string{"no mounted cgroup hierarchy."}, "mount -t cgroup2"},
	{"hybrid cgroups", func(m *Machine) { m.Cgroup.Mode = "hybrid" }, "cgroup-mode", Info, []string{"hybrid"}, ""},
	{"no memory controller", func(m *Machine) { m.Cgroup.Controllers = []string{"cpu", "pids"} }, "cgroup-controllers", Error, []string{"memory", "cgroup_enable=memory"}, "update-grub"},
	{"cgroups that are read-only", func(m *Machine) { m.Cgroup.Write = Probe{Tried: true, Err: "read-only file system"} }, "cgroup-delegation", Error, []string{"read-only file system"}, "=mount -o remount,rw /sys/fs/cgroup"},
	{"processes in the topmost cgroup of a container", func(m *Machine) { m.Cgroup.Occupied = true }, "cgroup-delegation", Error, []string{"topmost cgroup of this container"}, "mkdir -p /sys/fs/cgroup/init"},

	{"no iptables", func(m *Machine) { m.Firewall.Problem, m.Firewall.Variants = "iptables is not installed", nil }, "firewall-iptables", Error, []string{"not installed"}, "=apt-get install -y iptables"},
	{"no iptables on Fedora", func(m *Machine) {
		m.Firewall.Problem, m.Distribution = "iptables is not installed", Distribution{ID: "fedora"}
	}, "firewall-iptables", Error, []string{"not installed"}, "=dnf install -y iptables-nft"},
	{"two variants", func(m *Machine) { m.Firewall.Variants[1].Others = true }, "firewall-mixed", Warning, []string{"iptables, iptables-legacy", "rik uses iptables"}, "=update-alternatives --set iptables /usr/sbin/iptables-nft && reboot"},
	{"a policy of DROP by Docker in the other variant", func(m *Machine) {
		m.Firewall.Variants[1].Others = true
		dropping(&m.Firewall.Variants[1], "FORWARD", "-j DOCKER-USER", "-j DOCKER-ISOLATION-STAGE-1")
	}, "firewall-forward", Error, []string{"iptables-legacy drops forwarded packets", "which Docker sets"}, "=iptables-legacy -I DOCKER-USER -s 10.62.0.0/16 -j ACCEPT && iptables-legacy -I DOCKER-USER -d 10.62.0.0/16 -j ACCEPT"},
	{"a rule that drops in the other variant", func(m *Machine) {
		m.Firewall.Variants[1].Filter = map[string]iptables.Chain{"FORWARD": {Policy: "ACCEPT", Rules: []string{"-i eth0 -j ACCEPT", "-j REJECT --reject-with icmp-host-prohibited"}}}
	}, "firewall-forward", Error, []string{"iptables-legacy"}, "=iptables-legacy -I FORWARD -s 10.62.0.0/16 -j ACCEPT && iptables-legacy -I FORWARD -d 10.62.0.0/16 -j ACCEPT"},
	{"a policy of DROP in rik's variant, and rik's rules are lost", func(m *Machine) { dropping(&m.Firewall.Variants[0], "FORWARD", "-j DOCKER-USER", "-j RIKLET-FORWARD") }, "firewall-forward", Error, []string{"rik's rules are not the first"}, "=systemctl restart rik"},
	{"a policy of DROP before the node starts", func(m *Machine) {
		m.Node.Running = ""
		dropping(&m.Firewall.Variants[0], "FORWARD", "-j DOCKER-USER")
	}, "firewall-forward", Info, []string{"rik puts its own rules first"}, ""},
	{"another table of nftables", func(m *Machine) {
		m.Firewall.Chains = []NFTChain{{Family: "inet", Table: "filter", Name: "forward", Hook: "forward", Drops: true}}
	}, "firewall-forward", Error, []string{"inet filter forward"}, "=nft insert rule inet filter forward ip saddr 10.62.0.0/16 accept && nft insert rule inet filter forward ip daddr 10.62.0.0/16 accept"},
	{"a closed input", func(m *Machine) { dropping(&m.Firewall.Variants[0], "INPUT", "-p tcp -m tcp --dport 22 -j ACCEPT") }, "firewall-input", Warning, []string{"tcp 5000", "tcp 4995", "tcp 4997"}, "iptables -I INPUT -p tcp --dport 5000 -j ACCEPT"},
	{"ufw", func(m *Machine) {
		m.Firewall.UFW = true
		dropping(&m.Firewall.Variants[0], "INPUT")
	}, "firewall-input", Warning, []string{"tcp 5000"}, "=ufw allow 5000/tcp && ufw allow 4995/tcp && ufw allow 4997/tcp"},
	{"an input chain of nftables", func(m *Machine) {
		m.Role = RoleNode
		m.Firewall.Chains = []NFTChain{{Family: "inet", Table: "filter", Name: "input", Hook: "input", Drops: true, Accepts: []string{"udp 8472"}}}
	}, "firewall-input", Warning, []string{"rik0 udp 4953"}, "=nft insert rule inet filter input iifname rik0 udp dport 4953 accept && nft insert rule inet filter input iifname rik0 tcp dport 4953 accept"},
	{"firewalld", func(m *Machine) { m.Firewall.Firewalld = true }, "firewall-firewalld", Error, []string{"does not trust 10.62.0.0/16"}, "firewall-cmd --permanent --zone=trusted --add-source=10.62.0.0/16 &&"},
	{"firewalld with closed ports", func(m *Machine) {
		m.Firewall.Firewalld, m.Firewall.Trusts, m.Firewall.Open = true, true, []string{"5000/tcp", "4997/tcp", "8472/udp"}
	}, "firewall-firewalld", Warning, []string{"does not open 4995/tcp."}, "=firewall-cmd --permanent --add-port=4995/tcp && firewall-cmd --reload"},
	{"firewalld with closed ports on a server without a node", func(m *Machine) {
		m.Firewall.Firewalld, m.Node.NoNetwork, m.Firewall.Open = true, true, []string{"5000/tcp", "4995/tcp"}
	}, "firewall-firewalld", Warning, []string{"does not open 4997/tcp."}, "=firewall-cmd --permanent --add-port=4997/tcp && firewall-cmd --reload"},

	{"no forwarding", func(m *Machine) { m.Network.Forward = "0" }, "network-ip-forward", Error, []string{"although the node runs"}, "sysctl -w net.ipv4.ip_forward=1"},
	{"no forwarding before the installation", func(m *Machine) { m.Network.Forward, m.Node.Running = "0", "" }, "network-ip-forward", Info, []string{"when it starts"}, ""},
	{"no forwarding after the next boot", func(m *Machine) { m.Network.ForwardOff = []string{"/etc/sysctl.d/99-harden.conf"} }, "network-ip-forward", Warning, []string{"99-harden.conf"}, "sed -i"},
	{"a strict filter", func(m *Machine) { m.Network.RPFilter = map[string]string{"eth0": "1", "eth1": "2"} }, "network-rp-filter", Warning, []string{"eth0"}, "net.ipv4.conf.eth0.rp_filter=2"},
	{"a clash", func(m *Machine) { m.Network.Clash = "the host uses 10.0.0.0/8" }, "network-ranges", Error, []string{"10.0.0.0/8"}, ""},
	{"a full table", func(m *Machine) { m.Network.Tracked = 900 }, "network-conntrack", Warning, []string{"900 of at most 1000"}, "nf_conntrack_max=4000"},
	{"a trouble of the overlay", func(m *Machine) {
		m.Network.Overlay = []string{"no packet of another node's overlay arrives here"}
		m.Firewall.Firewalld = true
	}, "network-overlay", Error, []string{"no packet of another node's overlay"}, "firewall-cmd"},
	{"a trouble of names", func(m *Machine) { m.Network.Names = []string{"DNS queries of instances do not arrive"} }, "network-names", Error, []string{"do not arrive"}, ""},

	{"the port of the API", func(m *Machine) { m.Ports[0].Owner, m.Ports[0].Unit = portowner.Owner{PID: 99, Program: "python3"}, "" }, "port-api", Error, []string{"5000/tcp", "process 99 (python3)", "--port"}, "=kill 99"},
	{"the port of workers", func(m *Machine) {
		m.Ports[1].Taken, m.Ports[1].Owner, m.Ports[1].Unit = true, portowner.Owner{PID: 99, Program: "nginx"}, "nginx"
	}, "port-workers", Error, []string{"unit nginx"}, "=systemctl disable --now nginx"},
	{"the port of nodes", func(m *Machine) { m.Ports[2].Taken = true }, "port-nodes", Error, []string{"not visible"}, ""},
	{"the port of names", func(m *Machine) {
		m.Ports[3].Taken, m.Ports[3].Owner = true, portowner.Owner{PID: 5, Program: "dnsmasq"}
	}, "port-names", Error, []string{"4953/udp"}, "=kill 5"},
	{"the port of the overlay", func(m *Machine) { m.Ports[4].Device = "flannel.1" }, "port-overlay", Error, []string{"flannel.1"}, "=ip link delete flannel.1"},

	{"no time service", func(m *Machine) { m.Clock.Synchronized, m.Clock.Service = false, "" }, "time-synchronized", Warning, []string{"not synchronized"}, "=apt-get install -y chrony && systemctl enable --now chrony"},
	{"no time service on Fedora", func(m *Machine) {
		m.Clock.Synchronized, m.Clock.Service, m.Distribution = false, "", Distribution{ID: "fedora"}
	}, "time-synchronized", Warning, []string{"not synchronized"}, "=dnf install -y chrony && systemctl enable --now chronyd"},
	{"an unknown state", func(m *Machine) { m.Clock.Known = false }, "time-synchronized", Info, []string{"does not say"}, ""},
	{"a time service without success", func(m *Machine) { m.Clock.Synchronized = false }, "time-synchronized", Warning, []string{"although chrony runs"}, "=systemctl restart chrony"},
	{"a skew", func(m *Machine) { m.Clock.Skew = new(time.Duration); *m.Clock.Skew = 30 * time.Second }, "time-skew", Warning, []string{"30s ahead of"}, "=chronyc makestep"},
	{"years", func(m *Machine) { m.Clock.Skew = new(time.Duration); *m.Clock.Skew = -9000 * time.Hour }, "time-skew", Error, []string{"9000h0m0s behind"}, "=chronyc makestep"},

	{"a full disk", func(m *Machine) { m.Directories[1].FreeBytes = 5 << 30 }, "disk-space", Error, []string{"/var/lib/riklet", "5.0 GiB free of 100.0 GiB"}, "=du -xh --max-depth=3 / | sort -h | tail -n 20"},
	{"a nearly full disk", func(m *Machine) { m.Directories[0].FreeBytes = 14 << 30 }, "disk-space", Warning, []string{"86% used"}, "du -xh"},
	{"a full tmpfs", func(m *Machine) { m.Directories[2].FreeBytes = 0 }, "disk-space", Error, []string{"/run/riklet"}, "=mount -o remount,size=134217728 /run/riklet"},
	{"a small disk", func(m *Machine) { m.Directories[0].FreeBytes, m.Directories[0].TotalBytes = 900<<20, 1<<30 }, "disk-space", Error, []string{"900.0 MiB free"}, "du -xh"},
	{"an unreadable directory", func(m *Machine) { m.Directories[0].Err = "permission denied" }, "disk-space", Warning, []string{"permission denied"}, ""},
	{"no inodes", func(m *Machine) { m.Directories[1].FreeInodes = 10 }, "disk-inodes", Error, []string{"10 free inodes of 1000"}, "du -x --inodes"},
	{"no inodes in memory", func(m *Machine) { m.Directories[2].FreeInodes = 10 }, "disk-inodes", Error, []string{"10 free inodes"}, "=mount -o remount,nr_inodes=2000 /run/riklet"},
	{"state on overlay", func(m *Machine) { m.Directories[1].FileSystem, m.Directories[1].Upper = "overlay", failed }, "disk-filesystem", Error, []string{"on overlay", "--state-dir"}, ""},
	{"data on NFS", func(m *Machine) { m.Directories[0].FileSystem = "nfs4" }, "disk-filesystem", Error, []string{"network file system"}, ""},
	{"state on NFS", func(m *Machine) { m.Directories[1].FileSystem = "nfs4" }, "disk-filesystem", Error, []string{"network file system"}, ""},
	{"data in memory", func(m *Machine) { m.Directories[0].FileSystem = "tmpfs" }, "disk-filesystem", Warning, []string{"in memory"}, ""},
	{"data in a container", func(m *Machine) { m.Directories[0].FileSystem = "overlay" }, "disk-filesystem", Warning, []string{"without a volume"}, ""},
	{"noexec", func(m *Machine) { m.Directories[1].Options = []string{"rw", "noexec", "nosuid"} }, "disk-options", Error, []string{"noexec, nosuid"}, "=mount -o remount,exec,suid /"},
	{"nodev", func(m *Machine) { m.Directories[1].Options = []string{"rw", "nodev"} }, "disk-options", Warning, []string{"nodev"}, "=mount -o remount,dev /"},
	{"read-only", func(m *Machine) { m.Directories[0].Options = []string{"ro"} }, "disk-options", Error, []string{"mounted with ro"}, "=mount -o remount,rw /"},

	{"few files", func(m *Machine) { m.Limits.OpenFiles = 1024 }, "limit-open-files", Warning, []string{"The process rik may have only 1024"}, "LimitNOFILE=1048576"},
	{"few files before the installation", func(m *Machine) { m.Limits = Limits{OpenFiles: 1024} }, "limit-open-files", Info, []string{"This shell", "systemd units"}, "=ulimit -n 65536"},
	{"an unknown limit", func(m *Machine) { m.Limits.OpenFiles = 0 }, "limit-open-files", Info, []string{"cannot be read"}, ""},
	{"few processes", func(m *Machine) { m.Limits.CgroupPIDs, m.Limits.Cgroup = 512, "/system.slice" }, "limit-processes", Warning, []string{"/system.slice", "512"}, "TasksMax=infinity"},
	{"few processes before the installation", func(m *Machine) { m.Limits = Limits{CgroupPIDs: 512, Cgroup: "/user.slice"} }, "limit-processes", Info, []string{"/user.slice"}, ""},
	{"few PIDs", func(m *Machine) { m.Limits.PIDMax = 4096 }, "limit-pid-max", Warning, []string{"4096"}, "kernel.pid_max=4194304"},
	{"few watches", func(m *Machine) { m.Limits.InotifyInstances, m.Limits.InotifyWatches = 128, 8192 }, "limit-inotify", Info, []string{"max_user_instances is 128", "max_user_watches is 8192"}, "max_user_watches=524288"},
	{"no locked memory", func(m *Machine) { m.Limits.MemoryLock = 4096 }, "limit-memlock", Info, []string{"4.0 KiB"}, "LimitMEMLOCK=infinity"},

	{"no shim", func(m *Machine) { m.Programs[3].Path = "" }, "program-missing", Error, []string{"rik-shim", "install rik again"}, ""},
	{"no QEMU", func(m *Machine) { m.Programs[4].Path = "" }, "program-missing", Info, []string{"qemu-system-x86_64"}, "=apt-get install -y qemu-system-x86"},
	{"no QEMU on arm64", func(m *Machine) { m.Programs[4] = Program{Name: "qemu-system-aarch64"} }, "program-missing", Info, []string{"qemu-system-aarch64"}, "=apt-get install -y qemu-system-arm"},
	{"no optional part", func(m *Machine) { m.Programs[1].Path = "" }, "program-missing", Info, []string{"rikctl"}, ""},
	{"a required program of others", func(m *Machine) { m.Programs[4].Path, m.Programs[4].Required = "", "Functions do not start" }, "program-missing", Warning, []string{"qemu"}, "qemu-system-x86"},
	{"two versions", func(m *Machine) { m.Programs[1].Version = "v0.9.0" }, "program-versions", Warning, []string{"rikctl (/usr/bin/rikctl) is v0.9.0", "rik (/usr/bin/rik) is v1.0.0"}, "=apt-get update && apt-get install -y rik riklet rikctl"},
	{"an old runc", func(m *Machine) { m.Programs[2].Problem = "this runc has known container escapes (1.1.5)" }, "program-runc", Error, []string{"known container escapes"}, "=apt-get install -y --only-upgrade runc"},
	{"an old process", func(m *Machine) { m.Processes[0].Replaced = true }, "program-running", Warning, []string{"Process 7", "replaced or removed"}, "=systemctl restart rik"},

	{"an expired server certificate", func(m *Machine) { m.Certificates[1].NotAfter = now.Add(-time.Hour) }, "certificate-validity", Error, []string{"server.crt expired on 2026-11-28 11:00 UTC"}, "=systemctl restart rik"},
	{"an expired node certificate", func(m *Machine) { m.Certificates[2].NotAfter = now.Add(-time.Hour) }, "certificate-validity", Error, []string{"join again with a token", "rikctl token create"}, "=echo 'RIK_TOKEN=TOKEN' >> /etc/default/riklet && systemctl restart riklet"},
	{"an expired authority", func(m *Machine) { m.Certificates[0].NotAfter = now.Add(-time.Hour) }, "certificate-validity", Error, []string{"authority"}, ""},
	{"an authority that expires soon", func(m *Machine) { m.Certificates[0].NotAfter = now.AddDate(0, 5, 0) }, "certificate-validity", Warning, []string{"expires on 2027-04-28"}, ""},
	{"a certificate of the future", func(m *Machine) { m.Certificates[1].NotBefore = now.Add(time.Hour) }, "certificate-validity", Error, []string{"not valid before", "The clock shows"}, "=chronyc makestep"},
	{"a certificate that was not renewed", func(m *Machine) { m.Certificates[2].NotAfter = now.AddDate(0, 0, 1) }, "certificate-validity", Warning, []string{"should have renewed"}, "RIK_TOKEN"},
	{"a damaged certificate", func(m *Machine) { m.Certificates[1].Err = "the file contains no certificate" }, "certificate-validity", Error, []string{"contains no certificate"}, "systemctl restart rik"},
	{"a wrong name", func(m *Machine) { m.Server.Host = "rik.example.org" }, "certificate-name", Error, []string{"not for rik.example.org", "localhost, 127.0.0.1"}, "--tls-san rik.example.org"},
	{"an exposed key", func(m *Machine) { m.Exposed["/k"] = "private key is accessible to other users" }, "certificate-permissions", Error, []string{"accessible to other users"}, "=chmod 0600 /k"},

	{"an unknown server", func(m *Machine) { m.Server.Address, m.Server.Endpoints = Probe{Tried: true, Err: "no such host"}, nil }, "server-address", Error, []string{"no such host"}, "/etc/hosts"},
	{"a server that does not answer", func(m *Machine) { m.Server.Endpoints[0].Connect = Probe{Tried: true, Err: "connection refused"} }, "server-reachable", Error, []string{"127.0.0.1:5000", "connection refused"}, "=systemctl start rik"},
	{"a server elsewhere that does not answer", func(m *Machine) {
		m.Role, m.Server.Endpoints[0].Connect = RoleNode, Probe{Tried: true, Err: "i/o timeout"}
	}, "server-reachable", Error, []string{"every firewall on the way"}, ""},
	{"a server of another cluster", func(m *Machine) {
		m.Server.Verified = Probe{Tried: true, Err: "certificate signed by unknown authority"}
	}, "server-certificate", Error, []string{"unknown authority"}, ""},
	{"a server with other names", func(m *Machine) { m.Server.Verified, m.Server.Host = Probe{}, "10.0.0.1" }, "server-certificate", Error, []string{"not for 10.0.0.1", "--tls-san 10.0.0.1"}, ""},
	{"a server of another version", func(m *Machine) { m.Server.Version = "v2.0.0" }, "server-version", Warning, []string{"v1.0.0", "v2.0.0"}, "apt-get"},

	{"a stopped node", func(m *Machine) { m.Node.Running = "" }, "state-leftover", Info, []string{"does not run", "rik0"}, "=riklet purge --state-dir /var/lib/riklet --run-dir /run/riklet --cgroup-parent /rik"},
	{"leftovers", func(m *Machine) {
		m.Node.Running, m.Node.Installed, m.Node.Rules, m.Node.Mounts, m.Node.Processes = "", false, []string{"iptables"}, []string{"/run/riklet"}, 3
	}, "state-leftover", Warning, []string{"rik0", "rules in iptables", "/run/riklet", "3 processes in the cgroup /rik"}, "riklet purge"},

	{"an unusable name", func(m *Machine) { m.Host.NameProblems = []string{"must be lower case"} }, "host-name", Warning, []string{"must be lower case"}, "hostnamectl"},
	{"a name that cannot be resolved", func(m *Machine) { m.Host.Resolve = failed }, "host-name", Warning, []string{"cannot be resolved"}, "=echo '127.0.1.1 alpha' >> /etc/hosts"},
	{"no name servers", func(m *Machine) { m.Host.Resolvers = nil }, "host-dns", Warning, []string{"names no name server"}, "/etc/resolv.conf"},
	{"no resolv.conf", func(m *Machine) { m.Host.ResolversErr = "no such file" }, "host-dns", Warning, []string{"no such file"}, "/etc/resolv.conf"},
	{"swap", func(m *Machine) { m.Host.SwapBytes = 1 << 30 }, "host-swap", Warning, []string{"1.0 GiB"}, "=swapoff -a"},
	{"SELinux", func(m *Machine) { m.Host.SELinux = "enforcing" }, "host-selinux", Warning, []string{"enforcing"}, "semanage"},
	{"Docker", func(m *Machine) { m.Host.Engines = []string{"Docker"} }, "host-engine", Info, []string{"Docker"}, ""},
}

func TestChecks(t *testing.T) {
	t.Parallel()
	for _, tc := range table {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := healthy()
			tc.change(m)
			report, err := Check(m, []string{tc.id})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(report.Findings, func(f Finding) bool {
				return f.Severity == tc.severity && !slices.ContainsFunc(tc.says, func(s string) bool { return !strings.Contains(f.Message, s) })
			})
			if i < 0 {
				t.Fatalf("no finding of %s with the severity %s says %q: %+v", tc.id, tc.severity, tc.says, report.Findings)
			}
			f := report.Findings[i]
			exact, whole := strings.CutPrefix(tc.fix, "=")
			if whole && f.Fix != exact || !whole && !strings.Contains(f.Fix, tc.fix) || tc.fix == "" && f.Fix != "" {
				t.Errorf("fix = %q, want %q", f.Fix, tc.fix)
			}
			if f.Severity.rank() <= Warning.rank() && f.Affects == "" && tc.name != "strange kernel" && tc.name != "an unreadable directory" {
				t.Error("the finding does not say what it affects")
			}
		})
	}
}

// TestEachFindingIsInTheTable makes sure that no check is without a test: each ID is in the table,
// and a machine on which all is well has a finding of each with nothing wrong.
func TestEachFindingIsInTheTable(t *testing.T) {
	t.Parallel()
	report, err := Check(healthy(), nil)
	if err != nil {
		t.Fatal(err)
	}
	good := map[string]bool{}
	for _, f := range report.Findings {
		if f.Severity != OK || f.Fix != "" || f.Affects != "" {
			t.Errorf("a machine on which all is well has %+v", f)
		}
		good[f.ID] = true
	}
	for _, id := range IDs() {
		if id == "host-apparmor" {
			continue // it never reports a fault
		}
		if !slices.ContainsFunc(table, func(tc broken) bool { return tc.id == id }) {
			t.Errorf("no test has a machine with the finding %s", id)
		}
		if !good[id] {
			t.Errorf("a machine on which all is well has no finding %s", id)
		}
	}
	if err := report.Err(true); err != nil {
		t.Errorf("Err(strict) = %v", err)
	}
}

// TestMessages checks the form of all messages.
func TestMessages(t *testing.T) {
	t.Parallel()
	for _, tc := range table {
		m := healthy()
		tc.change(m)
		report, err := Check(m, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range report.Findings {
			if !strings.HasSuffix(f.Message, ".") || strings.Contains(f.Message, "..") || strings.Contains(f.Message, "%!") || strings.Contains(f.Fix, "%!") {
				t.Errorf("%s: %+v", tc.name, f)
			}
		}
	}
}

// A machine about which nothing is known has no errors that accuse it of something.
func TestNothingIsKnown(t *testing.T) {
	t.Parallel()
	report, err := Check(&Machine{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Findings {
		if f.Severity == Error && f.ID != "cgroup-controllers" {
			t.Errorf("nothing is known, and %+v", f)
		}
	}
}

// A machine without a node does not need what instances need.
func TestWithoutANode(t *testing.T) {
	t.Parallel()
	m := healthy()
	m.NoNode, m.Node = true, Node{NoNetwork: true}
	m.Firewall, m.Cgroup, m.Kernel.Probes = Firewall{Problem: "iptables is not installed"}, Cgroup{Problem: "none"}, map[Feature]Probe{FeatureOverlay: failed}
	report, err := Check(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := report.Summary[Error] + report.Summary[Warning]; n != 0 {
		t.Errorf("%d findings: %+v", n, report.Findings)
	}
}

func TestOnly(t *testing.T) {
	t.Parallel()
	report, err := Check(healthy(), []string{"time", "port-api"})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, f := range report.Findings {
		ids = append(ids, f.ID)
	}
	if want := []string{"port-api", "time-synchronized", "time-skew"}; !slices.Equal(ids, want) {
		t.Errorf("findings %q, want %q", ids, want)
	}
	if _, err := Check(healthy(), []string{"tim"}); err == nil || !strings.Contains(err.Error(), "tim is neither a check nor an area") {
		t.Errorf("an unknown name: %v", err)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		summary map[Severity]int
		strict  bool
		want    int
	}{
		"all is well":               {map[Severity]int{OK: 3, Info: 2}, true, 0},
		"warnings":                  {map[Severity]int{Warning: 2}, false, 0},
		"warnings, strict":          {map[Severity]int{Warning: 2}, true, ExitWarning},
		"errors":                    {map[Severity]int{Error: 1}, false, ExitError},
		"errors and warnings, both": {map[Severity]int{Error: 1, Warning: 1}, true, ExitError},
	} {
		var result *ResultError
		code := 0
		if errors.As(Report{Summary: tc.summary}.Err(tc.strict), &result) {
			code = result.Code
		}
		if code != tc.want {
			t.Errorf("%s: code %d, want %d", name, code, tc.want)
		}
	}
}

func TestPrint(t *testing.T) {
	t.Parallel()
	m := healthy()
	m.Firewall.Firewalld = true
	m.Ports[0].Owner = portowner.Owner{PID: 99, Program: "ev\x1bil"}
	report, err := Check(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	for format, want := range map[Format][]string{
		FormatTable: {"rik v1.0.0 as a server on alpha (Debian GNU/Linux 12, kernel 6.1.0-13-amd64)", "\nerror     firewall-firewalld", "fix: firewall-cmd --permanent", "2 errors, 0 warnings"},
		FormatWide:  {"ok        kernel-version"},
		FormatJSON:  {`"id": "firewall-firewalld"`, `"severity": "error"`, `&& firewall-cmd --reload"`, `"error": 2`},
	} {
		var b strings.Builder
		if err := report.Print(&b, format); err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(b.String(), w) {
				t.Errorf("format %q lacks %q:\n%s", format, w, b.String())
			}
		}
		if strings.Contains(b.String(), "\x1b") {
			t.Errorf("format %q has a control character", format)
		}
		if format == FormatTable && strings.Contains(b.String(), "kernel-version") {
			t.Errorf("the table has what is right:\n%s", b.String())
		}
	}
}
