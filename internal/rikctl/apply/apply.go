package apply

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/kubectl/pkg/cmd/apply"
	"k8s.io/kubectl/pkg/cmd/diff"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/manifest"
	"rik.dev/rik/internal/rikctl/ownership"
)

// NewCommand is kubectl's apply with server-side apply as the default, because the server has
// the schemas of rik's types.
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	cmd := apply.NewCmdApply(cmdline.Program, t.Kube, t.Streams)
	cmd.RemoveCommand(cmd.Commands()...) // the subcommands serve only client-side apply
	mergedByServer(cmd)
	cmd.Flags().Lookup("dry-run").Usage = `"none" or "server". With "server", the server returns what it would store, and stores nothing.`
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Lookup("dry-run").Value.String() == "client" {
			return cmdline.Errorf(cmd, "--dry-run=client is not available, because the server merges the files; use --dry-run=server")
		}
		return nil
	}
	ownership.AsFile(cmd)
	kubectls := cmd.Run
	cmd.Run = nil
	t.withDeployments(cmd, func(cmd *cobra.Command, given []string) error {
		if err := ownership.Adopt(t.Factory, cmd, cmd.Flags().Lookup("dry-run").Value.String() == "server"); err != nil {
			return err
		}
		kubectls(cmd, given)
		return nil
	})
	return cmd
}

// mergedByServer makes server-side apply the default of a command.
func mergedByServer(cmd *cobra.Command) {
	serverSide := cmd.Flags().Lookup("server-side")
	serverSide.DefValue = "true"
	_ = serverSide.Value.Set("true")
}

// NewDiffCommand is kubectl's diff. It compares with the result of a dry run on the server.
func NewDiffCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	cmd := diff.NewCmdDiff(t.Kube, t.Streams)
	mergedByServer(ownership.AsFile(cmd))
	kubectls := cmd.Run
	t.withDeployments(cmd, func(cmd *cobra.Command, given []string) error {
		if err := ownership.Adopt(t.Factory, cmd, true); err != nil {
			return err
		}
		kubectls(cmd, given)
		return nil
	})
	return cmd
}

// withDeployments makes one of kubectl's commands read files as rikctl does: strictly, and with
// deployment files among them.
func (t *tool) withDeployments(cmd *cobra.Command, run func(cmd *cobra.Command, given []string) error) {
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		files, ok := cmd.Flags().Lookup("filename").Value.(pflag.SliceValue)
		if !ok {
			return errors.New("programmer error: --filename is no list")
		}
		replaced, dir, err := t.translated(files.GetSlice())
		if dir != "" {
			defer func() { _ = os.RemoveAll(dir) }()
		}
		if malformed := (clierror.MalformedError{}); errors.As(err, &malformed) {
			return err
		}
		if err != nil {
			return cmdline.Wrap(cmd, err)
		}
		if len(replaced) > 0 {
			if err := files.Replace(replaced); err != nil {
				return err
			}
		}
		return run(cmd, given)
	}
}

// translated replaces files that hold deployments by manifests in a directory that the caller
// must remove. Other files stay as they are. The standard input is always read here, because it
// can be read only once.
func (t *tool) translated(paths []string) (replaced []string, dir string, err error) {
	namespace, err := t.Namespace()
	if err != nil {
		return nil, "", err
	}
	for _, path := range paths {
		manifests, found, err := t.translate(path, namespace)
		if err == nil && found && dir == "" {
			dir, err = os.MkdirTemp("", "rikctl-")
		}
		if err != nil {
			return nil, dir, err
		}
		if !found {
			replaced = append(replaced, path)
			continue
		}
		file := filepath.Join(dir, fmt.Sprintf("%d.yaml", len(replaced)))
		if err := os.WriteFile(file, manifests, 0o600); err != nil {
			return nil, dir, err
		}
		replaced = append(replaced, file)
	}
	return replaced, dir, nil
}

// readable reports whether a path is a file or a directory.
func readable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && (info.IsDir() || info.Mode().IsRegular())
}

// translate returns the content of a path with its deployments as manifests. found is false if
// it has no deployments, or if kubectl's code must read the path and report its errors.
func (t *tool) translate(path, namespace string) (manifests []byte, found bool, err error) {
	if strings.HasPrefix(path, "http://") || strings.HasPrefix(path, "https://") {
		return nil, false, nil
	}
	if path != "-" && !readable(path) {
		return nil, false, nil
	}
	documents, err := manifest.Read([]string{path}, t.Streams.In)
	if err != nil {
		return nil, path == "-", err
	}
	found = path == "-"
	for _, d := range documents {
		// Otherwise a duplicate key would be lost, and kubectl's code would report a syntax
		// error with the name of the temporary file.
		if _, err := yaml.YAMLToJSONStrict(d.Data); err != nil {
			return nil, false, clierror.MalformedError{InvalidError: clierror.InvalidError{Source: d.Source, Err: err}}
		}
		if manifest.IsDeployment(d.Data) {
			w, err := manifest.FromDeployment(d, namespace)
			if err != nil {
				return nil, false, err
			}
			found = true
			if d.Data, err = manifest.Encode(w); err != nil {
				return nil, false, err
			}
		}
		manifests = append(append(manifests, "---\n"...), d.Data...)
		manifests = append(manifests, '\n')
	}
	return manifests, found, nil
}
