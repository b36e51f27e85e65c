package multicluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/metrics/legacyregistry"

	"rik.dev/rik/internal/app/logflag"
	"rik.dev/rik/internal/multicluster/metrics"
	"rik.dev/rik/internal/multicluster/syncer"
)

// syncerCommandLine contains the flags of the command.
type syncerCommandLine struct {
	fromKubeconfig, fromCluster string
	toKubeconfig, toContext     string
	log                         logflag.Flags
	config                      syncer.Config
	metrics                     metrics.Server
}

func syncerCommand() *cobra.Command {
	var s syncerCommandLine
	c := &cobra.Command{
		Use:   "syncer --from-kubeconfig FILE --cluster NAME [flags] [RESOURCE|RESOURCE.GROUP ...]",
		Short: "Sync objects from a kcp to one cluster, and their status back",
		Long: "syncer copies the objects of one cluster from a kcp to this cluster, and their status back.\n" +
			"It is the agent of a Cluster of mode pull. For a Cluster without a mode, start it yourself.\n" +
			"It syncs the types in the Cluster's status; arguments restrict it to some of these types.\n\n" +
			"The flags of the kcp prototype (such as -from_kubeconfig) are also accepted.",
		Example: "  syncer --from-kubeconfig kcp.kubeconfig --to-kubeconfig east.kubeconfig --cluster east\n" +
			"  syncer --from-kubeconfig kcp.kubeconfig --cluster east deployments.apps configmaps",
		// Otherwise the first argument would be taken for a subcommand.
		Args: cobra.ArbitraryArgs,
		// The flags of the prototype have one dash. See prototypeFlags.
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			c.DisableFlagParsing = false
			if err := c.ParseFlags(prototypeFlags(args, c.Flags())); err != nil {
				return c.FlagErrorFunc()(c, err)
			}
			if help, err := c.Flags().GetBool("help"); err == nil && help {
				return c.Help()
			}
			s.config.Types = c.Flags().Args()
			return s.run(c.Context(), c.ErrOrStderr())
		},
	}
	s.addFlags(c.Flags())
	return c
}

func (s *syncerCommandLine) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&s.fromKubeconfig, "from-kubeconfig", "", "kubeconfig of the kcp; required")
	flags.StringVar(&s.fromCluster, "from-cluster", "", "logical cluster of the prototype; ignored, because a kcp has only one")
	flags.StringVar(&s.toKubeconfig, "to-kubeconfig", "", "kubeconfig of the physical cluster (default: the cluster in which the syncer runs)")
	flags.StringVar(&s.toContext, "to-context", "", "context of --to-kubeconfig (default: the current context)")
	flags.StringVar(&s.config.Cluster, "cluster", "", "name of the Cluster in the kcp; required")
	flags.IntVar(&s.config.Workers, "workers", syncer.DefaultWorkers, "number of objects that are synced in parallel; at most three quarters of them of one type, and at most half of them of one namespace")
	flags.DurationVar(&s.config.HeartbeatInterval, "heartbeat-interval", syncer.DefaultHeartbeatInterval, "interval of heartbeats")
	addDeleteFlags(flags, &s.config.Deletes)
	s.log.AddLevel(flags)
	addMetricsFlag(flags, &s.metrics)
}

// prototypeFlags converts the flags of the prototype, which have one dash and underscores, to the
// current flags. It changes only complete flag names.
func prototypeFlags(args []string, flags *pflag.FlagSet) []string {
	out := make([]string, 0, len(args))
	for i, arg := range args {
		if arg == "--" {
			return append(out, args[i:]...)
		}
		name, value, hasValue := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		name = strings.ReplaceAll(name, "_", "-")
		if !strings.HasPrefix(arg, "-") || flags.Lookup(name) == nil {
			out = append(out, arg)
			continue
		}
		arg = "--" + name
		if hasValue {
			arg += "=" + value
		}
		out = append(out, arg)
	}
	return out
}

func (s *syncerCommandLine) run(ctx context.Context, log io.Writer) error {
	logger, err := s.log.Logger(log)
	if err != nil {
		return err
	}
	if s.fromKubeconfig == "" || s.config.Cluster == "" {
		return errors.New("set the kubeconfig of the kcp and the name of the Cluster: --from-kubeconfig FILE --cluster NAME")
	}
	if err := s.metrics.Validate(); err != nil {
		return err
	}
	s.config.Logger = logger
	s.config.Metrics = legacyregistry.Registerer()
	if s.config.Upstream, err = connection("--from-kubeconfig", s.fromKubeconfig, ""); err != nil {
		return err
	}
	if s.config.Downstream, err = s.downstream(); err != nil {
		return err
	}
	runs, err := syncer.New(s.config)
	if err != nil {
		return err
	}
	return s.metrics.RunWith(ctx, s.config.Logger, runs.RunAgain)
}

func (s *syncerCommandLine) downstream() (*rest.Config, error) {
	if s.toKubeconfig != "" {
		return connection("--to-kubeconfig", s.toKubeconfig, s.toContext)
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("the syncer does not run in a cluster, so set --to-kubeconfig: %w", err)
	}
	return config, nil
}

// connection reads a kubeconfig of the user who runs the program.
func connection(flag, file, context string) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", flag, err)
	}
	return config, nil
}
