package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/proxy"
	"k8s.io/kubectl/pkg/util"

	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
)

// The defaults of proxy. Every client that can reach the proxy acts as its user, so the defaults
// are strict. The check of the Host header stops a web page whose own domain name resolves to
// this address.
const (
	proxyPort    = 8001
	proxyAddress = "127.0.0.1"
	// rejectedPaths matches exec and portforward of instances. The server ignores extra slashes,
	// also encoded ones, so the pattern allows them. Browsers let any web page open a WebSocket.
	rejectedPaths = `^/+apis/+rik\.dev/+[^/]+/+namespaces/+[^/]+/+instances/+[^/]+/+(exec|portforward)(/|$)`
	// proxyHeaders is the timeout for reading the header of a request.
	proxyHeaders = 30 * time.Second
)

// proxyFlags are the flags of proxy.
type proxyFlags struct {
	port          int
	address, unix string
	prefix        string
	acceptHosts   string
	acceptPaths   string
	rejectPaths   string
	rejectMethods string
}

// NewCommand returns the command "rikctl proxy".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Serve the API on this machine with your credentials",
		Long: `Serve the server's API over plain HTTP on this machine, for curl, scripts and
browsers. The proxy sends every request with your credentials, so everyone who
reaches the port has your permissions. By default it listens on loopback, accepts
only the names of this machine in the Host header, and rejects exec and
port-forward of instances.`,
		Example: cmdline.Example(`
rikctl proxy &
curl http://127.0.0.1:8001/apis/rik.dev/v1alpha1/nodes
rikctl proxy --port 0
rikctl proxy --unix-socket /run/user/1000/rik.sock`),
		Args: cmdline.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.unix != "" && (cmd.Flags().Changed("port") || cmd.Flags().Changed("address")) {
				return cmdline.Errorf(cmd, "--unix-socket cannot be used with --port or --address")
			}
			filter, err := f.filter()
			if err != nil {
				return cmdline.Wrap(cmd, err)
			}
			return t.runProxy(cmd.Context(), f, filter)
		},
	}
	cmd.Flags().IntVarP(&f.port, "port", "p", proxyPort, "port to listen on; 0 for any free port")
	cmd.Flags().StringVar(&f.address, "address", proxyAddress, "address to listen on")
	cmd.Flags().StringVarP(&f.unix, "unix-socket", "u", "", "Unix socket to listen on instead; only your user can open it")
	cmd.Flags().StringVar(&f.prefix, "api-prefix", "/", "path under which the API is served")
	cmd.Flags().StringVar(&f.acceptHosts, "accept-hosts", proxy.DefaultHostAcceptRE, "regular expressions of accepted names in the Host header")
	cmd.Flags().StringVar(&f.acceptPaths, "accept-paths", proxy.DefaultPathAcceptRE, "regular expressions of accepted paths")
	cmd.Flags().StringVar(&f.rejectPaths, "reject-paths", rejectedPaths, "regular expressions of rejected paths")
	cmd.Flags().StringVar(&f.rejectMethods, "reject-methods", proxy.DefaultMethodRejectRE, "regular expressions of rejected methods, such as POST,PUT,PATCH,DELETE")
	return cmd
}

func (f *proxyFlags) filter() (*proxy.FilterServer, error) {
	filter := &proxy.FilterServer{}
	for name, flag := range map[string]struct {
		text string
		to   *[]*regexp.Regexp
	}{
		"accept-hosts": {f.acceptHosts, &filter.AcceptHosts}, "accept-paths": {f.acceptPaths, &filter.AcceptPaths},
		"reject-paths": {f.rejectPaths, &filter.RejectPaths}, "reject-methods": {f.rejectMethods, &filter.RejectMethods},
	} {
		expressions, err := proxy.MakeRegexpArray(flag.text)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
		*flag.to = expressions
	}
	return filter, nil
}

func (t *tool) runProxy(ctx context.Context, f proxyFlags, filter *proxy.FilterServer) error {
	restConfig, err := t.Getter.ToRESTConfig()
	if err != nil {
		return err
	}
	prefix := "/" + strings.Trim(f.prefix, "/") + "/"
	if prefix == "//" {
		prefix = "/"
	}
	handler, err := proxy.NewProxyHandler(prefix, filter, restConfig, 0, false)
	if err != nil {
		return err
	}
	listener, err := f.listen(ctx)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle(prefix, handler)
	_, _ = fmt.Fprintf(t.Streams.Out, "Starting to serve on %s\n", listener.Addr())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: proxyHeaders}
	// Watches do not end by themselves, so close all connections without waiting for them.
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	}
	return context.Cause(ctx)
}

func (f *proxyFlags) listen(ctx context.Context) (net.Listener, error) {
	var config net.ListenConfig
	if f.unix == "" {
		l, err := config.Listen(ctx, "tcp", net.JoinHostPort(f.address, strconv.Itoa(f.port)))
		if err != nil {
			return nil, clierror.WithNext(err, "--port chooses another port; 0 means any free port")
		}
		return l, nil
	}
	// Set the umask before creating the socket. With a later change of mode, another user could
	// connect first and stay connected.
	before, err := util.Umask(0o077)
	if err != nil {
		return nil, err
	}
	l, err := config.Listen(ctx, "unix", f.unix)
	_, errBack := util.Umask(before)
	if err != nil {
		return nil, errors.Join(err, errBack)
	}
	return l, nil
}
