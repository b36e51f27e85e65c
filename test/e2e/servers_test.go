package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/servers"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedServers runs three servers and a node, each in its own network namespace. It kills the
// first server: writes, placement and the running instance go on. The first returns, another one is
// removed, and is added again with empty data.
func TestPrivilegedServers(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{Machines: 1, Args: []string{"--server-name", "s1"}})
	busybox := c.Busybox()
	applyText(t, c, rikcluster.Manifest("before", busybox, "exec sleep 86400", "  deploy: Automatic\n  replicas: 1\n"))
	waitReady(c, "before")
	running := c.InstanceProcesses("sleep")

	token := filepath.Join(c.Dir, "server-token")
	if err := os.WriteFile(token, []byte(c.Rikctl("token", "create", "--server", "--ttl", "1h")), 0o600); err != nil {
		t.Fatal(err)
	}
	nodeTokenAddsNoServer(t, c)
	s2, s3 := c.AddServer("s2"), c.AddServer("s3")
	s2.Start("--join", "https://"+rikcluster.ServerAddress+":5000", "--token-file", token)
	awaitServers(c, c.TryRikctl, "s1", "s2")
	s3.Start("--join", s2.URL(), "--token-file", token)
	awaitServers(c, c.TryRikctl, "s1", "s2", "s3")
	nodeKnows(c, 3)

	write := filepath.Join(c.Dir, "write.yaml")
	if err := os.WriteFile(write, []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: after}, data: {a: b}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Process("server").Kill()
	killed := time.Now()
	c.Eventually(func() error { return s3.TryRikctl("apply", "-f", write).Err })
	t.Logf("a write succeeded %v after the loss of the first server", time.Since(killed).Round(100*time.Millisecond))
	manifest := filepath.Join(c.Dir, "after.yaml")
	if err := os.WriteFile(manifest, []byte(rikcluster.Manifest("after", busybox, "exec sleep 86401", "  deploy: Automatic\n  replicas: 1\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	s2.Rikctl("apply", "-f", manifest)
	c.Eventually(func() error {
		var list rikv1alpha1.InstanceList
		if err := json.Unmarshal([]byte(s2.Rikctl("get", "instances", "-l", "rik.dev/workload=after", "-o", "json")), &list); err != nil {
			return err
		}
		if len(list.Items) != 1 || list.Items[0].Status.Phase != rikv1alpha1.InstanceRunning {
			return fmt.Errorf("the instances after the loss: %+v", list.Items)
		}
		return nil
	})
	t.Logf("the next instance ran %v after the loss of the first server", time.Since(killed).Round(100*time.Millisecond))
	unchanged(t, c, running)

	c.Restart("server")
	awaitServers(c, s2.TryRikctl, "s1", "s2", "s3")
	if out := c.Rikctl("get", "configmap", "after", "-o", "jsonpath={.data.a}"); out != "b" {
		t.Errorf("the first server has %q after its return", out)
	}

	removedServerReturns(t, c, s3, token)
	unchanged(t, c, running)
}

// nodeTokenAddsNoServer refuses the token of a node, which gives no keys.
func nodeTokenAddsNoServer(t *testing.T, c *rikcluster.Cluster) {
	t.Helper()
	dir := filepath.Join(c.Dir, "refused")
	out := c.Rik("server", "--no-agent", "--data-dir", dir, "--server-name", "refused", "--join", "https://"+rikcluster.ServerAddress+":5000", "--token-file", c.TokenFile())
	if out.Err == nil || !strings.Contains(out.Stderr, "rikctl token create --server") {
		t.Errorf("joining with the token of a node ended with %v", out.Err)
	}
	if _, err := os.Stat(filepath.Join(dir, "pki", "ca.key")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the refused server has the key of the authority: %v", err)
	}
}

// awaitServers waits until exactly these servers are ready, and one of them is active.
func awaitServers(c *rikcluster.Cluster, rikctl func(...string) rikcluster.Result, want ...string) {
	c.Eventually(func() error {
		out := rikctl("server", "list", "-o", "json")
		if out.Err != nil {
			return out.Err
		}
		var list servers.List
		if err := json.Unmarshal([]byte(out.Stdout), &list); err != nil {
			return err
		}
		var ready []string
		active := 0
		for _, s := range list.Items {
			if s.Ready {
				ready = append(ready, s.Name)
			}
			if s.Active {
				active++
			}
		}
		if len(list.Items) != len(want) || !slices.Equal(ready, want) || active != 1 {
			return fmt.Errorf("the servers are %s, want %v, ready, and one of them active", out.Stdout, want)
		}
		return nil
	})
}

// nodeKnows waits until the node has saved a list of n servers.
func nodeKnows(c *rikcluster.Cluster, n int) {
	c.Eventually(func() error {
		data, err := os.ReadFile(filepath.Join(c.Dir, "node-1", "state", "servers.json"))
		if err != nil {
			return err
		}
		var saved struct{ Servers []any }
		if err := json.Unmarshal(data, &saved); err != nil || len(saved.Servers) != n {
			return fmt.Errorf("the node has saved %s, want %d servers", data, n)
		}
		return nil
	})
}

// unchanged checks that the processes of instances still run.
func unchanged(t *testing.T, c *rikcluster.Cluster, before map[string][]rikcluster.Inside) {
	t.Helper()
	after := c.InstanceProcesses("sleep")
	for uid, processes := range before {
		if !slices.Equal(after[uid], processes) {
			t.Errorf("the processes of instance %s were %v, and are %v", uid, processes, after[uid])
		}
	}
	if len(before) == 0 {
		t.Errorf("no instance ran before; now %v", slices.Collect(maps.Keys(after)))
	}
}

// removedServerReturns removes a server, which then stops and does not start again, and adds it again.
func removedServerReturns(t *testing.T, c *rikcluster.Cluster, s *rikcluster.Server, token string) {
	t.Helper()
	c.Rikctl("server", "remove", s.Name)
	awaitServers(c, c.TryRikctl, "s1", "s2")
	const says = "was removed from its cluster"
	p := c.Process(s.Name)
	if code := p.Wait(); code == 0 || !strings.Contains(p.Tail(), says) {
		t.Errorf("the removed server ended with %d:\n%s", code, p.Tail())
	}
	p = s.Start()
	if code := p.Wait(); code == 0 || !strings.Contains(p.Tail(), says) || !strings.Contains(p.Tail(), "--join") {
		t.Errorf("the removed server started again and ended with %d:\n%s", code, p.Tail())
	}
	p = s.Start("--join", "https://"+rikcluster.ServerAddress+":5000", "--token-file", token)
	if code := p.Wait(); code == 0 || !strings.Contains(p.Tail(), says) {
		t.Errorf("the removed server started with its old token and ended with %d:\n%s", code, p.Tail())
	}
	if err := os.WriteFile(token, []byte(c.Rikctl("token", "create", "--server", "--ttl", "1h")), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Start("--join", "https://"+rikcluster.ServerAddress+":5000", "--token-file", token)
	awaitServers(c, c.TryRikctl, "s1", "s2", "s3")
}
