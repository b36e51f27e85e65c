package rikctl

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/config"
	"rik.dev/rik/internal/testkit/output"
)

// background is a command that runs until the test interrupts it.
type background struct {
	out, err  *output.Buffer
	ended     chan int
	interrupt context.CancelFunc
}

// start runs a command line in the background. The end of the test interrupts it.
func (m machine) start(t *testing.T, args ...string) *background {
	t.Helper()
	b := &background{out: &output.Buffer{}, err: &output.Buffer{}, ended: make(chan int, 1)}
	source := config.Source{Home: m.home, ReadFile: os.ReadFile, Getenv: func(k string) string { return m.env[k] }}
	ctx, cancel := context.WithCancel(t.Context())
	b.interrupt = cancel
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.ended <- Execute(ctx, args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: b.out, ErrOut: b.err}, source)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return b
}

// says waits until the output matches the pattern and returns the first group.
func (b *background) says(t *testing.T, pattern string) string {
	t.Helper()
	expression := regexp.MustCompile(pattern)
	deadline := time.After(time.Minute)
	for {
		if m := expression.FindStringSubmatch(b.out.String()); m != nil {
			return m[1]
		}
		select {
		case <-deadline:
			t.Fatalf("the output is %q and %q, want %s", b.out, b.err, pattern)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestPortForwardUsage(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, line := range [][]string{
		{"port-forward"}, {"port-forward", "web-1"}, {"port-forward", "web-1", "http"},
		{"port-forward", "web-1", "0:80"}, {"port-forward", "pod/web-1", "80"},
	} {
		m.run(t, line...).check(t, clierror.ExitUsage, "next:")
	}
}

// TestPortForwardRefusals checks that a target that cannot be reached is an error before
// anything listens. Later errors belong to their connection.
func TestPortForwardRefusals(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do(t, "port-forward", "web-1", ":80").check(t, clierror.ExitNotFound, "web-1")
	s.do(t, "port-forward", "workload/web", ":80").check(t, clierror.ExitNotFound, "web")
	s.workload(t, "web", "")
	s.do(t, "port-forward", "workload/web", ":80").check(t, clierror.ExitError, "has no instances", "create instance")
	const name = "web-1"
	s.do(t, "create", "instance", "-w", "web", "--name", name).check(t, clierror.ExitOK)
	s.do(t, "port-forward", name, ":80").check(t, clierror.ExitError, "is Pending, not Running")
	s.runningOn(t, name, s.node(t))

	b := s.start(t, "-n", s.namespace, "port-forward", "workload/web", ":80")
	address := b.says(t, `Forwarding from (127\.0\.0\.1:\d+) -> 80`)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if n, err := conn.Read(make([]byte, 10)); err == nil {
		t.Errorf("a connection to a node that is not there gave %d bytes", n)
	}
	_ = conn.Close()
	deadline := time.After(time.Minute)
	for !strings.Contains(b.err.String(), "not connected to nodes") {
		select {
		case <-deadline:
			t.Fatalf("printed was %q", b.err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	taken := address[strings.LastIndex(address, ":")+1:]
	s.do(t, "port-forward", name, taken+":80").check(t, clierror.ExitError, "in use", "next:")
}

// TestProxy serves the API with the user's credentials, to this machine only.
func TestProxy(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.start(t, "proxy", "--port", "0")
	base := "http://" + b.says(t, `Starting to serve on (127\.0\.0\.1:\d+)`)
	namespace := "/apis/rik.dev/v1alpha1/namespaces/" + s.namespace
	for _, tc := range []struct {
		path, host string
		want       int
	}{
		{namespace + "/workloads", "", http.StatusOK},
		{namespace + "/workloads", "localhost:8001", http.StatusOK},
		{namespace + "/workloads", "evil.example", http.StatusForbidden},
		{namespace + "/workloads", "127.0.0.1.evil.example", http.StatusForbidden},
		{namespace + "/workloads/none", "", http.StatusNotFound},
		{namespace + "/instances/web-1/exec?command=ls&stdout=true", "", http.StatusForbidden},
		{namespace + "/instances/web-1/portforward?port=80", "", http.StatusForbidden},
		// The server treats all these paths the same.
		{namespace + "/instances/web-1/exec/?command=ls&stdout=true", "", http.StatusForbidden},
		{namespace + "/instances/web-1/exec%2f?command=ls&stdout=true", "", http.StatusForbidden},
		{namespace + "/instances/web-1/%65xec?command=ls&stdout=true", "", http.StatusForbidden},
		{namespace + "/instances/web-1//exec/?command=ls&stdout=true", "", http.StatusForbidden},
		{"/%2f" + namespace + "/instances/web-1/exec?command=ls&stdout=true", "", http.StatusForbidden},
		{namespace + "/instances/web-1/portforward/?port=80", "", http.StatusForbidden},
	} {
		if code := status(t, http.DefaultClient, base+tc.path, tc.host); code != tc.want {
			t.Errorf("GET %s as host %q = %d, want %d", tc.path, tc.host, code, tc.want)
		}
	}
}

func status(t *testing.T, c *http.Client, url, host string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	answer, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

func TestProxyOnASocket(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	// The path of a socket must be shorter than 108 bytes.
	dir, err := os.MkdirTemp("/tmp", "rik")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	b := s.start(t, "proxy", "--unix-socket", path, "--api-prefix", "/cluster")
	b.says(t, `Starting to serve on (.*)\n`)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the socket is %v, %v, want it closed to others", info.Mode(), err)
	}
	c := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	t.Cleanup(c.CloseIdleConnections)
	for url, want := range map[string]int{"http://localhost/cluster/version": http.StatusOK, "http://localhost/version": http.StatusNotFound} {
		if code := status(t, c, url, ""); code != want {
			t.Errorf("GET %s = %d, want %d", url, code, want)
		}
	}
}

func TestProxyUsage(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run(t, "proxy", "--accept-hosts", "(").check(t, clierror.ExitUsage, "--accept-hosts")
	m.run(t, "proxy", "--unix-socket", "/x", "--port", "1").check(t, clierror.ExitUsage, "cannot be used with")
	m.run(t, "proxy", "more").check(t, clierror.ExitUsage)
}
