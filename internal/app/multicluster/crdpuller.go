package multicluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"rik.dev/rik/internal/multicluster/crdpuller"
)

// crdPuller contains the flags of the command.
type crdPuller struct {
	kubeconfig, context, output string
	// out receives the names of files, and complaints the types that are left out.
	out, complaints io.Writer
}

func crdPullerCommand() *cobra.Command {
	var p crdPuller
	c := &cobra.Command{
		Use:   "crd-puller [flags] [RESOURCE|RESOURCE.GROUP ...]",
		Short: "Write the types that a cluster serves as CRDs, one file each",
		Long: "crd-puller writes the types that a cluster serves as CustomResourceDefinitions, one\n" +
			"YAML file each, named RESOURCE.GROUP.yaml (core for the group of the first types).\n" +
			"It copies types that are CRDs in the cluster, and reads built-in types from the cluster's\n" +
			"OpenAPI document. Without arguments it writes all types that can be watched.",
		Example: "  crd-puller --kubeconfig east.kubeconfig deployments.apps ingresses.networking.k8s.io\n" +
			"  crd-puller --output types",
		// Otherwise the first argument would be taken for a subcommand.
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, names []string) error {
			p.out, p.complaints = c.OutOrStdout(), c.ErrOrStderr()
			return p.run(c.Context(), names)
		},
	}
	c.Flags().StringVar(&p.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: the same as kubectl)")
	c.Flags().StringVar(&p.context, "context", "", "context of the kubeconfig (default: the current context)")
	c.Flags().StringVarP(&p.output, "output", "o", ".", "directory for the files; it is created if it does not exist")
	return c
}

func (p *crdPuller) run(ctx context.Context, names []string) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = p.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: p.context}).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	puller, err := crdpuller.New(crdpuller.Config{Rest: config, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	pulled, err := puller.Pull(ctx, names...)
	if err != nil {
		return err
	}
	if err := pulled.WriteFiles(p.output, p.out); err != nil {
		return err
	}
	pulled.WriteProblems("crd-puller", p.complaints)
	return pulled.Missing(names)
}
