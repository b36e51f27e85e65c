package portforward

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport/websocket"
	"k8s.io/streaming/pkg/httpstream"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/forward"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rpc/portstream"
)

// NewCommand returns the command "rikctl port-forward".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	var addresses []string
	cmd := &cobra.Command{
		Use:   "port-forward INSTANCE|workload/NAME [LOCAL:]REMOTE...",
		Short: "Forward local ports to an instance",
		Long: `Listen on ports of this machine and forward each TCP connection to a port of an
instance, through the server and the instance's node. The port does not have to be
exposed: the node dials it inside the instance's own network.

For workload/NAME, each connection goes to a ready instance. If an instance is
replaced, only its own connections break. A connection that fails is reported and
does not affect the others.`,
		Example: cmdline.Example(`
rikctl port-forward web-x7k2p 8080:80
rikctl port-forward workload/web 8080:80 9090
rikctl port-forward workload/db :5432`),
		Args:              cmdline.Args(cobra.MinimumNArgs(2)),
		ValidArgsFunction: target.CompleteInstance(t.Factory),
		RunE: func(cmd *cobra.Command, given []string) error {
			tg, err := target.Parse(given[0])
			if err != nil {
				return cmdline.Wrap(cmd, err)
			}
			var ports []forward.Port
			for _, text := range given[1:] {
				p, err := forward.ParsePort(text)
				if err != nil {
					return cmdline.Wrap(cmd, err)
				}
				ports = append(ports, p)
			}
			return t.runPortForward(cmd.Context(), tg, addresses, ports)
		},
	}
	cmd.Flags().StringSliceVar(&addresses, "address", []string{forward.Localhost}, "addresses of this machine to listen on; other machines can connect to any but localhost")
	return cmd
}

func (t *tool) runPortForward(ctx context.Context, tg target.Target, addresses []string, ports []forward.Port) error {
	c, namespace, err := t.NamespacedClient()
	if err != nil {
		return err
	}
	rc, restConfig, err := t.RESTClient()
	if err != nil {
		return err
	}
	// Check before listening that the instance exists and runs.
	if _, err := tg.Serving(ctx, c, namespace); err != nil {
		return err
	}
	f, err := forward.Listen(ctx, forward.Config{
		Addresses: addresses, Ports: ports, Out: t.Streams.Out, Err: t.Streams.ErrOut,
		Dial: func(ctx context.Context, port int) (*portstream.Stream, error) {
			i, err := tg.Serving(ctx, c, namespace)
			if err != nil {
				return nil, err
			}
			return dialPort(ctx, rc, restConfig, i, port)
		},
		Final: tg.Final,
	})
	if err != nil {
		return clierror.WithNext(err, "choose another local port, as in 8080:80, or any free port, as in :80")
	}
	return f.Run(ctx)
}

// dialPort opens a port of an instance over a new WebSocket.
func dialPort(ctx context.Context, c *rest.RESTClient, restConfig *rest.Config, i *rikv1alpha1.Instance, port int) (*portstream.Stream, error) {
	url := c.Get().Namespace(i.Namespace).Resource("instances").Name(i.Name).SubResource("portforward").
		Param(portstream.Parameter, strconv.Itoa(port)).URL()
	transport, holder, err := websocket.RoundTripperFor(restConfig)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url.String(), nil)
	if err != nil {
		return nil, err
	}
	ws, err := websocket.Negotiate(transport, holder, request, portstream.Protocol)
	var refused *httpstream.UpgradeFailureError
	if errors.As(err, &refused) {
		err = refused.Cause
	}
	if err != nil {
		return nil, fmt.Errorf("reaching port %d of instance %s: %w", port, i.Name, err)
	}
	return portstream.New(ws), nil
}
