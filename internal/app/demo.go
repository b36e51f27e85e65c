package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/listener"
	"rik.dev/rik/internal/demo"
	"rik.dev/rik/internal/install"
	"rik.dev/rik/internal/install/layout"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/rikctl/config"
	"rik.dev/rik/internal/rikctl/waiting"
	"rik.dev/rik/internal/riklet/identity"
)

const (
	// demoProgram is the sample program, next to this program.
	demoProgram = "hello"
	// demoPoll is the time between two looks at a server that is starting.
	demoPoll = 100 * time.Millisecond
	// demoProbe limits one look at a server.
	demoProbe = 2 * time.Second
)

// errNoServer means that no server answers with the credentials in the data directory.
var errNoServer = errors.New("no server runs on this machine")

// demonstration holds the flags of rik demo, and what it learns.
type demonstration struct {
	demo   demo.Demo
	down   bool
	output string
	// server has the flags of the server that the demo uses or starts, and given those that the
	// user gave.
	server flags
	given  []string
	// found is true for a server that the demo did not start.
	found bool
	// service reports whether systemd runs the server.
	service func(context.Context) bool
	// sudo is "sudo " if the user called sudo.
	sudo string
	root bool
	out  io.Writer
	// line shows on a terminal that a removal starts a server. Then there may be nothing to remove.
	line *waiting.Line
}

func demoCommand() *cobra.Command {
	d := demonstration{server: newFlags(), root: os.Geteuid() == 0, service: func(context.Context) bool { return false }}
	c := &cobra.Command{
		Use:   "demo [flags] [-- FLAGS OF THE SERVER]",
		Short: "Run a sample application and print its address; start a server if none runs here",
		Long: "Run a sample application and print its address. If a server runs on this machine, the demo\n" +
			"uses it. Otherwise it starts one in the foreground, like \"rik server\": Ctrl-C stops the server,\n" +
			"and the application keeps running. \"rik demo --down\" removes the application.",
		Example: "  rik demo\n  rik demo --port 30090 -o json\n  rik demo -- --data-dir /srv/rik\n  rik demo --down",
		RunE: func(c *cobra.Command, args []string) error {
			if at := c.ArgsLenAtDash(); at > 0 || at < 0 && len(args) > 0 {
				return fmt.Errorf("%w: unexpected argument %q; flags of the server follow --", errUsage, args[0])
			}
			d.out = c.OutOrStdout()
			if err := d.configure(args); err != nil {
				return err
			}
			return d.run(c.Context())
		},
	}
	d.addFlags(c.Flags())
	return c
}

func (d *demonstration) addFlags(s *pflag.FlagSet) {
	s.BoolVar(&d.down, "down", false, "remove the application and its image")
	s.StringVar(&d.demo.Name, "name", "hello", "name of the workload")
	s.Int32Var(&d.demo.Port, "port", 30080, "port of this machine at which the application answers")
	s.Int32Var(&d.demo.Replicas, "replicas", 2, "number of instances of a new workload")
	s.StringVar(&d.demo.ImageDir, "image-dir", layout.ImageDir, "directory for the image of the application")
	s.DurationVar(&d.demo.Timeout, "timeout", 2*time.Minute, "maximum time to wait for the server, for the node, and for the application")
	s.StringVarP(&d.output, "output", "o", "", "output format: json prints the address and the names for scripts")
}

// configure checks the flags and completes the settings.
func (d *demonstration) configure(serverFlags []string) error {
	if d.output != "" && d.output != "json" {
		return fmt.Errorf("%w: -o %q: use json", errUsage, d.output)
	}
	if d.demo.Replicas < 1 {
		return fmt.Errorf("%w: --replicas %d: use 1 or more", errUsage, d.demo.Replicas)
	}
	if !d.root {
		return errors.New("only root can run containers: use sudo rik demo")
	}
	d.given = serverFlags
	if len(serverFlags) == 0 {
		var err error
		if serverFlags, err = install.FlagsOf("/", layout.Server); err != nil {
			return err
		}
		d.service = func(ctx context.Context) bool { return install.Systemd{}.Starts(ctx, layout.UnitName(layout.Server)) }
	}
	if err := d.parseServer(serverFlags); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	d.demo.Program = filepath.Join(filepath.Dir(self), demoProgram)
	if user := os.Getenv("SUDO_USER"); user != "" && user != "root" {
		d.sudo = "sudo "
	}
	d.demo.Say = d.say
	d.line = waiting.Begin(context.Background(), io.Discard, waiting.Options{Quiet: true})
	d.demo.CheckPort = checkPort
	return nil
}

// parseServer parses the flags of the server.
func (d *demonstration) parseServer(args []string) error {
	set := pflag.NewFlagSet("server", pflag.ContinueOnError)
	d.server.server(set)
	if err := set.Parse(args); err != nil {
		return fmt.Errorf("%w: flags of the server: %w", errUsage, err)
	}
	if set.NArg() > 0 {
		return fmt.Errorf("%w: flags of the server: unexpected argument %q", errUsage, set.Arg(0))
	}
	if !set.Changed("log-level") {
		// The steps of the demo are on the same terminal.
		d.server.log.Level = "error"
	}
	return nil
}

// say prints a step. With JSON on the standard output, steps are on the standard error.
func (d *demonstration) say(text string) {
	out := d.out
	if d.output != "" {
		out = os.Stderr
	}
	fmt.Fprintln(out, "-", text)
}

// checkPort returns an error that names the process that uses a port.
func checkPort(ctx context.Context, port int32) error {
	socket, err := listener.Listen(ctx, "", int(port), "--port")
	if err != nil {
		return err
	}
	return socket.Close()
}

// run uses the server of this machine, or starts one.
func (d *demonstration) run(ctx context.Context) error {
	began := time.Now()
	cluster, err := d.connect(ctx)
	if errors.Is(err, errNoServer) && d.service(ctx) {
		d.say("waiting for the service " + layout.UnitName(layout.Server))
		if cluster, err = d.await(ctx); errors.Is(err, errNoServer) {
			return fmt.Errorf("%w; see: journalctl -u %s -n 50", err, layout.UnitName(layout.Server))
		}
	}
	switch {
	case err == nil:
		d.found = true
		if !d.down {
			d.say("using the server of this machine")
		}
		return d.act(ctx, cluster, began)
	case !errors.Is(err, errNoServer):
		return err
	case d.down && !d.hasCluster():
		// No cluster, no application.
		return d.removeImage()
	}
	return d.withServer(ctx, began)
}

// hasCluster reports whether a server has ever run in the data directory.
func (d *demonstration) hasCluster() bool {
	_, err := os.Stat(d.configFile())
	return !errors.Is(err, fs.ErrNotExist)
}

func (d *demonstration) configFile() string {
	return filepath.Join(d.server.control.DataDir, apiserver.RIKConfigFile)
}

// act does the work on a cluster.
func (d *demonstration) act(ctx context.Context, cluster client.Client, began time.Time) error {
	d.demo.Client, d.demo.Machine = cluster, d.machine()
	if d.down {
		exists, err := d.demo.Exists(ctx)
		if err != nil {
			return err
		}
		if !exists {
			return d.removeImage()
		}
		d.line.End() // it has steps to say
		if !d.found && !d.server.noAgent {
			// The node stops the instances. If it is not ready in time, Down says what is left.
			if _, err := d.demo.AwaitNode(ctx); err != nil && !errors.Is(err, demo.ErrNoNode) {
				return err
			}
		}
		if err := d.demo.Down(ctx); err != nil {
			return err
		}
		return d.report(true)
	}
	result, err := d.demo.Up(ctx)
	if err != nil {
		return err
	}
	return d.reportUp(result, time.Since(began))
}

// machine identifies this machine.
func (d *demonstration) machine() demo.Machine {
	m := demo.Machine{NodeName: d.server.node.NodeName}
	if m.NodeName == "" {
		if host, err := os.Hostname(); err == nil {
			m.NodeName = nodestate.NodeName(host)
		}
	}
	// Without an ID, the name of the node must match.
	if id, err := (identity.Source{}).MachineID(d.server.node.StateDir); err == nil {
		m.ID = id
	}
	return m
}

// withServer runs a server in this process while it works. After Up the server continues until the
// user stops it. After Down it ends.
func (d *demonstration) withServer(ctx context.Context, began time.Time) error {
	if err := ownedByRoot(d.server.control.DataDir); err != nil {
		return err
	}
	log, err := d.server.log.Logger(os.Stderr)
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	d.line = waiting.Begin(ctx, os.Stderr, waiting.Options{Quiet: !d.down || !waiting.IsTerminal(os.Stderr)})
	defer d.line.End()
	const starting = "starting a server, because none runs on this machine"
	if d.down {
		d.line.Set(waiting.State{What: starting})
	} else {
		d.say(starting)
	}
	group, groupContext := errgroup.WithContext(ctx)
	serving, stop := context.WithCancel(groupContext)
	group.Go(func() error { return d.serve(serving, log) })
	group.Go(func() error {
		defer stop()
		cluster, err := d.await(serving)
		if err != nil {
			return err
		}
		if err := d.act(serving, cluster, began); err != nil || d.down {
			return err
		}
		<-serving.Done()
		return nil
	})
	if err := group.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	if !d.down {
		d.say("the server has stopped; its instances keep running")
		d.say("\"rik demo\" continues, \"rik demo --down\" removes the application, and \"rik purge\" all instances")
	}
	return nil
}

// serve runs the server. It is an error if the server ends by itself.
func (d *demonstration) serve(ctx context.Context, log *slog.Logger) error {
	err := runServer(ctx, &d.server, log)
	switch {
	case ctx.Err() != nil:
		// A server that is stopped while it starts reports what it could not finish.
		if err != nil {
			log.Warn("stopping the server", "err", err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("running the server: %w", err)
	}
	return errors.New("the server ended")
}

// ownedByRoot returns an error if the data belongs to another user, as that of a service without a
// node does. A server of root would write files there that the service cannot read.
func ownedByRoot(dir string) error {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for the cluster's data: %w", err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 {
		return fmt.Errorf("%w, and its data in %s belongs to the user with the ID %d: start it first: systemctl start %s", errNoServer, dir, stat.Uid, layout.UnitName(layout.Server))
	}
	return nil
}

// await waits for a server that is starting.
func (d *demonstration) await(ctx context.Context) (client.Client, error) {
	limit := time.Now().Add(d.demo.Timeout)
	for {
		cluster, err := d.connect(ctx)
		switch {
		case err == nil:
			return cluster, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case time.Now().After(limit):
			return nil, fmt.Errorf("%w after %s", err, d.demo.Timeout)
		}
		pause.For(ctx, demoPoll)
	}
}

// connect returns a client of the server whose data directory this is. The error is errNoServer if
// it does not answer.
func (d *demonstration) connect(ctx context.Context) (client.Client, error) {
	source := config.Source{Flag: d.configFile(), Getenv: func(string) string { return "" }, ReadFile: os.ReadFile}
	found, err := config.Find(source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s does not exist", errNoServer, d.configFile())
	}
	if err != nil {
		return nil, err
	}
	settings, err := clientcmd.NewDefaultClientConfig(*found.Client, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", d.configFile(), err)
	}
	if err := answers(ctx, settings); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoServer, err)
	}
	scheme := runtime.NewScheme()
	if err := rikv1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	settings.QPS = -1
	return client.New(settings, client.Options{Scheme: scheme})
}

// answers returns nil if a server is ready.
func answers(ctx context.Context, settings *rest.Config) error {
	ctx, cancel := context.WithTimeout(ctx, demoProbe)
	defer cancel()
	caller, err := rest.HTTPClientFor(settings)
	if err != nil {
		return err
	}
	defer caller.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(settings.Host, "/")+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := caller.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers with the status %s", request.URL, response.Status)
	}
	return nil
}

// removeImage ends a removal on a cluster without the application.
func (d *demonstration) removeImage() error {
	removed, err := d.demo.RemoveImage()
	if err != nil {
		return err
	}
	return d.report(removed)
}

// report prints the end of a removal.
func (d *demonstration) report(removed bool) error {
	d.line.End()
	switch {
	case d.output != "":
		return json.NewEncoder(d.out).Encode(map[string]any{"workload": d.demo.Name, "removed": removed})
	case removed:
		d.say("the demo is removed")
	default:
		d.say(fmt.Sprintf("there is no demo with the name %q on this machine, so nothing was removed", d.demo.Name))
	}
	return nil
}

// reportUp prints the address of the application and what to do with it.
func (d *demonstration) reportUp(r demo.Result, took time.Duration) error {
	if d.output != "" {
		return json.NewEncoder(d.out).Encode(struct {
			demo.Result
			Config string `json:"config"`
			// Foreground is true if the server ends with this command.
			Foreground bool `json:"foreground"`
		}{r, d.configFile(), !d.found})
	}
	_, err := io.WriteString(d.out, d.nextSteps(r, took))
	return err
}

// nextSteps says what the user can do with the application.
func (d *demonstration) nextSteps(r demo.Result, took time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nThe application answers at %s, after %.1f s: %s\n\n", r.URL, took.Seconds(), r.Answer)
	rikctl := d.sudo + "rikctl "
	if filepath.Clean(d.server.control.DataDir) != config.DefaultData {
		rikctl += "--config " + d.configFile() + " "
	}
	for _, line := range [][2]string{
		{"curl " + r.URL, "each instance answers with its name"},
		{rikctl + "get instances", "what runs"},
		{rikctl + "logs workload/" + r.Workload, "what it printed"},
		{rikctl + "scale workload " + r.Workload + " --replicas=3", "more instances"},
		{d.sudo + "rik demo --down" + d.flagsAgain() + d.afterDash(), "remove the application"},
	} {
		fmt.Fprintf(&b, "  %-50s # %s\n", line[0], line[1])
	}
	if !d.found {
		b.WriteString("\nThe server runs in this terminal. Ctrl-C stops it, and the application keeps running.\n" +
			"\"rik purge\" then stops all instances and removes the node's files.\n")
	}
	return b.String()
}

// flagsAgain returns the flags that a removal needs too.
func (d *demonstration) flagsAgain() string {
	text := ""
	if d.demo.Name != "hello" {
		text += " --name " + d.demo.Name
	}
	if d.demo.ImageDir != layout.ImageDir {
		text += " --image-dir " + d.demo.ImageDir
	}
	return text
}

// afterDash returns the flags with which a removal finds the server, or starts it again.
func (d *demonstration) afterDash() string {
	if len(d.given) == 0 {
		return ""
	}
	return " -- " + strings.Join(d.given, " ")
}
