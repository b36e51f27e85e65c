package app

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"rik.dev/rik/internal/demo"
	"rik.dev/rik/internal/rikctl/waiting"
)

// newDemonstration returns the default flags of rik demo, with flags of the server.
func newDemonstration(t *testing.T, server ...string) *demonstration {
	t.Helper()
	d := &demonstration{server: newFlags(), given: server, out: io.Discard, service: func(context.Context) bool { return false }}
	d.line = waiting.Begin(t.Context(), io.Discard, waiting.Options{Quiet: true})
	d.addFlags(pflag.NewFlagSet("demo", pflag.ContinueOnError))
	if err := d.parseServer(server); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDemoUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"x"}, {"x", "--", "--port", "1"}, {"-o", "yaml"}, {"--replicas", "0"}} {
		c := demoCommand()
		c.SetArgs(args)
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.ExecuteContext(t.Context()); !errors.Is(err, errUsage) {
			t.Errorf("rik demo %v = %v, want %v", args, err, errUsage)
		}
	}
	for _, flags := range [][]string{{"--no-such-flag"}, {"server"}} {
		d := &demonstration{server: newFlags()}
		if err := d.parseServer(flags); !errors.Is(err, errUsage) || !strings.Contains(err.Error(), "flags of the server") {
			t.Errorf("rik demo -- %v = %v, want %v", flags, err, errUsage)
		}
	}
	d := newDemonstration(t)
	if err := d.configure(nil); err == nil || !strings.Contains(err.Error(), "sudo rik demo") {
		t.Errorf("rik demo without root = %v", err)
	}
}

func TestDemoServerFlags(t *testing.T) {
	t.Parallel()
	d := newDemonstration(t, "--data-dir", "/srv/rik", "--node-name", "n1")
	if d.configFile() != "/srv/rik/config.yaml" || d.machine().NodeName != "n1" || d.server.log.Level != "error" {
		t.Errorf("the configuration is %s, the node %q, the log level %s", d.configFile(), d.machine().NodeName, d.server.log.Level)
	}
	if d := newDemonstration(t, "--log-level", "debug"); d.server.log.Level != "debug" {
		t.Errorf("the log level is %s, want that of the user", d.server.log.Level)
	}
}

func TestDemoNextSteps(t *testing.T) {
	t.Parallel()
	r := demo.Result{URL: "http://127.0.0.1:30080/", Workload: "hello", Answer: "hello from hello-1"}
	plain, own := newDemonstration(t), newDemonstration(t, "--data-dir", "/srv/rik")
	plain.found, plain.sudo = true, "sudo "
	for _, tc := range []struct {
		d         *demonstration
		says, not []string
	}{
		{plain, []string{
			"answers at http://127.0.0.1:30080/, after 9.7 s: hello from hello-1\n", "  curl http://127.0.0.1:30080/ ", "  sudo rikctl get instances ",
			"  sudo rikctl logs workload/hello ", "  sudo rikctl scale workload hello --replicas=3 ", "  sudo rik demo --down ",
		}, []string{"Ctrl-C", "--config", "--data-dir"}},
		{own, []string{
			"  rikctl --config /srv/rik/config.yaml get instances ", "  rik demo --down -- --data-dir /srv/rik ", "Ctrl-C stops it, and the application keeps running", "rik purge",
		}, []string{"sudo"}},
	} {
		text := tc.d.nextSteps(r, 9700*time.Millisecond)
		for _, want := range tc.says {
			if !strings.Contains(text, want) {
				t.Errorf("the next steps do not say %q:\n%s", want, text)
			}
		}
		for _, not := range tc.not {
			if strings.Contains(text, not) {
				t.Errorf("the next steps say %q:\n%s", not, text)
			}
		}
	}
}

// TestDemoFindsNoServer: without a configuration, and with the configuration of a server that does
// not run, there is no server. Another mistake is not the lack of a server.
func TestDemoFindsNoServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newDemonstration(t, "--data-dir", dir)
	if _, err := d.connect(t.Context()); !errors.Is(err, errNoServer) || d.hasCluster() {
		t.Errorf("connect() without a configuration = %v, want %v", err, errNoServer)
	}
	// Nothing listens on a port that was just closed.
	socket, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := socket.Close(); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("cluster: {name: a, server: \"http://" + socket.Addr().String() + "\"}\n")
	if _, err := d.connect(t.Context()); !errors.Is(err, errNoServer) || !d.hasCluster() {
		t.Errorf("connect() to a server that does not run = %v, want %v", err, errNoServer)
	}
	write("cluster: [\n")
	if _, err := d.connect(t.Context()); err == nil || errors.Is(err, errNoServer) {
		t.Errorf("connect() with a broken configuration = %v, want another error than %v", err, errNoServer)
	}
	// A service that starts and never answers is an error with the next step.
	write("cluster: {name: a, server: \"http://" + socket.Addr().String() + "\"}\n")
	d.service, d.demo.Timeout = func(context.Context) bool { return true }, 0
	if err := d.run(t.Context()); !errors.Is(err, errNoServer) || !strings.Contains(err.Error(), "journalctl -u rik") {
		t.Errorf("run() with a service that does not answer = %v", err)
	}
}

// TestDemoDownWithoutACluster: it starts no server, because that would create a cluster.
func TestDemoDownWithoutACluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newDemonstration(t, "--data-dir", filepath.Join(dir, "data"))
	var out strings.Builder
	d.out, d.down, d.demo.ImageDir = &out, true, filepath.Join(dir, "images")
	if err := d.run(t.Context()); err != nil || !strings.Contains(out.String(), "nothing was removed") {
		t.Errorf("rik demo --down = %v, and says %q", err, out.String())
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("it left %v, %v", entries, err)
	}
}
