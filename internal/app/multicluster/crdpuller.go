package multicluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/multicluster/crdpuller"
)

// errPartly means that a type that was requested by name is missing.
var errPartly = errors.New("not all requested types were written")

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
	if err := p.write(pulled.CRDs); err != nil {
		return err
	}
	p.complain(pulled)
	if len(names) > 0 && (len(pulled.Problems) > 0 || len(pulled.CRDs) == 0) {
		return errPartly
	}
	return nil
}

func (p *crdPuller) write(crds []*apiextensionsv1.CustomResourceDefinition) error {
	if err := os.MkdirAll(p.output, 0o755); err != nil { //nolint:gosec // types are no secrets
		return fmt.Errorf("creating the directory for the files: %w", err)
	}
	for _, crd := range crds {
		raw, err := manifest(crd)
		if err != nil {
			return fmt.Errorf("writing %s as YAML: %w", crd.Name, err)
		}
		path := filepath.Join(p.output, crd.Name+".yaml")
		if err := os.WriteFile(path, raw, 0o644); err != nil { //nolint:gosec // as above
			return fmt.Errorf("writing the CRD %s: %w", crd.Name, err)
		}
		fmt.Fprintln(p.out, path)
	}
	return nil
}

// manifest removes the fields that only a server sets.
func manifest(crd *apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	if err != nil {
		return nil, err
	}
	delete(object, "status")
	return yaml.Marshal(object)
}

// complain prints what was left out, and why.
func (p *crdPuller) complain(pulled *crdpuller.Result) {
	for _, problem := range pulled.Problems {
		fmt.Fprintf(p.complaints, "crd-puller: left out %s\n", problem)
	}
	for _, name := range pulled.NotServed {
		fmt.Fprintf(p.complaints, "crd-puller: the cluster does not serve %s\n", name)
	}
	for _, gv := range pulled.Unknown {
		fmt.Fprintf(p.complaints, "crd-puller: the cluster did not answer about %s\n", gv)
	}
}
