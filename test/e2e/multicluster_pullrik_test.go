package e2e

import (
	"debug/elf"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedPullOnRik runs the agent of mode pull as intended: in a container on a node of a
// rik cluster. The agent comes from an image, uses the node's network, and has the credentials
// of its Secret.
func TestPrivilegedPullOnRik(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{})
	k := startKCP(t, "6443", "--pull-mode", "--syncer-image", c.Image("syncer", syncerImage(t, c.Bin)), "--advertise-address", "127.0.0.1")
	k.do("rikctl", "cluster", "register", "east", "--kubeconfig", filepath.Join(c.DataDir(), "admin.kubeconfig"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent: %s", c.TryRikctl("describe", "instances", "-A").Stdout)
		}
	})
	k.await("True", "cluster", "east", "-o", ready)
	r := rikPull{k: k, c: c}
	pid := r.agent(t)
	k.eventually(func() error { return r.reported("SyncerInstalled", "ClusterReady") })

	k.kubectl("create", "namespace", "team")
	for _, name := range []string{"first", "second", "elsewhere"} {
		k.kubectl("create", "configmap", "-n", "team", name, "--from-literal=a=1")
	}
	k.kubectl("label", "configmap", "-n", "team", "first", "second", "workloads.kcp.dev/cluster=east")
	r.await(t, "first=1 second=1")
	t.Run("its credentials are in a Secret and nowhere else", func(t *testing.T) { r.keepsItsCredentials(t, pid) })
	t.Run("its account writes nowhere else", func(t *testing.T) { r.staysInItsNamespaces(t) })

	t.Run("killed and started again by the node", func(t *testing.T) {
		// The node restarts it at once, so some of these changes may happen before that, and
		// some after.
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		k.kubectl("patch", "configmap", "-n", "team", "first", "--type=merge", `-p={"data":{"a":"2"}}`)
		k.kubectl("delete", "configmap", "-n", "team", "second", "--wait=false")
		k.kubectl("label", "configmap", "-n", "team", "elsewhere", "workloads.kcp.dev/cluster=east")
		r.await(t, "elsewhere=1 first=2")
		if again := r.agent(t); again == pid {
			t.Errorf("process %d, which was killed, still runs", pid)
		}
		k.await("True", "cluster", "east", "-o", ready)
		k.await("elsewhere first", "configmap", "-n", "team", "-l", "workloads.kcp.dev/cluster=east", "-o", "jsonpath={.items[*].metadata.name}")
	})

	k.do("rikctl", "cluster", "unregister", "east")
	k.eventually(func() error {
		if left := c.InstanceProcesses("syncer"); len(left) > 0 {
			return fmt.Errorf("the agent runs without its Cluster: %v", left)
		}
		if out := c.Kubectl("", "get", "namespaces", "-l", "app.kubernetes.io/name=rik-syncer", "-o", "name"); out.Err != nil || out.Stdout != "" {
			return fmt.Errorf("left are %s (%w)", out.Stdout, out.Err)
		}
		return nil
	})
	r.await(t, "elsewhere=1 first=2") // synced objects stay
}

// syncerImage has the built syncer. If that is linked dynamically, it also has this machine's
// libraries for it.
func syncerImage(t *testing.T, bin string) ociimage.Spec {
	t.Helper()
	program := filepath.Join(bin, "syncer")
	files := map[string]ociimage.File{"syncer": {Source: program, Mode: 0o755}}
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dynamic := slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	if dynamic {
		out := rikcluster.Command(t, "ldd", program)
		if out.Err != nil {
			t.Fatal(out.Err)
		}
		for word := range strings.FieldsSeq(out.Stdout) {
			if strings.HasPrefix(word, "/") {
				files[strings.TrimPrefix(word, "/")] = ociimage.File{Source: word, Mode: 0o755}
			}
		}
	}
	return ociimage.Spec{
		// Most of it is one program, which is unpacked once.
		Layers:     []ociimage.Layer{{Files: files, Compression: ociimage.Uncompressed}},
		Entrypoint: []string{"/syncer"}, User: "65532:65532",
	}
}

// rikPull is a kcp with an agent in a rik cluster.
type rikPull struct {
	k *kcp
	c *rikcluster.Cluster
}

// agent waits for the only process of the agent, and returns its PID.
func (r rikPull) agent(t *testing.T) int {
	t.Helper()
	var found []rikcluster.Inside
	r.c.In(t).Eventually(func() error {
		found = nil
		for _, processes := range r.c.InstanceProcesses("syncer") {
			found = append(found, processes...)
		}
		if len(found) != 1 {
			return fmt.Errorf("%d syncers run in instances: %v", len(found), found)
		}
		return nil
	})
	return found[0].PID
}

// await waits until these are the ConfigMaps in the rik cluster that came from the kcp.
func (r rikPull) await(t *testing.T, want string) {
	t.Helper()
	r.c.In(t).Eventually(func() error {
		out := r.c.Kubectl("", "get", "configmaps", "-A", "-l", "workloads.kcp.dev/cluster=east", "--sort-by=.metadata.name",
			"-o", `jsonpath={range .items[*]}{.metadata.name}={.data.a} {end}`)
		if got := strings.TrimSpace(out.Stdout); out.Err != nil || got != want {
			return fmt.Errorf("the rik cluster has %q, want %q (%w)", got, want, out.Err)
		}
		return nil
	})
}

// reported returns an error unless there are events about the Cluster with these reasons.
func (r rikPull) reported(reasons ...string) error {
	out := r.k.try("kubectl", "get", "events", "--field-selector", "involvedObject.kind=Cluster,involvedObject.name=east", "-o", "jsonpath={.items[*].reason}")
	var missing []error
	for _, reason := range reasons {
		if !slices.Contains(strings.Fields(out.Stdout), reason) {
			missing = append(missing, fmt.Errorf("no event %s", reason))
		}
	}
	return errors.Join(append(missing, out.Err)...)
}

// secret returns the value of a key in the agent's Secret.
func (r rikPull) secret(t *testing.T, key string) []byte {
	t.Helper()
	out := r.c.Kubectl("", "get", "secrets", "-A", "-l", "app.kubernetes.io/name=rik-syncer", "-o", "jsonpath={.items[0].data."+strings.ReplaceAll(key, ".", `\.`)+"}")
	data, err := base64.StdEncoding.DecodeString(out.Stdout)
	if err != nil || len(data) == 0 {
		t.Fatalf("the agent's Secret has no %s: %v %v", key, err, out.Err)
	}
	return data
}

// keepsItsCredentials checks that the credentials appear in no other visible data of the agent,
// on both sides, nor in the arguments and environment of its process.
func (r rikPull) keepsItsCredentials(t *testing.T, pid int) {
	upstream, err := clientcmd.Load(r.secret(t, "upstream.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	downstream, err := clientcmd.Load(r.secret(t, "downstream.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	var canaries []string
	for _, user := range upstream.AuthInfos {
		key := base64.StdEncoding.EncodeToString(user.ClientKeyData)
		canaries = append(canaries, key, base64.StdEncoding.EncodeToString([]byte(key)))
	}
	for _, user := range downstream.AuthInfos {
		canaries = append(canaries, user.Token, base64.StdEncoding.EncodeToString([]byte(user.Token)))
	}
	shown := map[string]string{
		"the rik cluster": r.c.Kubectl("", "get", "workloads,workloadrevisions,instances,events", "-A", "-o", "json").Stdout,
		"the kcp":         r.k.kubectl("get", "clusters,events,apiresourceimports", "-A", "-o", "json"),
		"the kcp's log":   r.k.process.Tail(),
		"the metrics":     r.k.kubectl("get", "--raw", "/metrics"),
	}
	for _, file := range []string{"cmdline", "environ"} {
		raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), file))
		if err != nil || len(raw) == 0 {
			t.Fatalf("reading the %s of the agent: %d bytes, %v", file, len(raw), err)
		}
		shown["the agent's "+file] = string(raw)
	}
	for where, text := range shown {
		if text == "" {
			t.Errorf("%s shows nothing", where)
		}
		for _, canary := range canaries {
			if canary == "" || strings.Contains(text, canary) {
				t.Errorf("%s holds the agent's credentials (of %d bytes)", where, len(canary))
			}
		}
	}
}

// staysInItsNamespaces tries requests that the agent's ClusterRole allows and its admission
// policy denies.
func (r rikPull) staysInItsNamespaces(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, r.secret(t, "downstream.kubeconfig"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, forbidden := range map[string]bool{
		"get configmaps -A":                             false,
		"create configmap -n default stray":             true,
		"create namespace stray":                        true,
		"delete configmap -n default kube-root-ca.crt":  true,
		"get workloads -A":                              true,
		"get nodes.rik.dev":                             true,
		"create token -n default default":               true,
		"get clusterroles":                              true,
		"delete validatingadmissionpolicies --all":      true,
		"delete namespace -l kcp.dev/owned-by=whatever": true,
	} {
		out := rikcluster.Run(t, "kubectl", append([]string{"--kubeconfig", file}, strings.Fields(line)...)...)
		if got := strings.Contains(strings.ToLower(out.Stderr), "forbidden"); got != forbidden || !forbidden && out.Err != nil {
			t.Errorf("kubectl %s: code %d, want it forbidden: %t\n%s%s", line, out.Code, forbidden, out.Stdout, out.Stderr)
		}
	}
}
