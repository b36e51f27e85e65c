package doctor

import (
	"net/netip"
	"strings"
	"time"

	"rik.dev/rik/internal/portowner"
	"rik.dev/rik/internal/riklet/network/iptables"
)

// Role is what the machine is for.
type Role string

// The roles.
const (
	// RoleServer is a machine with a control plane, and with a node unless it has none.
	RoleServer Role = "server"
	// RoleNode is a machine that runs instances for a server elsewhere.
	RoleNode Role = "node"
)

// Machine has the facts about a machine. A zero field means that the fact is not known, and the
// checks then say so.
type Machine struct {
	Role Role
	// NoNode is true if the machine runs no instances, so that it needs nothing for them.
	NoNode bool
	// Root is false if the facts were gathered without the rights of root, so that some are missing.
	Root bool
	// Version is the version of this program.
	Version      string
	Now          time.Time
	Hostname     string
	Distribution Distribution
	Kernel       Kernel
	Cgroup       Cgroup
	Firewall     Firewall
	Network      Network
	Ports        []Port
	Clock        Clock
	Directories  []Directory
	Limits       Limits
	Programs     []Program
	Processes    []Process
	Certificates []Certificate
	// Exposed are the problems of private keys that other users can read, by path.
	Exposed map[string]string
	Server  Server
	Node    Node
	Host    Host
}

// Distribution identifies the Linux distribution, from os-release(5).
type Distribution struct {
	// ID and Like are the fields ID and ID_LIKE, such as "ubuntu" and "debian".
	ID   string
	Like []string
	// Name and Version are for people.
	Name, Version string
}

// Title returns the name and the version.
func (d Distribution) Title() string { return strings.TrimSpace(d.Name + " " + d.Version) }

// Probe is the result of an attempt to use something.
type Probe struct {
	// Tried is false if there was no attempt, for example without the rights for it.
	Tried bool
	// Err is why it failed, or empty.
	Err string
}

// Works reports whether the attempt succeeded.
func (p Probe) Works() bool { return p.Tried && p.Err == "" }

// Failed reports whether there was an attempt that failed.
func (p Probe) Failed() bool { return p.Tried && p.Err != "" }

// Kernel describes the running kernel.
type Kernel struct {
	Release string
	// Config is the kernel's configuration: "y", "m", another value, or "n" for what is not set. It is
	// nil if the kernel does not show it.
	Config map[string]string
	// Loaded, Builtin and Installed are modules: in use, part of the kernel, and files of the running
	// kernel's release. The names have underscores.
	Loaded, Builtin, Installed map[string]bool
	// Probes are the attempts to use features.
	Probes map[Feature]Probe
}

// Cgroup describes the control groups.
type Cgroup struct {
	// Mode is "v1", "v2" or "hybrid".
	Mode string
	// Controllers are the available controllers.
	Controllers []string
	// Problem is why rik cannot use cgroups, or empty.
	Problem string
	// Write is the attempt to write to the hierarchy of the instances.
	Write Probe
	// Occupied is true if processes are in the topmost cgroup that this process sees, and that is not
	// the machine's topmost one. Controllers cannot be enabled below such a cgroup.
	Occupied bool
	// Delegated are the controllers that are enabled below the topmost cgroup of v2.
	Delegated []string
}

// Firewall describes what filters packets.
type Firewall struct {
	// Problem is why iptables cannot be used, or empty.
	Problem string
	// Variants are the installed variants of iptables.
	Variants []Variant
	// Chains are the base chains of nftables that do not belong to iptables.
	Chains []NFTChain
	// Range is the range of instances.
	Range netip.Prefix
	// Firewalld is true if firewalld runs. Trusts is true if it trusts the range of instances.
	Firewalld, Trusts bool
	// Open are the ports that the default zone of firewalld opens, such as "5000/tcp".
	Open []string
	// UFW is true if ufw is active.
	UFW bool
}

// Variant is a variant of iptables.
type Variant struct {
	// Name is "nf_tables" or "legacy". Program is its command.
	Name, Program string
	// Used is true for the variant that rik uses.
	Used bool
	// Others and Own report rules of other programs, and of rik.
	Others, Own bool
	// Filter is the table filter.
	Filter map[string]iptables.Chain
}

// NFTChain is a base chain of nftables.
type NFTChain struct {
	// Family, Table and Name identify it.
	Family, Table, Name string
	// Hook is "input" or "forward".
	Hook string
	// Drops is true if packets that no rule accepts are dropped.
	Drops bool
	// Accepts are what rules accept without further conditions: names of devices, ranges of addresses,
	// or "tcp 5000" for a port.
	Accepts []string
}

// Network has the settings of the network.
type Network struct {
	// Forward is the value of net.ipv4.ip_forward, or empty.
	Forward string
	// ForwardOff are the files that set it to 0 at the next boot.
	ForwardOff []string
	// RPFilter has the effective value for each device that has a default route.
	RPFilter map[string]string
	// Clash is why ranges of the cluster overlap with networks of the machine, or empty.
	Clash string
	// Tracked and MaxTracked are the numbers of tracked connections. MaxTracked is 0 if not known.
	Tracked, MaxTracked int
	// Overlay and Names are the results of the node's own checks. They are nil without a result, and
	// empty if all is well.
	Overlay, Names []string
}

// Port is a port that rik needs.
type Port struct {
	ID       string
	Number   int
	Protocol portowner.Protocol
	// Purpose completes "is for".
	Purpose string
	// Flag changes the port, or is empty.
	Flag string
	// Taken is true if a process or a device has it. Owner is that process, or zero if it cannot be
	// seen. Unit is its systemd unit, or empty. Device is a device of the kernel that has the port, or
	// empty.
	Taken  bool
	Owner  portowner.Owner
	Unit   string
	Device string
}

// Clock describes the machine's clock.
type Clock struct {
	// Synchronized is the kernel's state. Known is false if it cannot be read.
	Known, Synchronized bool
	// Service is the unit that sets the clock, or empty.
	Service string
	// Skew is the time of this machine minus that of the server. It is nil if there is no answer. It
	// includes up to a second of error.
	Skew *time.Duration
}

// Directory is a directory of rik's, or its nearest parent that exists.
type Directory struct {
	// Path is the configured path, and Flag the flag that sets it.
	Path, Flag string
	// Use says what is in it.
	Use DirectoryUse
	// Exists is false if a parent was checked in its place.
	Exists bool
	// MountPoint, FileSystem and Options describe the mount.
	MountPoint, FileSystem string
	Options                []string
	// Space and inodes. A file system without a limit of inodes has 0 of both.
	FreeBytes, TotalBytes   uint64
	FreeInodes, TotalInodes uint64
	// Upper is the attempt to use it for the files that containers write.
	Upper Probe
	// Err is why it cannot be examined, or empty.
	Err string
}

// DirectoryUse is what a directory contains.
type DirectoryUse string

// The uses of directories.
const (
	UseData  DirectoryUse = "data"  // of the cluster
	UseState DirectoryUse = "state" // of the node: images and instances
	UseRun   DirectoryUse = "run"   // of the node, not kept over a reboot
)

// Limits are limits of processes, and of the kernel. 0 means not known.
type Limits struct {
	// Process is the running program of rik whose limits these are, or empty: those of this process.
	Process string
	Unit    string // its systemd unit
	// OpenFiles and MemoryLock are limits of the process.
	OpenFiles, MemoryLock uint64
	// CgroupPIDs is the smallest pids.max of its cgroups, and Cgroup that cgroup. 0: none.
	CgroupPIDs uint64
	Cgroup     string
	PIDMax     uint64
	// InotifyInstances and InotifyWatches are the limits of each user.
	InotifyInstances, InotifyWatches uint64
}

// Program is a program that rik consists of or uses.
type Program struct {
	Name string
	// Path is empty if it is not installed.
	Path string
	// Version is empty if the program does not print one.
	Version string
	// Required says what does not work without it. It is empty for an optional program.
	Required string
	// Part is true for a program of rik.
	Part bool
	// Problem is what is wrong with its version, or empty.
	Problem string
}

// Process is a running program of rik.
type Process struct {
	PID     int
	Program string
	// Replaced is true if the file that it runs was replaced or removed.
	Replaced bool
	Unit     string
}

// Certificate is a certificate in a file.
type Certificate struct {
	Path string
	// Kind says who uses it.
	Kind CertificateKind
	// Err is why it cannot be read, or empty.
	Err                 string
	NotBefore, NotAfter time.Time
	// Names are the DNS names and addresses of a server's certificate.
	Names []string
	// Unit is the systemd unit of the program that uses it.
	Unit string
	// Settings is the file with the settings of the unit.
	Settings string
	// Automatic is true if the program renews it.
	Automatic bool
}

// CertificateKind is who uses a certificate.
type CertificateKind string

// The kinds of certificates.
const (
	KindAuthority CertificateKind = "authority" // the cluster's certificate authority
	KindServer    CertificateKind = "server"    // a server of this machine
	KindAdmin     CertificateKind = "admin"     // the administrator's client certificate
	KindNode      CertificateKind = "node"      // the node of this machine
)

// Server describes the way to the server.
type Server struct {
	// URL is the address of the API, or empty: no server was named.
	URL, Host string
	// Address is the attempt to resolve the host.
	Address Probe
	// Endpoints are the attempts to connect.
	Endpoints []Endpoint
	// Verified is the attempt to verify the certificate with the known authority. It was not tried if
	// no authority is known.
	Verified Probe
	// Presented is the certificate that the server presents. NotAfter is zero without one.
	Presented Certificate
	// Version is the version of the server, or empty.
	Version string
}

// Endpoint is a port of the server.
type Endpoint struct {
	Address, Purpose string
	Connect          Probe
}

// Node is the state of the node on this machine.
type Node struct {
	StateDir, RunDir, CgroupParent string
	// Installed is true if the state directory belongs to a node.
	Installed bool
	// Running is the process that has the state directory, or empty.
	Running string
	// NoNetwork is true if instances get no network on this node.
	NoNetwork bool
	// Links, Rules, Mounts and Processes are what a node created: network devices, variants of
	// iptables with rik's rules, mounts, and the number of processes in the cgroup of the instances.
	Links, Rules, Mounts []string
	Processes            int
}

// Host has other facts about the machine.
type Host struct {
	// Resolve is the attempt to resolve the machine's own name.
	Resolve Probe
	// NameProblems are why the host name is not a name for a node.
	NameProblems []string
	// Resolvers are the name servers of resolv.conf(5). ResolversErr is why they cannot be read.
	Resolvers    []string
	ResolversErr string
	// SwapBytes is the size of the active swap.
	SwapBytes uint64
	// SwapLimited is true if the kernel can limit the swap of instances.
	SwapLimited bool
	// SELinux is "enforcing", "permissive" or empty.
	SELinux string
	// AppArmor is true if it is enabled.
	AppArmor bool
	// Engines are other programs that run containers on this machine.
	Engines []string
}
