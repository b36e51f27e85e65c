package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rik.dev/rik/internal/app/logflag"
	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/doctor/facts"
	"rik.dev/rik/internal/install"
	"rik.dev/rik/internal/install/layout"
	"rik.dev/rik/internal/version"
)

// joinTimeout is how long "install agent" waits until the node has joined.
const joinTimeout = time.Minute

// defaultPrefix is where programs go that no package manages.
const defaultPrefix = "/usr/local"

// InstallCommand returns "install". checkServer checks the flags of a server; without it the
// command installs only nodes.
func InstallCommand(program string, checkServer func(flags []string) error) *cobra.Command {
	c := &cobra.Command{
		Use:   "install",
		Short: "Install rik on this machine as systemd services, without a package",
		Long: "Install rik on this machine as systemd services, without a package. Run it from an unpacked\n" +
			"archive or from the folder bin of a checkout. The same command with a newer version upgrades:\n" +
			"instances keep running. \"" + program + " uninstall\" removes everything.",
	}
	if checkServer != nil {
		c.AddCommand(installServerCommand(checkServer))
	}
	c.AddCommand(installAgentCommand())
	return c
}

// installFlags are the flags of both commands.
type installFlags struct {
	prefix, root, bundle string
	noStart              bool
}

func (f *installFlags) add(s *pflag.FlagSet) {
	s.StringVar(&f.prefix, "prefix", defaultPrefix, "parent of the directories lib/rik, bin and share")
	s.StringVar(&f.root, "root", "/", "root directory of the machine to install on; other than / the service is not started")
	s.StringVar(&f.bundle, "from", "", "directory with the programs; by default the one of this program")
	s.BoolVar(&f.noStart, "no-start", false, "install the files, and do not start the service")
}

// options returns the options that both commands share.
func (f *installFlags) options(p layout.Package, say func(string)) (install.Options, error) {
	bundle := f.bundle
	if bundle == "" {
		self, err := os.Executable()
		if err != nil {
			return install.Options{}, fmt.Errorf("finding this program: %w; set --from", err)
		}
		bundle = filepath.Dir(self)
	}
	root, err := filepath.Abs(f.root)
	if err != nil {
		return install.Options{}, usagef("--root %q is not a directory", f.root)
	}
	return install.Options{Package: p, Prefix: f.prefix, Root: root, Bundle: bundle, Start: !f.noStart && root == "/", Progress: say}, nil
}

// saying prints a line for each step.
func saying(c *cobra.Command) func(string) {
	return func(text string) { fmt.Fprintln(c.OutOrStdout(), text) }
}

func installServerCommand(check func([]string) error) *cobra.Command {
	var f installFlags
	var noAgent bool
	var join, tokenFile string
	c := &cobra.Command{
		Use:     "server [-- FLAGS]",
		Short:   "Install and start a server: control plane, and this machine as a node",
		Example: "  rik install server\n  rik install server -- --tls-san rik.example.com\n  rik install server --join https://10.0.0.1:5000 --token-file server-token",
		RunE: func(c *cobra.Command, flags []string) error {
			if err := check(flags); err != nil {
				return err
			}
			o, err := f.options(layout.Server, saying(c))
			if err != nil {
				return err
			}
			o.ControlPlaneOnly = noAgent
			if len(flags) > 0 {
				o.Settings = []install.Setting{{Name: layout.FlagsVariable(layout.Server), Value: strings.Join(flags, " ")}}
			}
			joining, err := joinSettings(join, tokenFile)
			if err != nil {
				return err
			}
			o.Settings = append(o.Settings, joining...)
			if _, err := install.Install(c.Context(), o, install.Systemd{}, version.Version); err != nil {
				return err
			}
			fmt.Fprint(c.OutOrStdout(), serverSteps(o))
			if o.Start {
				printFirewall(c, doctor.RoleServer)
			}
			return nil
		},
	}
	f.add(c.Flags())
	c.Flags().StringVar(&join, "join", "", "join the cluster of another server, such as https://10.0.0.1:5000, as one of its servers")
	c.Flags().StringVar(&tokenFile, "token-file", "", "file with the token for --join; \"rikctl token create --server\" creates it")
	c.Flags().BoolVar(&noAgent, "no-agent", false, "run no instances on this machine; the service then runs as the user "+layout.User+" in a sandbox")
	return c
}

// The variables with which a service joins other servers. The settings file has them, because the
// service may not be able to read the file of the token.
const (
	EnvJoin      = "RIK_JOIN"
	EnvJoinToken = "RIK_JOIN_TOKEN"
)

// joinSettings checks the address and the token before anything is installed.
func joinSettings(join, tokenFile string) ([]install.Setting, error) {
	if join == "" && tokenFile == "" {
		return nil, nil
	}
	if join == "" || tokenFile == "" {
		return nil, usagef("--join and --token-file must be given together")
	}
	found, err := connect(join, "", tokenFile)
	if err != nil {
		return nil, err
	}
	return []install.Setting{{Name: EnvJoin, Value: join}, {Name: EnvJoinToken, Value: found.Token.Text()}}, nil
}

// serverSteps says what to do next.
func serverSteps(o install.Options) string {
	if !o.Start {
		return "\nThe files are installed. Start the server with: systemctl enable --now " + layout.UnitName(layout.Server) + "\n"
	}
	return "\nThe server runs. Next:\n" +
		"  rikctl get nodes                      # this machine\n" +
		"  cat " + layout.DataDir + "/data/node-token      # the token with which other machines join\n" +
		"  journalctl -u rik -f                  # its log\n"
}

// printFirewall prints what rik doctor finds about the firewall of this machine, and the commands
// that open what rik needs. It prints nothing if nothing needs attention.
func printFirewall(c *cobra.Command, role doctor.Role) {
	o := doctorOptions{node: DefaultOptions(), usualRole: role}
	o.addFlags(pflag.NewFlagSet("doctor", pflag.ContinueOnError))
	config, err := o.config()
	if err != nil {
		return // "rik doctor" says why
	}
	report, err := doctor.Check(facts.Gather(c.Context(), config), []string{"firewall"})
	if err != nil || report.Summary[doctor.Warning]+report.Summary[doctor.Error] == 0 {
		return
	}
	fmt.Fprint(c.OutOrStdout(), "\nThe firewall of this machine needs attention:\n")
	// The installation is complete, also if nobody reads this.
	_ = report.Print(c.OutOrStdout(), "")
}

func installAgentCommand() *cobra.Command {
	var f installFlags
	var server, token, tokenFile string
	c := &cobra.Command{
		Use:     "agent --server URL --token-file FILE [-- FLAGS]",
		Short:   "Install and start a node that joins an existing cluster",
		Example: "  rik install agent --server https://10.0.0.1:5000 --token-file node-token\n  RIK_TOKEN=... rik install agent --server https://10.0.0.1:5000 -- --node-label zone=a",
		RunE: func(c *cobra.Command, flags []string) error {
			if err := checkAgentFlags(flags); err != nil {
				return err
			}
			o, err := f.options(layout.Node, saying(c))
			if err != nil {
				return err
			}
			if o.Settings, err = agentSettings(server, token, tokenFile, flags, o); err != nil {
				return err
			}
			o.Joined, o.Timeout = joinedStatus, joinTimeout
			if o.Start {
				defer printFirewall(c, doctor.RoleNode)
			}
			_, err = install.Install(c.Context(), o, install.Systemd{}, version.Version)
			switch {
			case errors.Is(err, install.ErrNotReady):
				// The service keeps trying. The server may be installed later.
				fmt.Fprintf(c.OutOrStdout(), "\nThe node is installed and has not joined the cluster: %v.\nIt keeps trying. See: journalctl -u riklet -f\n", err)
			case err != nil:
				return err
			case o.Start:
				fmt.Fprint(c.OutOrStdout(), "\nThe node is part of the cluster. See: journalctl -u riklet -f, and on the server: rikctl get nodes\n")
			default:
				fmt.Fprintf(c.OutOrStdout(), "\nThe files are installed. Start the node with: systemctl enable --now %s\n", layout.UnitName(layout.Node))
			}
			return nil
		},
	}
	f.add(c.Flags())
	c.Flags().StringVar(&server, "server", os.Getenv("RIK_SERVER"), "address of the cluster's API, such as https://10.0.0.1:5000 [RIK_SERVER]")
	c.Flags().StringVar(&tokenFile, "token-file", "", "file with the join token; on the server it is node-token in the data directory")
	token = os.Getenv("RIK_TOKEN")
	return c
}

func checkAgentFlags(flags []string) error {
	c := AgentCommand("agent")
	if err := c.ParseFlags(flags); err != nil {
		return usagef("flags of the node: %w", err)
	}
	return noArgs(c, c.Flags().Args())
}

// agentSettings checks the server and the token before anything is installed. An upgrade needs
// neither.
func agentSettings(server, token, tokenFile string, flags []string, o install.Options) ([]install.Setting, error) {
	var settings []install.Setting
	if len(flags) > 0 {
		settings = append(settings, install.Setting{Name: layout.FlagsVariable(layout.Node), Value: strings.Join(flags, " ")})
	}
	if server == "" && token == "" && tokenFile == "" {
		if _, err := install.ReadRecord(o.Root, o.Prefix); err == nil || !o.Start {
			return settings, nil
		}
	}
	found, err := connect(server, token, tokenFile)
	if err != nil {
		return nil, err
	}
	return append(settings, install.Setting{Name: "RIK_SERVER", Value: server}, install.Setting{Name: "RIK_TOKEN", Value: found.Token.Text()}), nil
}

// UninstallCommand returns "uninstall".
func UninstallCommand() *cobra.Command {
	var prefix, root string
	var keepData bool
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Stop rik and its instances on this machine, and remove what \"install\" wrote, and all data",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			absolute, err := filepath.Abs(root)
			if err != nil {
				return usagef("--root %q is not a directory", root)
			}
			r := install.Removal{Prefix: prefix, Root: absolute, Live: absolute == "/", KeepData: keepData, Progress: saying(c)}
			record, err := install.ReadRecord(absolute, prefix)
			if err != nil {
				return err
			}
			flags, err := install.FlagsOf(absolute, record.Package)
			if err != nil {
				return err
			}
			o, data := directories(flags)
			r.Directories = data
			r.StopNode = func(ctx context.Context, keep bool) error { return stopNode(ctx, o, keep) }
			if err := install.Uninstall(c.Context(), r, install.Systemd{}); err != nil {
				return err
			}
			if keepData {
				fmt.Fprintf(c.OutOrStdout(), "\nrik is removed. Its data is still in %s, %s and %s.\n", layout.DataDir, layout.StateDir, layout.ConfigDir)
			} else {
				fmt.Fprintln(c.OutOrStdout(), "\nrik and its data are removed.")
			}
			return nil
		},
	}
	c.Flags().StringVar(&prefix, "prefix", defaultPrefix, "prefix of the installation")
	c.Flags().StringVar(&root, "root", "/", "root directory of the machine; other than / no service and no instance is stopped")
	c.Flags().BoolVar(&keepData, "keep-data", false, "keep the data of the cluster and of the node, and the configuration; instances stop, and start again with the next installation")
	return c
}

// directories returns the options of the service's node, and the server's directory of data if a
// flag names one. The service's other flags do not matter.
func directories(flags []string) (Options, []string) {
	o := DefaultOptions()
	set := pflag.NewFlagSet("service", pflag.ContinueOnError)
	set.ParseErrorsAllowlist.UnknownFlags = true
	data := set.String("data-dir", "", "")
	o.addDirFlags(set)
	// A service with wrong flags has not run, so it has no other directories.
	_ = set.Parse(flags)
	if *data == "" {
		return o, nil
	}
	return o, []string{*data}
}

// stopNode ends the instances of this machine. A machine without a node has none.
func stopNode(ctx context.Context, o Options, keepData bool) error {
	log, err := logger(logflag.Flags{Level: "warn", Format: logflag.Text})
	if err != nil {
		return err
	}
	return Purge(ctx, o, keepData, log)
}
