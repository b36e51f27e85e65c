package multicluster

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"rik.dev/rik/internal/multicluster/credential"
)

// clusterController contains the flags of the command.
type clusterController struct {
	kubeconfig, context string
	controllers         controllers
	logging             logging
	metrics             metricsPort
}

func clusterControllerCommand() *cobra.Command {
	var cc clusterController
	c := &cobra.Command{
		Use:   "cluster-controller --kubeconfig FILE",
		Short: "Run the controllers of a kcp beside it",
		Long: "cluster-controller runs what kcp --run-controllers runs in its own process: it takes the\n" +
			"types of registered clusters up, negotiates them, divides what names no cluster, and\n" +
			"carries objects. The kubeconfig is that of an administrator of the kcp; syncers that are\n" +
			"installed in clusters reach the kcp at the address in it.",
		Example: "  kcp --run-controllers=false &\n" +
			"  cluster-controller --kubeconfig .kcp/admin.kubeconfig --push-mode",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return cc.run(c.Context(), c.ErrOrStderr()) },
	}
	c.Flags().StringVar(&cc.kubeconfig, "kubeconfig", "", "kubeconfig of the kcp; required")
	c.Flags().StringVar(&cc.context, "context", "", "context of the kubeconfig (default: its current one)")
	cc.controllers.addFlags(c.Flags())
	cc.logging.addFlags(c.Flags())
	cc.metrics.addFlags(c.Flags())
	return c
}

func (cc *clusterController) run(ctx context.Context, out io.Writer) error {
	log, err := cc.logging.logger(out)
	if err != nil {
		return err
	}
	if cc.kubeconfig == "" {
		return errors.New("name the kcp: --kubeconfig FILE")
	}
	if err := errors.Join(cc.controllers.validate(), cc.metrics.validate()); err != nil {
		return err
	}
	config, err := connection("--kubeconfig", cc.kubeconfig, cc.context)
	if err != nil {
		return err
	}
	return cc.metrics.beside(ctx, log, func(ctx context.Context) error {
		return cc.controllers.run(ctx, config, credential.Requester(config), log)
	})
}
