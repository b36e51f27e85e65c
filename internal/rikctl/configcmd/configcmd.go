package configcmd

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/config"
)

// NewCommand returns the command "rikctl config".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return cmdline.Group(&cobra.Command{
		Use:   "config",
		Short: "Show and change which cluster rikctl connects to",
		Long:  "Show and change which cluster rikctl connects to. \"rikctl help configuration\" lists the files that it reads.",
	}, t.configView(), t.configCurrent(), t.configSet(), t.configUse())
}

func (t *tool) configView() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "view",
		Short: "Print the configuration in use",
		Args:  cmdline.Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			found, err := config.Find(t.Getter.Source)
			if err != nil {
				return err
			}
			file := found.File
			if !raw {
				file = file.Redacted()
			}
			data, err := yaml.Marshal(file)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(t.Streams.Out, "# from %s\n%s", found.Origin(), data)
			return err
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "include keys and tokens")
	return cmd
}

func (t *tool) configCurrent() *cobra.Command {
	return &cobra.Command{
		Use:   "current",
		Short: "Print the cluster in use",
		Args:  cmdline.Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			found, err := config.Find(t.Getter.Source)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(t.Streams.Out, "%s at %s (from %s)\n", found.File.Cluster.Name, found.File.Cluster.Server, found.Origin())
			return err
		},
	}
}

// writable returns the file that the configuration commands change: a named one, or the user's,
// but never the server's.
func (t *tool) writable() (string, error) {
	s := t.Getter.Source
	for _, path := range []string{s.Flag, s.Getenv(config.EnvPath), s.UserPath()} {
		if path != "" {
			return path, nil
		}
	}
	return "", errors.New("no home directory for a configuration: name a file with --config")
}

// changeable returns the same as writable, for a command that writes to the file. It refuses a
// file that a server owns.
func (t *tool) changeable(cmd *cobra.Command, given []string) (string, error) {
	path, err := t.writable()
	if err != nil || !t.Getter.Source.IsServers(path) {
		return path, err
	}
	own := t.Getter.Source.UserPath()
	if own == "" || t.Getter.Source.IsServers(own) {
		own = "FILE"
	}
	return "", clierror.WithNext(
		fmt.Errorf("%s belongs to the server, which rewrites it at every start", path),
		fmt.Sprintf("store your clusters in a file of your own: %s", commandLine(cmd, given, own)),
	)
}

// commandLine returns the user's command with another configuration.
func commandLine(cmd *cobra.Command, given []string, path string) string {
	words := append(strings.Fields(cmd.CommandPath()), given...)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "config" {
			words = append(words, "--"+f.Name+"="+f.Value.String())
		}
	})
	words = append(words, "--config="+path)
	for i, word := range words {
		words[i] = cmdline.Quote(word)
	}
	return strings.Join(words, " ")
}

func readOrEmpty(path string) (config.File, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return config.File{}, nil
	}
	if err != nil {
		return config.File{}, err
	}
	return config.Decode(path, data)
}

func (t *tool) configSet() *cobra.Command {
	var c config.Cluster
	var embed bool
	cmd := &cobra.Command{
		Use:   "set-cluster NAME --server URL",
		Short: "Add a cluster to the configuration, or change it",
		Example: cmdline.Example(`
rikctl config set-cluster office --server https://rik.example.org:5000 \
  --certificate-authority ca.crt --client-certificate me.crt --client-key me.key`),
		Args: cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			c.Name = given[0]
			if c.Server == "" {
				return cmdline.Errorf(cmd, "--server is required")
			}
			if err := config.CheckServer(c.Server); err != nil {
				return cmdline.Errorf(cmd, "--server: %w", err)
			}
			path, err := t.changeable(cmd, given)
			if err != nil {
				return err
			}
			if err := prepare(&c, embed); err != nil {
				return err
			}
			file, err := readOrEmpty(path)
			if err != nil {
				return err
			}
			if err := config.Write(path, file.With(c)); err != nil {
				return err
			}
			_, err = fmt.Fprintf(t.Streams.Out, "cluster %s is stored in %s\n", c.Name, path)
			return err
		},
	}
	cmd.Flags().StringVar(&c.Server, "server", "", "URL of the server, such as https://192.0.2.10:5000")
	cmd.Flags().StringVar(&c.CertificateAuthority, "certificate-authority", "", "file with the authority that signed the server's certificate")
	cmd.Flags().StringVar(&c.ClientCertificate, "client-certificate", "", "file with the user's certificate")
	cmd.Flags().StringVar(&c.ClientKey, "client-key", "", "file with the certificate's key")
	cmd.Flags().StringVar(&c.Token, "token", "", "token instead of a certificate, or the path of a file with it")
	cmd.Flags().BoolVar(&embed, "embed-certs", false, "copy the files into the configuration")
	return cmd
}

// prepare makes the paths of the command line absolute, or replaces them by the contents of the
// files.
func prepare(c *config.Cluster, embed bool) error {
	for _, path := range []*string{&c.CertificateAuthority, &c.ClientCertificate, &c.ClientKey} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(absolute)
		if err != nil {
			return err
		}
		*path = absolute
		if embed {
			*path = base64.StdEncoding.EncodeToString(data)
		}
	}
	return nil
}

func (t *tool) configUse() *cobra.Command {
	return &cobra.Command{
		Use:     "use NAME",
		Aliases: []string{"use-cluster"},
		Short:   "Switch to another cluster of the configuration",
		Args:    cmdline.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			path, err := t.writable()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			file, err := readOrEmpty(path)
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			return slices.Clone(file.Names()), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			path, err := t.changeable(cmd, given)
			if err != nil {
				return err
			}
			file, err := readOrEmpty(path)
			if err != nil {
				return err
			}
			if file, err = file.Using(given[0]); err != nil {
				return clierror.WithNext(fmt.Errorf("in %s: %w", path, err), "\"rikctl config set-cluster "+given[0]+" --server URL\" adds it")
			}
			if err := config.Write(path, file); err != nil {
				return err
			}
			_, err = fmt.Fprintf(t.Streams.Out, "rikctl now connects to cluster %s at %s\n", file.Cluster.Name, file.Cluster.Server)
			return err
		},
	}
}
