package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/doctor/facts"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/portowner"
	"rik.dev/rik/internal/riklet"
	"rik.dev/rik/internal/riklet/join"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/riklet/network/nameserver"
	"rik.dev/rik/internal/riklet/network/overlay"
	"rik.dev/rik/internal/riklet/vmm/qemu"
)

// roleAuto means that the role follows from what is on the machine.
const roleAuto = "auto"

// DefaultDataDir is the directory of the cluster's data, as in the papers.
const DefaultDataDir = "/var/lib/rik/data/"

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	node                            Options
	role, dataDir, server           string
	clusterCIDR, serviceCIDR        string
	apiPort, workersPort, nodesPort int
	output                          string
	only, files                     []string
	strict, noAgent                 bool
	usualRole                       doctor.Role
}

// DoctorCommand returns the command that checks this machine. usual is the role of a machine on which
// nothing is installed yet.
func DoctorCommand(usual doctor.Role) *cobra.Command {
	o := doctorOptions{node: DefaultOptions(), usualRole: usual}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether rik can run on this machine, before or after its installation",
		Long: "Check whether rik can run on this machine, before or after its installation. It checks the\n" +
			"kernel, cgroups, firewalls, ports, the clock, disks, limits, versions, certificates, and the way\n" +
			"to the server. Each finding says what is wrong, what it affects, and the command that fixes it.\n" +
			"It changes nothing. Run it as root: without root, several checks have no result.\n\n" +
			"Exit codes: 0 if there is no error, 1 if there is one. With --strict, 2 if there are only\n" +
			"warnings. Wrong flags have the exit code 2, and print no report.",
		Example: "  rik doctor\n  rik doctor -o json --only firewall,ports\n  rik doctor --server https://10.0.0.1:5000",
		Args:    noArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return o.run(c) },
	}
	o.addFlags(c.Flags())
	return c
}

func (o *doctorOptions) addFlags(s *pflag.FlagSet) {
	o.node.addDirFlags(s)
	s.StringVar(&o.node.Network, "network", o.node.Network, "network between instances of the node; with none, its requirements are not checked")
	s.BoolVar(&o.noAgent, "no-agent", false, "the machine runs no instances, so that the requirements of a node are not checked")
	s.StringVar(&o.role, "role", roleAuto, "role of the machine: server (control plane and node), node, or auto")
	s.StringVar(&o.dataDir, "data-dir", envOr("DATABASE_LOCATION", DefaultDataDir), "directory of the cluster's data, certificates and credentials [DATABASE_LOCATION]")
	s.StringVar(&o.server, "server", os.Getenv("RIK_SERVER"), "address of the cluster's API to reach, such as https://10.0.0.1:5000; by default the server of this machine, if it has one [RIK_SERVER]")
	s.StringVar(&o.clusterCIDR, "cluster-cidr", rikv1alpha1.DefaultClusterCIDR, "address range of instances (IPv4)")
	s.StringVar(&o.serviceCIDR, "service-cidr", rikv1alpha1.DefaultServiceCIDR, "address range of cluster IPs (IPv4)")
	s.IntVar(&o.apiPort, "port", rikv1alpha1.PortAPI, "port of the API")
	s.IntVar(&o.workersPort, "worker-port", rikv1alpha1.PortWorkers, "port for the connections of nodes to the scheduler")
	s.IntVar(&o.nodesPort, "node-port", rikv1alpha1.PortNodes, "port for the connections of nodes to the controller")
	s.StringSliceVar(&o.files, "config", nil, "files with the settings of the services, whose flags and variables are used; by default "+strings.Join(settingsFiles, ", ")+" if they exist")
	s.StringVarP(&o.output, "output", "o", "", "format: wide (also what is right) or json; by default a table of what needs attention")
	s.StringSliceVar(&o.only, "only", nil, "only these checks or areas ("+strings.Join(doctor.Areas(), ", ")+")")
	s.BoolVar(&o.strict, "strict", false, "exit with 2 if there are warnings and no errors")
}

func envOr(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

func (o *doctorOptions) run(c *cobra.Command) error {
	if err := o.useSettings(c.Flags()); err != nil {
		return err
	}
	config, err := o.config()
	if err != nil {
		return err
	}
	if !doctor.Format(o.output).Known() {
		return usagef("--output %q: use wide or json", o.output)
	}
	// Validate the names before the facts are gathered, which takes seconds.
	if _, err := doctor.Check(&doctor.Machine{}, o.only); err != nil {
		return usagef("--only: %w", err)
	}
	report, err := doctor.Check(facts.Gather(c.Context(), config), o.only)
	if err != nil {
		return err
	}
	if err := report.Print(c.OutOrStdout(), doctor.Format(o.output)); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return report.Err(o.strict)
}

// useSettings takes what the services are started with as the default of the flags.
func (o *doctorOptions) useSettings(flags *pflag.FlagSet) error {
	files := o.files
	if !flags.Changed("config") {
		files = settingsFiles
	}
	all, err := readSettings(files, flags.Changed("config"))
	if err != nil {
		return err
	}
	other := doctorOptions{node: DefaultOptions()}
	set := pflag.NewFlagSet("services", pflag.ContinueOnError)
	other.addFlags(set)
	return all.apply(flags, set)
}

func (o *doctorOptions) config() (facts.Config, error) {
	var problems []error
	claims := []bridge.ClusterRange{{What: "the range of instances", Flag: "--cluster-cidr"}, {What: "the range of cluster IPs", Flag: "--service-cidr"}}
	for i, text := range []string{o.clusterCIDR, o.serviceCIDR} {
		p, err := netip.ParsePrefix(text)
		if err != nil || !p.Addr().Is4() {
			problems = append(problems, usagef("%s %q is not an IPv4 address range such as 10.62.0.0/16", claims[i].Flag, text))
			continue
		}
		claims[i].Prefix = p.Masked()
	}
	role, err := o.resolveRole()
	if err != nil {
		problems = append(problems, err)
	}
	if o.server != "" {
		if _, _, err := join.Addresses(o.server); err != nil {
			problems = append(problems, usagef("--server: %w", err))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return facts.Config{}, err
	}
	parent := o.node.CgroupParent
	if parent == "" {
		parent = riklet.CgroupParent(o.node.StateDir)
	}
	config := facts.Config{
		Role: role, StateDir: o.node.StateDir, RunDir: o.node.RunDir, CgroupParent: parent, NoNetwork: o.node.Network == NetworkNone || o.noAgent, NoNode: o.noAgent,
		Server: o.server, WorkersPort: o.workersPort, NodesPort: o.nodesPort, Claims: claims, Ports: o.ports(role), Programs: o.programs(role),
	}
	if role == doctor.RoleServer {
		config.DataDir = o.dataDir
		if o.server == "" && o.hasCluster() {
			config.Server = fmt.Sprintf("https://127.0.0.1:%d", o.apiPort)
		}
	}
	return config, nil
}

// hasCluster reports whether a control plane has run on this machine.
func (o *doctorOptions) hasCluster() bool {
	_, err := os.Stat(filepath.Join(o.dataDir, "pki", pki.CertificateFile))
	return err == nil
}

// resolveRole returns the role of the machine. A machine that has joined a cluster, or for which
// --server is set, is a node.
func (o *doctorOptions) resolveRole() (doctor.Role, error) {
	switch o.role {
	case string(doctor.RoleServer), string(doctor.RoleNode):
		return doctor.Role(o.role), nil
	case roleAuto:
	default:
		return "", usagef("--role %q: use server, node or auto", o.role)
	}
	_, err := os.Stat(filepath.Join(o.node.StateDir, join.File))
	switch {
	case o.hasCluster():
		return doctor.RoleServer, nil
	case err == nil || o.server != "":
		return doctor.RoleNode, nil
	}
	return o.usualRole, nil
}

// ports returns the ports that the machine needs.
func (o *doctorOptions) ports(role doctor.Role) []doctor.Port {
	var all []doctor.Port
	if role == doctor.RoleServer {
		all = append(all,
			doctor.Port{ID: "port-api", Number: o.apiPort, Protocol: portowner.TCP, Purpose: "the API", Flag: "--port"},
			doctor.Port{ID: "port-workers", Number: o.workersPort, Protocol: portowner.TCP, Purpose: "the connections of nodes to the scheduler", Flag: "--worker-port"},
			doctor.Port{ID: "port-nodes", Number: o.nodesPort, Protocol: portowner.TCP, Purpose: "the connections of nodes to the controller", Flag: "--node-port"})
	}
	if o.node.Network != NetworkNone && !o.noAgent {
		all = append(all,
			doctor.Port{ID: "port-names", Number: nameserver.Port, Protocol: portowner.UDP, Purpose: "DNS queries of instances"},
			doctor.Port{ID: "port-names", Number: nameserver.Port, Protocol: portowner.TCP, Purpose: "DNS queries of instances"},
			doctor.Port{ID: "port-overlay", Number: overlay.Port, Protocol: portowner.UDP, Purpose: "the tunnels to other nodes"})
	}
	return all
}

// programs returns the programs that the machine needs.
func (o *doctorOptions) programs(role doctor.Role) []doctor.Program {
	if o.noAgent {
		return []doctor.Program{{Name: "rik", Part: true}, {Name: "rikctl", Part: true}}
	}
	all := []doctor.Program{
		{Name: "riklet", Part: true}, {Name: "rikctl", Part: true},
		{Name: "runc", Path: o.node.Runc, Part: true, Required: "Pods do not start"},
		{Name: "rik-shim", Path: o.node.Shim, Part: true, Required: "instances do not start"},
		{Name: "rik-unpack", Path: o.node.Unpacker, Part: true, Required: "images are not pulled"},
	}
	if role == doctor.RoleServer {
		all = append(all, doctor.Program{Name: "rik", Part: true})
	}
	if o.node.Network != NetworkNone && !o.noAgent {
		all = append(all, doctor.Program{Name: "rik-dns", Path: o.node.NameServer, Part: true, Required: "instances cannot resolve names"})
	}
	if o.node.VMM != VMMNone {
		all = append(all,
			doctor.Program{Name: qemu.Program(), Path: o.node.QEMU}, doctor.Program{Name: "mke2fs"})
	}
	return all
}
