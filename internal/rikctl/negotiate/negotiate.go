package negotiate

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/negotiation/plan"
	"rik.dev/rik/internal/multicluster/negotiation/plan/storage"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
)

// NewCommand returns the command "rikctl api".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return cmdline.Group(&cobra.Command{
		Use:   "api",
		Short: "Show the schemas on which the clusters of a kcp agree",
		Long: `Show the types that a kcp serves for its clusters: what each cluster offers, and
the schema on which the clusters agree.`,
	}, t.apiNegotiateCommand())
}

// negotiateFlags are the flags of "api negotiate".
type negotiateFlags struct {
	plan   bool
	output string
}

func (t *tool) apiNegotiateCommand() *cobra.Command {
	var f negotiateFlags
	cmd := &cobra.Command{
		Use:   "negotiate --plan [RESOURCE]",
		Short: "Show what publishing a type would do",
		Long: `Show what publishing a type would do. The output has the schema on which the clusters
agree, the fields that it leaves out with the clusters that cause this, and the fields
that make a cluster incompatible. An example document shows each difference. The result
is computed from the present state of the kcp. Nothing changes.

RESOURCE is a type such as deployments or deployments.apps; the default is all types.
The kcp negotiates automatically. To publish a type:

  rikctl patch negotiatedapiresource deployments.v1.apps --type=merge -p '{"spec":{"publish":true}}'`,
		Example: cmdline.Example(`
rikctl api negotiate --plan
rikctl api negotiate --plan deployments.apps
rikctl api negotiate --plan deployments.apps -o yaml # with the whole schema`),
		Args: cmdline.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if !f.plan {
				return cmdline.Errorf(cmd, "--plan is required: the kcp negotiates by itself, and this command only shows what publishing would do")
			}
			if f.output != "" && f.output != "yaml" {
				return cmdline.Errorf(cmd, "--output %q is not supported; use yaml", f.output)
			}
			var resource string
			if len(given) > 0 {
				resource = given[0]
			}
			return t.showNegotiation(cmd.Context(), resource, f.output == "yaml")
		},
		ValidArgsFunction: func(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(given) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			// Without an answer, completion offers no names.
			states, _ := t.negotiations(cmd.Context(), "")
			var names []string
			for i := range states {
				names = append(names, states[i].Resource.String())
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&f.plan, "plan", false, "show what publishing would do; required")
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "yaml for the objects that publishing would write, or text when empty")
	return cmd
}

func (t *tool) showNegotiation(ctx context.Context, resource string, asYAML bool) error {
	states, err := t.negotiations(ctx, resource)
	if err != nil {
		return err
	}
	if len(states) == 0 {
		_, _ = fmt.Fprintln(t.Streams.ErrOut, "No cluster offers a type, and no type is negotiated.")
		return nil
	}
	restConfig, err := t.Getter.ToRESTConfig()
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(restConfig)
	if err != nil {
		return err
	}
	for i := range states {
		p, err := storage.Decide(ctx, objects, &states[i], plan.Preview)
		if err != nil {
			return fmt.Errorf("computing what publishing %s would do: %w", states[i].Resource, err)
		}
		if asYAML {
			err = printWanted(t.Streams.Out, p)
		} else {
			err = printNegotiation(t.Streams.Out, &states[i], p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// notKCP adds the next step to an error that occurs because the server is not a kcp and
// therefore lacks the types of negotiation.
func notKCP(err error) error {
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return clierror.WithNext(fmt.Errorf("the server does not have the types of %s: %w", apiresourcev1alpha1.GroupName, err),
			`only a kcp has these types; name its configuration with --config or $RIKCONFIG`)
	}
	return err
}

// toYAML encodes an object as one YAML document.
func toYAML(object any) ([]byte, error) {
	data, err := yaml.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("writing yaml: %w", err)
	}
	return append([]byte("---\n"), data...), nil
}
