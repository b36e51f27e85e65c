// Package node assembles a node: image store, drivers and agent. It must not import the control
// plane's libraries, so that the riklet stays small.
package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/executable"
	"rik.dev/rik/internal/install/layout"
	"rik.dev/rik/internal/riklet"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/nodelock"
	"rik.dev/rik/internal/riklet/runner"
)

// ErrUsage marks errors of the command line.
var ErrUsage = errors.New("wrong usage")

// usagef returns an ErrUsage.
func usagef(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUsage, fmt.Errorf(format, args...))
}

// Options holds a node's flags.
type Options struct {
	NodeName         string
	StateDir, RunDir string
	// Address overrides the detected address and that of Interface.
	Address, ExternalAddress string
	// Interface is the network interface whose address is the node's.
	Interface string
	Labels    map[string]string
	Taints    []string
	Reserved  map[string]string
	// PullTimeout, PullStallTimeout, ImageMaxSize, ImageMaxDownload and ImageMaxEntries limit
	// each pull of an image and each download of a Function. The two timeouts also limit
	// downloads of Apps. The sizes are quantities.
	PullTimeout, PullStallTimeout  time.Duration
	ImageMaxSize, ImageMaxDownload string
	ImageMaxEntries                int64
	MaxInstances                   int64
	// Runc, Shim, Unpacker and NameServer are programs. If empty, they are searched next to this
	// program, then on the PATH.
	Runc, Shim, Unpacker, NameServer string
	AllowOldRunc                     bool
	Runtimes                         map[string]string
	// CgroupParent separates the instances of several nodes on one machine.
	CgroupParent string
	// RegistriesDir may have registries.conf, certs.d and auth.json. Each of them is used if the
	// setting below is empty.
	RegistriesDir  string
	RegistriesConf string
	CertDir        string
	// RegistriesAuth has the node's own credentials for registries. The pulls of every tenant
	// use them.
	RegistriesAuth string
	// ImageDir has image archives, which the node loads when it starts.
	ImageDir string
	// Network is NetworkAuto, NetworkVXLAN or NetworkNone.
	Network string
	// NetworkAllowFrom lists address ranges outside the cluster that may reach its network
	// through this node.
	NetworkAllowFrom []string
	// VMM is VMMAuto, VMMQEMU, VMMFirecracker or VMMNone.
	VMM string
	// QEMU, Firecracker, Kernel and Initramfs are detected if empty.
	QEMU, Firecracker, Kernel, Initramfs string
	// JailDir is the directory of Firecracker's jails. If empty, it is in StateDir.
	JailDir string
	// AllowHTTP extends the URLs from which Functions and Apps may be downloaded. AllowFetch
	// extends the networks for those downloads and for images.
	AllowHTTP  bool
	AllowFetch []string
	// AllowRootApps allows Apps to run as root if they request it.
	AllowRootApps bool
}

// The values of Options.VMM.
const (
	VMMAuto        = "auto" // Firecracker if it and KVM work, QEMU otherwise
	VMMQEMU        = "qemu"
	VMMFirecracker = "firecracker"
	VMMNone        = "none" // the node runs no microVMs
)

// The values of Options.Network.
const (
	NetworkAuto  = "auto"  // routes to nodes on the same link, VXLAN to others
	NetworkVXLAN = "vxlan" // VXLAN to all other nodes
	NetworkNone  = "none"  // no network
)

// DefaultImageDir is the default of Options.ImageDir.
const DefaultImageDir = layout.ImageDir

// DefaultRegistriesDir is the default of Options.RegistriesDir.
const DefaultRegistriesDir = layout.ConfigDir

// DefaultOptions returns the options of the only node on a machine.
func DefaultOptions() Options {
	return Options{
		StateDir: riklet.DefaultStateDir, RunDir: riklet.DefaultRunDir, ImageDir: DefaultImageDir, RegistriesDir: DefaultRegistriesDir, Address: os.Getenv("IFACE_IP"), Interface: os.Getenv("IFACE"), Network: NetworkAuto,
		VMM: VMMAuto, Kernel: os.Getenv("KERNEL_LOCATION"), Firecracker: os.Getenv("FIRECRACKER_LOCATION"),
	}
}

// AddFlags adds the node's flags.
func (o *Options) AddFlags(s *pflag.FlagSet) {
	o.addDirFlags(s)
	s.StringVar(&o.NodeName, "node-name", o.NodeName, "name of the node; the host name by default")
	s.StringVar(&o.Address, "node-address", o.Address, "the node's IP address; by default the address of the route to the server [IFACE_IP]")
	s.StringVar(&o.Interface, "iface", o.Interface, "network interface whose first IPv4 address is the node's address, if --node-address is not set [IFACE]")
	s.StringVar(&o.ExternalAddress, "node-external-address", "", "address at which clients outside the cluster reach the node")
	s.StringToStringVar(&o.Labels, "node-label", nil, "labels of the node when it joins for the first time")
	s.StringSliceVar(&o.Taints, "node-taint", nil, "taints of the node when it joins for the first time: key=value:Effect")
	s.StringToStringVar(&o.Reserved, "reserved", nil, "resources that instances cannot reserve, such as cpu=500m,memory=1Gi,disk=10Gi")
	s.Int64Var(&o.MaxInstances, "max-instances", 0, "maximum number of instances on the node (default 250)")
	s.BoolVar(&o.AllowOldRunc, "allow-old-runc", false, "accept a version of runc with known container escapes")
	s.StringToStringVar(&o.Runtimes, "runtime", nil, "additional OCI runtimes: name=path")
	s.DurationVar(&o.PullTimeout, "image-pull-timeout", image.DefaultTime, "maximum time for the pull of an image, or the download of an App or a Function")
	s.DurationVar(&o.PullStallTimeout, "image-pull-stall-timeout", image.DefaultStall, "maximum time without data from a registry or server; the pull or download is then tried again")
	s.StringVar(&o.ImageMaxSize, "image-max-size", "16Gi", "maximum size of an unpacked image or Function")
	s.StringVar(&o.ImageMaxDownload, "image-max-download", "8Gi", "maximum size of the download of an image or a Function")
	s.Int64Var(&o.ImageMaxEntries, "image-max-entries", image.DefaultEntries, "maximum number of files, directories and links of an image or a Function")
	s.StringVar(&o.ImageDir, "image-dir", o.ImageDir, "directory of image archives, which the node loads when it starts: OCI layouts or docker archives in tar files, plain or compressed; \"\" for none")
	s.StringVar(&o.RegistriesDir, "registries-dir", o.RegistriesDir, "directory with settings for registries, which each pull reads again: registries.conf, auth.json and certs.d")
	s.StringVar(&o.RegistriesConf, "registries-conf", "", "file of containers-registries.conf(5) with mirrors; by default registries.conf in --registries-dir, or else the system's file")
	s.StringVar(&o.RegistriesAuth, "registries-auth", "", "file with credentials for registries, as docker login writes it. All tenants' pulls without a secret use it. By default auth.json in --registries-dir")
	s.StringVar(&o.Network, "network", o.Network, "network between instances: auto, vxlan or none. auto uses routes to nodes on the same link, and VXLAN to others. vxlan always uses VXLAN, for clouds that drop packets with instances' addresses. With none, instances have only a loopback interface")
	s.StringSliceVar(&o.NetworkAllowFrom, "network-allow-from", nil, "address ranges outside the cluster that may use instances, cluster IPs and names through this node, such as 192.168.0.0/16")
	s.BoolVar(&o.AllowHTTP, "allow-http", false, "allow downloads of Functions without TLS")
	s.StringSliceVar(&o.AllowFetch, "allow-fetch", nil, "private networks from which Functions, Apps and images may be downloaded, such as 10.0.0.0/8")
	s.BoolVar(&o.AllowRootApps, "allow-root-apps", false, "allow Apps that request to run as root")
	s.StringVar(&o.CertDir, "registries-certs", "", "directory with the certificates of registries, of containers-certs.d(5); by default certs.d in --registries-dir, or else /etc/containers/certs.d")
}

// addDirFlags adds the flags that a purge also needs.
func (o *Options) addDirFlags(s *pflag.FlagSet) {
	s.StringVar(&o.StateDir, "state-dir", o.StateDir, "directory of images and records")
	s.StringVar(&o.RunDir, "run-dir", o.RunDir, "directory of files that need not survive a restart of the machine; its path must be short, because it contains sockets")
	s.StringVar(&o.CgroupParent, "cgroup-parent", "", "cgroup of the instances (default /rik, with a suffix for another --state-dir)")
	s.StringVar(&o.Runc, "runc", "", "the OCI runtime runc; by default the one next to this program or on the PATH")
	s.StringVar(&o.Shim, "shim", "", "the program rik-shim; by default the one next to this program")
	s.StringVar(&o.VMM, "vmm", o.VMM, "VMM of microVMs: auto (Firecracker if it and KVM work, otherwise QEMU), qemu, firecracker or none")
	s.StringVar(&o.QEMU, "qemu", "", "the program qemu-system-x86_64, or qemu-system-aarch64 on arm64; by default the one on the PATH")
	s.StringVar(&o.Firecracker, "firecracker", o.Firecracker, "the program firecracker, or the directory with it and its jailer; by default on the PATH or in the working directory [FIRECRACKER_LOCATION]")
	s.StringVar(&o.JailDir, "jail-dir", "", "directory of Firecracker's jails, on a file system without nodev and noexec; by default jails in the state directory")
	s.StringVar(&o.Kernel, "kernel", o.Kernel, "the kernel of microVMs; by default guest/kernel next to this program [KERNEL_LOCATION]")
	s.StringVar(&o.Initramfs, "initramfs", "", "the initramfs of microVMs with the guest init; by default guest/initramfs next to this program")
	s.StringVar(&o.NameServer, "name-server", "", "the program rik-dns, which serves DNS; by default the one next to this program")
	s.StringVar(&o.Unpacker, "unpacker", "", "the program rik-unpack, which pulls images; by default the one next to this program")
}

// Validate sets defaults and reports every problem.
func (o *Options) Validate() error {
	var problems []error
	if os.Geteuid() != 0 {
		problems = append(problems, fmt.Errorf("%w: use sudo, or --no-agent for a server without a node", riklet.ErrNotRoot))
	}
	problems = append(problems, o.validateName()...)
	problems = append(problems, o.validateInterface()...)
	problems = append(problems, o.findDirs()...)
	if o.CgroupParent == "" {
		o.CgroupParent = riklet.CgroupParent(o.StateDir)
	}
	if !riklet.ValidCgroupParent(o.CgroupParent) {
		problems = append(problems, usagef("--cgroup-parent %q is not a plain path such as /rik", o.CgroupParent))
	}
	if !slices.Contains([]string{NetworkAuto, NetworkVXLAN, NetworkNone}, o.Network) {
		problems = append(problems, usagef("--network %q is none of %s, %s and %s", o.Network, NetworkAuto, NetworkVXLAN, NetworkNone))
	}
	if _, err := o.allowFrom(); err != nil {
		problems = append(problems, err)
	}
	if !slices.Contains([]string{VMMAuto, VMMQEMU, VMMFirecracker, VMMNone}, o.VMM) {
		problems = append(problems, usagef("--vmm %q is none of %s, %s, %s and %s", o.VMM, VMMAuto, VMMQEMU, VMMFirecracker, VMMNone))
	}
	problems = append(problems, o.findPrograms()...)
	problems = append(problems, o.findGuest()...)
	problems = append(problems, o.validateRegistries()...)
	if _, err := o.fetchNetworks(); err != nil {
		problems = append(problems, err)
	}
	problems = append(problems, o.validateNode()...)
	problems = append(problems, o.validateReserved()...)
	if _, err := o.imageLimits(); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// findDirs makes the paths of the directories absolute.
func (o *Options) findDirs() []error {
	var problems []error
	for flag, dir := range map[string]*string{"--state-dir": &o.StateDir, "--run-dir": &o.RunDir} {
		absolute, err := filepath.Abs(*dir)
		if err != nil || *dir == "" {
			problems = append(problems, usagef("%s %q is not a directory", flag, *dir))
			continue
		}
		*dir = absolute
		if err := mounts.CheckPath(absolute); err != nil {
			problems = append(problems, usagef("%s %q %w", flag, absolute, err))
		}
	}
	if o.JailDir != "" {
		absolute, err := filepath.Abs(o.JailDir)
		if err != nil {
			problems = append(problems, usagef("--jail-dir %q is not a directory", o.JailDir))
		}
		o.JailDir = absolute
	}
	// A run directory that is not a tmpfs gets a tmpfs mounted on it. An existing tmpfs is used
	// as it is, and its mode is restricted.
	if err := nodelock.RequireNode("--run-dir", o.RunDir, append(runner.RunNames(), nodelock.Mark)...); err != nil {
		problems = append(problems, usagef("%w", err))
	}
	return problems
}

// findPrograms searches next to this program, then on the PATH.
func (o *Options) findPrograms() []error {
	var problems []error
	for _, p := range []struct {
		path               *string
		name, flag, remedy string
	}{
		{&o.Runc, "runc", "--runc", "runc 1.2.8, 1.3.3, 1.4.0 or later is required: \"make build\" builds one into bin/"},
		{&o.Shim, "rik-shim", "--shim", "it is part of rik: \"make build\" builds it next to this program"},
		{&o.NameServer, "rik-dns", "--name-server", "it is part of rik: \"make build\" builds it next to this program"},
		{&o.Unpacker, "rik-unpack", "--unpacker", "it is part of rik: \"make build\" builds it next to this program"},
	} {
		if *p.path != "" {
			if err := executable.Check(*p.path); err != nil {
				problems = append(problems, fmt.Errorf("%s %s: %w; remove the flag to use the %s next to this program or on the PATH", p.flag, *p.path, err, p.name))
			}
			continue
		}
		found, err := executable.Find(p.name)
		if err != nil {
			problems = append(problems, fmt.Errorf("the program %s is neither next to this program nor on the PATH: %s; or set %s", p.name, p.remedy, p.flag))
		}
		*p.path = found
	}
	return append(problems, o.validateRuntimes()...)
}

// taints parses --node-taint.
func (o *Options) taints() ([]rikv1alpha1.Taint, error) {
	var taints []rikv1alpha1.Taint
	for _, text := range o.Taints {
		taint, err := rikv1alpha1.ParseTaint(text)
		if err != nil {
			return nil, usagef("--node-taint %w", err)
		}
		taints = append(taints, taint)
	}
	return taints, nil
}

// imageLimits parses the limits of pulls. A purge has none of these flags, so zero or empty
// means the default.
func (o *Options) imageLimits() (image.Limits, error) {
	limits := image.Limits{Time: o.PullTimeout, Stall: o.PullStallTimeout, Entries: o.ImageMaxEntries}
	var problems []error
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"--image-pull-timeout", o.PullTimeout}, {"--image-pull-stall-timeout", o.PullStallTimeout}} {
		if d.value < 0 {
			problems = append(problems, usagef("%s %s is negative", d.flag, d.value))
		}
	}
	if o.ImageMaxEntries < 0 {
		problems = append(problems, usagef("--image-max-entries %d is negative", o.ImageMaxEntries))
	}
	for _, s := range []struct {
		flag, text string
		to         *int64
	}{{"--image-max-size", o.ImageMaxSize, &limits.Bytes}, {"--image-max-download", o.ImageMaxDownload, &limits.CompressedBytes}} {
		if s.text == "" {
			continue
		}
		q, err := resource.ParseQuantity(s.text)
		if err != nil || q.Value() <= 0 {
			problems = append(problems, usagef("%s %s is not a size such as 16Gi", s.flag, s.text))
			continue
		}
		*s.to = q.Value()
	}
	return limits, errors.Join(problems...)
}

// allowFrom parses --network-allow-from.
func (o *Options) allowFrom() ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range o.NetworkAllowFrom {
		p, err := netip.ParsePrefix(text)
		if err != nil || !p.Addr().Is4() {
			return nil, usagef("--network-allow-from %q is not an IPv4 address range such as 192.168.0.0/16", text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// fetchNetworks parses --allow-fetch.
func (o *Options) fetchNetworks() ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, text := range o.AllowFetch {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, usagef("--allow-fetch %q is not a network such as 10.0.0.0/8", text)
		}
		list = append(list, network)
	}
	return list, nil
}
