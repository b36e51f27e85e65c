package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedNetwork has a cluster of three machines on one link. The test process is on the
// link but is not a node, so it represents the outside.
func TestPrivilegedNetwork(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{Machines: 3})
	hello := c.Hello()
	applyText(t, c, serving("web", hello, 3, spread, `{name: http, port: 80, targetPort: 8080}, {name: ask, port: 53, targetPort: 5353, protocol: UDP}`))
	waitReady(c, "web")
	nodes := map[string]bool{}
	for _, in := range instancesOf(c, "web") {
		nodes[in.Spec.NodeName] = true
	}
	if len(nodes) != 3 {
		t.Fatalf("the three instances are on %d nodes", len(nodes))
	}

	t.Run("instances reach each other", func(t *testing.T) { reachEachOther(t, c.In(t)) })
	t.Run("names and virtual addresses", func(t *testing.T) { names(t, c.In(t)) })
	t.Run("node ports", func(t *testing.T) { nodePorts(t, c.In(t), hello) })
	t.Run("ports are reserved", func(t *testing.T) { reservedPorts(t, c.In(t), hello) })
	t.Run("no request fails during a rollout", func(t *testing.T) { steadyRollout(t, c.In(t), hello) })
	c.Rikctl("delete", "workload", "web")
}

// TestPrivilegedOffline has one node on a machine without a network. A cluster IP is then
// reachable only through rik's own routes.
func TestPrivilegedOffline(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{})
	applyText(t, c, serving("alone", c.Hello(), 1, "", `{port: 80, targetPort: 8080}, {port: 30080, targetPort: 8080, type: nodePort}`))
	waitReady(c, "alone")
	want := "hello from " + instancesOf(c, "alone")[0].Name
	virtual := c.Rikctl("get", "workload", "alone", "-o", "jsonpath={.status.addresses[0]}")
	for _, url := range []string{"http://" + virtual, "http://127.0.0.1:30080"} {
		c.Eventually(func() error {
			if got, err := fetch(t.Context(), url); err != nil || !strings.Contains(got, want) {
				return fmt.Errorf("%s: %q, %w", url, got, err)
			}
			return nil
		})
	}
	c.Rikctl("delete", "workload", "alone")
}

// spread places one instance on each node.
const spread = `  topologySpread: [{maxSkew: 1, topologyKey: kubernetes.io/hostname}]`

// serving returns a Workload of examples/hello that answers HTTP on 8080 and UDP on 5353.
func serving(name, image string, replicas int, extra, ports string) string {
	return fmt.Sprintf(`apiVersion: rik.dev/v1alpha1
kind: Workload
metadata: {name: %s}
spec:
  deploy: Automatic
  replicas: %d
%s
  containers:
    - name: main
      image: %s
      args: ["-listen", ":8080", "-udp", ":5353"]
      ports: [%s]
      readinessProbe: {http: {port: 8080, path: /}, periodSeconds: 1}
`, name, replicas, extra, image, ports)
}

func applyText(t *testing.T, c *rikcluster.Cluster, manifest string) {
	t.Helper()
	if out := c.RikctlInput(manifest, "apply", "-f", "-"); out.Err != nil {
		t.Fatal(out.Err)
	}
}

// reachEachOther sends requests from every instance to every other one, at its own address.
func reachEachOther(t *testing.T, c *rikcluster.Cluster) {
	for _, server := range instancesOf(c, "web") {
		if server.Status.Address == "" || strings.HasPrefix(server.Status.Address, "10.99.") {
			t.Fatalf("%s has the address %q", server.Name, server.Status.Address)
		}
		for _, client := range instancesOf(c, "web") {
			c.Eventually(func() error {
				out := c.TryRikctl("exec", client.Name, "--", "/hello", "-get", "http://"+server.Status.Address+":8080")
				if want := "hello from " + server.Name; out.Err != nil || !strings.Contains(out.Stdout, want) {
					return fmt.Errorf("from %s: %q (%w), want %q", client.Spec.NodeName, out.Stdout, out.Err, want)
				}
				return nil
			})
		}
		// A node also reaches the instances of other nodes.
		out := c.Machine(1).Run(c.HelloProgram(), "-get", "http://"+server.Status.Address+":8080")
		if !strings.Contains(out.Stdout, "hello from "+server.Name) {
			t.Errorf("from the node itself: %q (%v)", out.Stdout, out.Err)
		}
	}
}

// names sends requests by name and by cluster IP, and expects that every instance gets some.
func names(t *testing.T, c *rikcluster.Cluster) {
	client := instancesOf(c, "web")[0].Name
	for _, url := range []string{
		"http://web.default.rik.local/", "http://web/", "http://" + c.Rikctl("get", "workload", "web", "-o", "jsonpath={.status.addresses[0]}") + "/",
	} {
		seen := map[string]bool{}
		c.Eventually(func() error {
			out := c.TryRikctl("exec", client, "--", "/hello", "-get", url)
			if out.Err != nil {
				return out.Err
			}
			if seen[strings.TrimSpace(out.Stdout)] = true; len(seen) != 3 {
				return fmt.Errorf("%s was answered by %v, want three instances", url, seen)
			}
			return nil
		})
	}
	out := c.TryRikctl("exec", client, "--", "/hello", "-get", "http://nobody.default.rik.local")
	if out.Err == nil || !strings.Contains(out.Stderr, "no such host") {
		t.Errorf("an unknown name: %d %s%s", out.Code, out.Stdout, out.Stderr)
	}
	// Names are answered while no server runs.
	c.Process("server").Stop()
	c.Restart("server")
	c.AwaitNodes(3)
}

// nodePorts sends requests to one instance over TCP and UDP through nodes that do not have it.
func nodePorts(t *testing.T, c *rikcluster.Cluster, hello string) {
	applyText(t, c, serving("door", hello, 1, "", `{name: http, port: 30080, targetPort: 8080, type: nodePort}, {name: ask, port: 30053, targetPort: 5353, protocol: UDP, type: nodePort}`))
	waitReady(c, "door")
	in := instancesOf(c, "door")[0]
	want := "hello from " + in.Name
	for n := 1; n <= 3; n++ {
		host := c.Machine(n).Address
		c.Eventually(func() error {
			if got, err := fetch(t.Context(), "http://"+net.JoinHostPort(host, "30080")); err != nil || !strings.Contains(got, want) {
				return fmt.Errorf("TCP through node %d: %q, %w", n, got, err)
			}
			if got, err := ask(net.JoinHostPort(host, "30053")); err != nil || !strings.Contains(got, want) {
				return fmt.Errorf("UDP through node %d: %q, %w", n, got, err)
			}
			return nil
		})
		for _, to := range []string{host, "127.0.0.1"} {
			out := c.Machine(n).Run(c.HelloProgram(), "-get", "http://"+to+":30080")
			if !strings.Contains(out.Stdout, want) {
				t.Errorf("a process on node %d at %s: %q (%v)", n, to, out.Stdout, out.Err)
			}
		}
	}
	c.Rikctl("delete", "workload", "door")
	c.Eventually(func() error {
		if got, err := fetch(t.Context(), "http://"+net.JoinHostPort(c.Machine(2).Address, "30080")); err == nil {
			return fmt.Errorf("the port of a deleted workload answers %q", got)
		}
		return nil
	})
}

// reservedPorts requests ports that are in use.
func reservedPorts(t *testing.T, c *rikcluster.Cluster, hello string) {
	applyText(t, c, serving("first", hello, 1, "", `{port: 30090, targetPort: 8080, type: nodePort}`))
	waitReady(c, "first")
	applyText(t, c, serving("second", hello, 1, "", `{port: 30090, targetPort: 8080, type: nodePort}`))
	c.Eventually(func() error {
		for _, in := range instancesOf(c, "second") {
			if in.Spec.NodeName != "" {
				t.Fatalf("%s was placed on %s with the other owner of its port", in.Name, in.Spec.NodeName)
			}
			if in.Status.Reason == "HostPortTaken" && strings.Contains(in.Status.Message, "port") {
				return nil
			}
		}
		return errors.New("nothing says that the port is taken")
	})
	c.Rikctl("delete", "workload", "first")
	waitReady(c, "second")
	c.Rikctl("delete", "workload", "second")
}

// steadyRollout sends requests without a pause during two rollouts.
func steadyRollout(t *testing.T, c *rikcluster.Cluster, hello string) {
	manifest := serving("steady", hello, 3, spread+"\n  strategy: {type: RollingUpdate, maxUnavailable: 0, maxSurge: 1}",
		`{name: http, port: 30070, targetPort: 8080, type: nodePort}`)
	applyText(t, c, manifest)
	waitReady(c, "steady")
	url := "http://" + net.JoinHostPort(c.Machine(3).Address, "30070")
	c.Eventually(func() error { _, err := fetch(t.Context(), url); return err })

	load := startLoad(t, url)
	for _, change := range []string{"one", "two"} {
		applyText(t, c, strings.Replace(manifest, "name: main", "name: main\n      env: [{name: CHANGE, value: "+change+"}]", 1))
		c.Rikctl("rollout", "status", "workload/steady", "--timeout=120s")
	}
	asked, failed := load.stop()
	t.Logf("%d requests, %d failed", asked, len(failed))
	if asked < 100 {
		t.Errorf("only %d requests were made", asked)
	}
	for _, err := range failed[:min(len(failed), 5)] {
		t.Errorf("a request failed: %v", err)
	}
	c.Rikctl("delete", "workload", "steady")
}

// load sends requests, each over a new connection, until it is stopped.
type load struct {
	end    context.CancelFunc
	done   sync.WaitGroup
	asked  atomic.Int64
	mu     sync.Mutex
	failed []error
}

func startLoad(t *testing.T, url string) *load {
	ctx, end := context.WithCancel(context.Background())
	l := &load{end: end}
	t.Cleanup(func() { l.stop() })
	for range 4 {
		l.done.Go(func() {
			for ctx.Err() == nil {
				_, err := fetch(ctx, url)
				if ctx.Err() != nil {
					return
				}
				l.asked.Add(1)
				if err != nil {
					l.mu.Lock()
					l.failed = append(l.failed, err)
					l.mu.Unlock()
				}
				// A steady rate, below the maximum of two cores.
				pause(ctx, 5*time.Millisecond)
			}
		})
	}
	return l
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (l *load) stop() (asked int64, failed []error) {
	l.end()
	l.done.Wait()
	return l.asked.Load(), l.failed
}

// fetch gets a page over a new connection.
func fetch(ctx context.Context, url string) (string, error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, response.Status)
	}
	return string(body), err
}

// ask sends a datagram and returns the answer.
func ask(address string) (string, error) {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("who?")); err != nil {
		return "", err
	}
	answer := make([]byte, 1500)
	n, err := conn.Read(answer)
	return string(answer[:n]), err
}
