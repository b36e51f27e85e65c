package multicluster

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"rik.dev/rik/internal/app/logflag"
	"rik.dev/rik/internal/multicluster/credential"
	"rik.dev/rik/internal/multicluster/metrics"
)

// clusterController contains the flags of the command.
type clusterController struct {
	kubeconfig, context string
	controllers         controllers
	logging             logflag.Flags
	metrics             metrics.Server
}

func clusterControllerCommand() *cobra.Command {
	var cc clusterController
	c := &cobra.Command{
		Use:   "cluster-controller --kubeconfig FILE",
		Short: "Run the controllers of a kcp next to it",
		Long: "cluster-controller runs the controllers that kcp --run-controllers runs in its own process.\n" +
			"It imports and negotiates the types of registered clusters, splits objects without a\n" +
			"cluster, and syncs objects. The kubeconfig must belong to an administrator of the kcp.\n" +
			"Syncers in the clusters connect to the kcp at the address in the kubeconfig.",
		Example: "  kcp --run-controllers=false &\n" +
			"  cluster-controller --kubeconfig .kcp/admin.kubeconfig --push-mode",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return cc.run(c.Context(), c.ErrOrStderr()) },
	}
	c.Flags().StringVar(&cc.kubeconfig, "kubeconfig", "", "kubeconfig of the kcp; required")
	c.Flags().StringVar(&cc.context, "context", "", "context of the kubeconfig (default: the current context)")
	cc.controllers.addFlags(c.Flags())
	cc.logging.Add(c.Flags())
	addMetricsFlag(c.Flags(), &cc.metrics)
	return c
}

func (cc *clusterController) run(ctx context.Context, out io.Writer) error {
	log, err := cc.logging.Logger(out)
	if err != nil {
		return err
	}
	if cc.kubeconfig == "" {
		return errors.New("set the kubeconfig of the kcp: --kubeconfig FILE")
	}
	if err := errors.Join(cc.controllers.validate(), cc.metrics.Validate()); err != nil {
		return err
	}
	config, err := connection("--kubeconfig", cc.kubeconfig, cc.context)
	if err != nil {
		return err
	}
	return cc.metrics.RunWith(ctx, log, func(ctx context.Context) error {
		return cc.controllers.run(ctx, config, credential.Requester(config), log)
	})
}
