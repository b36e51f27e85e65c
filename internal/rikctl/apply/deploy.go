package apply

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/manifest"
	"rik.dev/rik/internal/rikctl/ownership"
)

// NewDeployCommand returns the command "rikctl deploy".
func NewDeployCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	var files []string
	cmd := &cobra.Command{
		Use:   "deploy -f FILE",
		Short: "Deploy apps from deployment files",
		Long: `Deploy the workloads of files: deployment files (name, repo, version, action:
deploy, metadata), or workloads in any other form. A deployment file may also
have command, args, env, user, ports and resources. Without a command, the app
runs the program with its name at the top of the repository. Deploying again
changes the existing workload, as "rikctl apply -f" does.`,
		Example: cmdline.Example(`
rikctl deploy -f nginx.yaml
rikctl get apps
rikctl delete app nginx`),
		Args: cmdline.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return cmdline.Errorf(cmd, "-f FILE is required")
			}
			return t.runDeploy(cmd, files)
		},
	}
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "file or directory; - for the standard input")
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json")
	return cmd
}

// runDeploy reads all documents before it deploys the first one.
func (t *tool) runDeploy(cmd *cobra.Command, files []string) error {
	namespace, err := t.Namespace()
	if err != nil {
		return err
	}
	documents, err := manifest.Read(files, t.Streams.In)
	if err != nil {
		return cmdline.Wrap(cmd, err)
	}
	workloads, err := manifest.DecodeWorkloads(documents, namespace)
	if err != nil {
		return cmdline.Wrap(cmd, err)
	}
	c, err := t.Client()
	if err != nil {
		return err
	}
	for _, w := range workloads {
		if err := t.deploy(cmd.Context(), c, w); err != nil {
			return fmt.Errorf("deploying %s: %w", w.Name, err)
		}
	}
	return nil
}

func (t *tool) deploy(ctx context.Context, c client.Client, w *rikv1alpha1.Workload) error {
	before := &rikv1alpha1.Workload{}
	err := c.Get(ctx, client.ObjectKeyFromObject(w), before)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	word := "updated"
	if err != nil {
		word = "deployed"
	}
	manifest, err := manifest.Encode(w)
	if err != nil {
		return err
	}
	applied := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(manifest, &applied.Object); err != nil {
		return err
	}
	if err := ownership.AdoptTyped(ctx, c, client.ObjectKeyFromObject(w), before); err != nil {
		return err
	}
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), ownership.File); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(t.Streams.Out, "%s %s\n", w.Name, word)
	return nil
}
