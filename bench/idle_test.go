package bench

import (
	"context"
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/rikcluster"
)

const (
	// starts is how often each program is started; the median counts.
	starts = 5
	// atRest is how long a program is idle before its memory is measured.
	atRest = 20 * time.Second
)

// BenchmarkIdle measures the resources of a cluster without work, and its time to ready. It
// compares them with the floor: the same control plane without rik's code.
func BenchmarkIdle(b *testing.B) {
	begin(b)
	for range b.N {
		floorReady, floorMemory := idleFloor(b)
		report(b, "floor", floorReady, floorMemory)
		planeReady, planeMemory := idlePlane(b)
		report(b, "plane", planeReady, planeMemory)
		serverReady, serverMemory := idleServer(b)
		report(b, "server", serverReady, serverMemory)
		b.ReportMetric(serverMemory.resident-floorMemory.resident, "server-over-floor-MiB")
		b.ReportMetric(milliseconds(serverReady-floorReady), "server-over-floor-ms")
		idleSplit(b)
	}
	b.Logf("load at the end: %s", load())
}

func report(b *testing.B, name string, ready time.Duration, p process) {
	b.Helper()
	b.ReportMetric(milliseconds(ready), name+"-ready-ms")
	b.ReportMetric(p.resident, name+"-rss-MiB")
	b.Logf("%s: ready after %v, %.1f MiB resident, %.1f MiB proportional, %.1f MiB at most", name, ready.Round(time.Millisecond), p.resident, p.proportional, p.peak)
}

// idleFloor measures bench/floor: the median start on empty data, and the memory.
func idleFloor(b *testing.B) (time.Duration, process) {
	b.Helper()
	var ready []time.Duration
	for {
		dir, err := os.MkdirTemp("/var/tmp", "rik-e2e-floor-")
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = os.RemoveAll(dir) })
		began := time.Now()
		pid, stop := start(b, filepath.Join(dir, "log"), filepath.Join(rikcluster.Bin(b), "floor"), "--data-dir", dir)
		ready = append(ready, awaitReady(b, "floor").Sub(began))
		if len(ready) == starts {
			settle(atRest)
			p := read(b, pid)
			stop()
			return percentile(ready, 50), p
		}
		stop()
	}
}

// idlePlane measures a server without a node.
func idlePlane(b *testing.B) (time.Duration, process) {
	b.Helper()
	c := rikcluster.Start(b, rikcluster.Options{NoAgent: true})
	cold := restarts(b, c, true, func() time.Time { return awaitReady(b, "") })
	settle(atRest)
	p := read(b, c.Process("server").PID())
	c.Process("server").Stop()
	return cold, p
}

// idleServer measures a complete server. It also measures the time until its node is ready, and
// the time of a restart.
func idleServer(b *testing.B) (time.Duration, process) {
	b.Helper()
	c := rikcluster.Start(b, rikcluster.Options{})
	cold := restarts(b, c, true, func() time.Time { return awaitReady(b, "") })
	b.ReportMetric(milliseconds(restarts(b, c, true, func() time.Time { return awaitNode(b, c) })), "node-ready-ms")
	b.ReportMetric(milliseconds(restarts(b, c, false, func() time.Time { return awaitReady(b, "") })), "server-restart-ms")
	settle(atRest)
	p := read(b, c.Process("server").PID())
	c.Process("server").Stop()
	return cold, p
}

// idleSplit measures a node in a separate process, and the supervisor of a Pod on it.
func idleSplit(b *testing.B) {
	b.Helper()
	c := rikcluster.Start(b, rikcluster.Options{Split: true})
	settle(atRest)
	for _, name := range []string{"controller", "scheduler", "riklet"} {
		p := read(b, c.Process(name).PID())
		b.ReportMetric(p.resident, name+"-rss-MiB")
		b.Logf("%s alone: %.1f MiB resident, %.1f MiB proportional", name, p.resident, p.proportional)
	}
	s := newSubmitter(b, c)
	s.start("supervised")
	settle(time.Second)
	shims := supervisors(c)
	if len(shims) != 1 {
		b.Fatalf("one Pod runs and %d supervisors do", len(shims))
	}
	p := read(b, shims[0])
	b.ReportMetric(p.resident, "shim-rss-MiB")
	b.Logf("supervisor of a Pod: %.1f MiB resident, %.1f MiB proportional", p.resident, p.proportional)
	p = read(b, c.Process("riklet").PID())
	b.ReportMetric(p.resident, "riklet-one-pod-rss-MiB")
	s.remove("supervised")
	for _, name := range []string{"riklet", "controller", "scheduler"} {
		c.Process(name).Stop()
	}
}

// supervisors returns the rik-shim processes of the cluster. Their command lines contain
// cgroups, which are named after its directory.
func supervisors(c *rikcluster.Cluster) []int {
	var found []int
	for pid := range rikcluster.Processes(filepath.Base(c.Dir)) {
		exe, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
		if filepath.Base(exe) == "rik-shim" {
			found = append(found, pid)
		}
	}
	return found
}

// restarts measures the median time from the start of the server to the time that await returns.
// With cold, the data is removed before each start.
func restarts(b *testing.B, c *rikcluster.Cluster, cold bool, await func() time.Time) time.Duration {
	b.Helper()
	var took []time.Duration
	for range starts {
		c.Process("server").Stop()
		if cold {
			c.Empty()
		}
		began := time.Now()
		c.Restart("server")
		took = append(took, await().Sub(began))
	}
	return percentile(took, 50)
}

// awaitReady polls /readyz until it reports ready, and returns that time.
func awaitReady(b *testing.B, token string) time.Time {
	b.Helper()
	return poll(b, often, "/readyz to say yes", func() bool { return isReady(b, "https://127.0.0.1:5000/readyz", token) })
}

// isReady reports whether a server is ready, over a new connection.
func isReady(b *testing.B, url, token string) bool {
	b.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	asking := &http.Client{Transport: transport, Timeout: time.Second}
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		b.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := asking.Do(request)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// awaitNode waits until the server answers and its node is ready.
func awaitNode(b *testing.B, c *rikcluster.Cluster) time.Time {
	b.Helper()
	awaitReady(b, "")
	api := dial(b, c)
	return poll(b, often, "a ready node", func() bool { return readyNodes(b.Context(), api) == 1 })
}

// readyNodes returns the number of ready nodes; 0 if they cannot be read.
func readyNodes(ctx context.Context, api client.Client) int {
	var nodes rikv1alpha1.NodeList
	if err := api.List(ctx, &nodes); err != nil {
		return 0
	}
	ready := 0
	for i := range nodes.Items {
		for _, condition := range nodes.Items[i].Status.Conditions {
			if condition.Type == rikv1alpha1.NodeReady && condition.Status == "True" {
				ready++
			}
		}
	}
	return ready
}

// often is the polling interval for short times. A shorter one would use too much CPU time.
const often = 10 * time.Millisecond

// poll calls done until it returns true, and returns that time.
func poll(b *testing.B, interval time.Duration, what string, done func() bool) time.Time {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), timeout)
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			b.Fatalf("still waiting for %s", what)
		case <-tick.C:
		}
	}
	return time.Now()
}
