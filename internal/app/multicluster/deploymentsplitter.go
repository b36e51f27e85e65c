package multicluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"rik.dev/rik/internal/app/logflag"
	"rik.dev/rik/internal/multicluster/metrics"
	"rik.dev/rik/internal/multicluster/splitter/controller"
)

const splitTypesFlag = "split-types"

// splitter contains the flags of the splitter, in any program.
type splitter struct{ types []string }

func (s *splitter) addFlags(flags *pflag.FlagSet) {
	flags.StringSliceVar(&s.types, splitTypesFlag, nil, "types, as plural.group or plural, whose objects without a cluster are split over the clusters; by default all types that the kcp serves for clusters; "+
		controller.NoTypes+" for no type")
}

func (s *splitter) validate() error {
	if controller.IsOff(s.types) {
		return nil
	}
	if err := controller.ValidateTypes(s.types); err != nil {
		return fmt.Errorf("--%s: %w", splitTypesFlag, err)
	}
	return nil
}

// prepare returns a function that splits the root objects of a kcp until its context ends.
func (s *splitter) prepare(kcp *rest.Config, log *slog.Logger, registry prometheus.Registerer) (run func(context.Context) error, err error) {
	if controller.IsOff(s.types) {
		return func(context.Context) error { return nil }, nil
	}
	c, err := controller.New(controller.Config{Rest: kcp, Types: s.types, Logger: log.With("component", "splitter"), Metrics: registry})
	if err != nil {
		return nil, err
	}
	return c.Run, nil
}

// deploymentSplitter contains the flags of the command.
type deploymentSplitter struct {
	kubeconfig, context string
	splitter            splitter
	logging             logflag.Flags
	metrics             metrics.Server
}

func deploymentSplitterCommand() *cobra.Command {
	var d deploymentSplitter
	c := &cobra.Command{
		Use:   "deployment-splitter --kubeconfig FILE",
		Short: "Split objects without a cluster over the clusters of a kcp",
		Long: "deployment-splitter splits the replicas of Deployments, and of all other types that the kcp\n" +
			"serves for its clusters, over these clusters. It splits them again when clusters are added,\n" +
			"removed or lost. A kcp and a cluster-controller do the same, unless they are started with\n--" + splitTypesFlag + "=" + controller.NoTypes + ".\n" +
			"The kubeconfig must belong to an administrator of the kcp.",
		Example: "  kcp --" + splitTypesFlag + "=" + controller.NoTypes + " &\n" +
			"  deployment-splitter --kubeconfig .kcp/admin.kubeconfig",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return d.run(c.Context(), c.ErrOrStderr()) },
	}
	c.Flags().StringVar(&d.kubeconfig, "kubeconfig", "", "kubeconfig of the kcp; required")
	c.Flags().StringVar(&d.context, "context", "", "context of the kubeconfig (default: the current context)")
	d.splitter.addFlags(c.Flags())
	d.logging.Add(c.Flags())
	addMetricsFlag(c.Flags(), &d.metrics)
	return c
}

func (d *deploymentSplitter) run(ctx context.Context, out io.Writer) error {
	log, err := d.logging.Logger(out)
	if err != nil {
		return err
	}
	if d.kubeconfig == "" {
		return errors.New("set the kubeconfig of the kcp: --kubeconfig FILE")
	}
	if controller.IsOff(d.splitter.types) {
		return fmt.Errorf("--%s=%s disables the splitter, so this program cannot run with it", splitTypesFlag, controller.NoTypes)
	}
	if err := errors.Join(d.splitter.validate(), d.metrics.Validate()); err != nil {
		return err
	}
	config, err := connection("--kubeconfig", d.kubeconfig, d.context)
	if err != nil {
		return err
	}
	registry := &metrics.Scope{Registerer: legacyregistry.Registerer()}
	defer registry.End()
	run, err := d.splitter.prepare(config, log, registry)
	if err != nil {
		return err
	}
	return d.metrics.RunWith(ctx, log, run)
}
