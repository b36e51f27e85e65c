package versions

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
	apiversion "k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/version"
)

// versions is the output of "rikctl version".
type versions struct {
	Client clientVersion    `json:"client"`
	Server *apiversion.Info `json:"server,omitempty"`
}

// clientVersion describes the build of this program.
type clientVersion struct {
	Version   string `json:"version"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

// NewCommand returns the command "rikctl version".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	var clientOnly bool
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of rikctl and of the server",
		Args:  cmdline.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Client: clientVersion{version.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}}
			var serverErr error
			if !clientOnly {
				v.Server, serverErr = t.serverVersion()
			}
			if err := t.printVersions(cmd, v, output); err != nil {
				return err
			}
			return serverErr
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "print only the version of rikctl")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml")
	return cmd
}

func (t *tool) serverVersion() (*apiversion.Info, error) {
	d, err := t.Getter.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	return d.ServerVersion()
}

func (t *tool) printVersions(cmd *cobra.Command, v versions, output string) error {
	var data []byte
	var err error
	switch output {
	case "":
		data = fmt.Appendf(nil, "Client: %s (%s, %s)\n", v.Client.Version, v.Client.GoVersion, v.Client.Platform)
		if v.Server != nil {
			data = fmt.Appendf(data, "Server: %s\n", serverText(v.Server.GitVersion))
		}
	case "json":
		data, err = json.MarshalIndent(v, "", "  ")
		data = append(data, '\n')
	case "yaml":
		data, err = yaml.Marshal(v)
	default:
		return cmdline.Errorf(cmd, "--output %q is not supported; use json or yaml", output)
	}
	if err != nil {
		return err
	}
	_, err = t.Streams.Out.Write(data)
	return err
}

// serverText formats the server's version, rik's first. A server that is not rik has only its
// own version.
func serverText(served string) string {
	own, kubernetes := version.Split(served)
	if own == "" {
		return kubernetes + " (not a rik server)"
	}
	return fmt.Sprintf("%s (Kubernetes API %s)", own, kubernetes)
}
