package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedJoin follows two machines from joining to removal, and accesses instances over
// the nodes' connections.
func TestPrivilegedJoin(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{Machines: 2})
	busybox := c.Busybox()
	applyText(t, c, rikcluster.Manifest("files", busybox,
		"mkdir /srv && dd if=/dev/urandom of=/srv/big bs=1M count=24 && exec httpd -f -p 8080 -h /srv", "  deploy: Automatic\n  replicas: 2\n"+spread))
	waitReady(c, "files")

	t.Run("tokens", func(t *testing.T) { tokens(t, c.In(t)) })
	t.Run("a node's certificate opens nothing else", func(t *testing.T) { nodeCertificateOfAnother(t, c.In(t)) })
	t.Run("ports", func(t *testing.T) { forwarded(t, c.In(t)) })
	t.Run("a deleted node", func(t *testing.T) { deletedNode(t, c.In(t)) })
	c.Rikctl("delete", "workload", "files")
}

func tokens(t *testing.T, c *rikcluster.Cluster) {
	if list := c.Rikctl("token", "list"); !strings.Contains(list, "node-token") || !strings.Contains(list, " 2 ") {
		t.Errorf("the tokens after two machines joined:\n%s", list)
	}
	token := strings.TrimSpace(c.Rikctl("token", "create", "--ttl", "1h", "--description", "unused"))
	id := strings.Split(token, ".")[2]
	if list := c.Rikctl("token", "list"); !strings.Contains(list, id) || !strings.Contains(list, "unused") {
		t.Errorf("the new token %s is not listed:\n%s", id, list)
	}
	secret := strings.Split(token, ".")[3]
	if raw := c.Rikctl("get", "secret", "-n", "rik-system", "join-token-"+id, "-o", "yaml"); strings.Contains(raw, secret) {
		t.Error("the server keeps the token's secret")
	}
	c.Rikctl("token", "delete", id)
	file := filepath.Join(c.Dir, "revoked-token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.Dir, "late")
	dirs := []string{"--state-dir", dir, "--run-dir", filepath.Join(dir, "run"), "--cgroup-parent", "/" + filepath.Base(c.Dir) + "-late"}
	riklet := filepath.Join(c.Bin, "riklet")
	out := c.Machine(2).Run(riklet, append([]string{"--network=none", "--token-file", file, "--node-name", "late", "--server", "https://" + rikcluster.ServerAddress + ":5000"}, dirs...)...)
	if purged := c.Machine(2).Run(riklet, append([]string{"purge"}, dirs...)...); purged.Err != nil {
		t.Error(purged.Err)
	}
	if out.Err == nil || !strings.Contains(out.Err.Error(), "not valid") {
		t.Errorf("joining with a revoked token ended with %v", out.Err)
	}
}

// identityOf reads the certificate with which a machine joined.
func identityOf(t *testing.T, c *rikcluster.Cluster, machine int) (*tls.Config, string) {
	t.Helper()
	path := filepath.Join(c.Dir, c.Machine(machine).Name, "state", "identity.pem")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		t.Fatal("the identity holds no authority")
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: rikcluster.ServerAddress, MinVersion: tls.VersionTLS13}, path
}

// nodeCertificateOfAnother uses a node's certificate for requests that only other users may make.
func nodeCertificateOfAnother(t *testing.T, c *rikcluster.Cluster) {
	config, _ := identityOf(t, c, 1)
	api := &http.Client{Transport: &http.Transport{TLSClientConfig: config}, Timeout: time.Minute}
	defer api.CloseIdleConnections()
	in := instancesOf(c, "files")[0]
	for _, ask := range []struct{ method, path, body string }{
		{"GET", "/apis/rik.dev/v1alpha1/nodes", ""},
		{"GET", "/api/v1/namespaces/rik-system/secrets", ""},
		{"PATCH", "/apis/rik.dev/v1alpha1/nodes/node-2", `{"spec":{"unschedulable":true}}`},
		{"PATCH", "/apis/rik.dev/v1alpha1/nodes/node-2/status", `{"status":{}}`},
		{"DELETE", "/apis/rik.dev/v1alpha1/nodes/node-2", ""},
		{"PATCH", "/apis/rik.dev/v1alpha1/namespaces/default/instances/" + in.Name + "/status", `{"status":{"phase":"Failed"}}`},
		{"DELETE", "/apis/rik.dev/v1alpha1/namespaces/default/instances/" + in.Name, ""},
		{"GET", "/apis/rik.dev/v1alpha1/namespaces/default/instances/" + in.Name + "/portforward?port=8080", ""},
		{"POST", "/rik/tokens/", `{}`},
		{"GET", "/rik/tokens/", ""},
	} {
		request, err := http.NewRequestWithContext(t.Context(), ask.method, "https://"+rikcluster.ServerAddress+":5000"+ask.path, bytes.NewReader([]byte(ask.body)))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/merge-patch+json")
		response, err := api.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusForbidden {
			t.Errorf("%s %s as a node: %s, want 403", ask.method, ask.path, response.Status)
		}
	}
	if err := connectAs(t, config, "node-2"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("node-1 connects to the controller as node-2: %v", err)
	}
	if err := registerAs(t, config, "node-2"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("node-1 connects to the scheduler as node-2: %v", err)
	}
}

func dialNode(t *testing.T, config *tls.Config, port string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+rikcluster.ServerAddress+":"+port, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// connectAs connects to the controller's service for nodes.
func connectAs(t *testing.T, config *tls.Config, node string) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := nodev1.NewNodeClient(dialNode(t, config, "4997")).Connect(ctx)
	if err == nil {
		_ = stream.Send(&nodev1.NodeMessage{Message: &nodev1.NodeMessage_Hello{Hello: &nodev1.NodeHello{NodeName: node, Protocol: nodev1.Protocol}}})
		_, err = stream.Recv()
	}
	return err
}

// registerAs connects to the scheduler's service. It discards the messages before the end.
func registerAs(t *testing.T, config *tls.Config, node string) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	facts, err := (&rikv1alpha1.NodeStatus{}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := schedulerv1.NewWorkerClient(dialNode(t, config, "4995")).Connect(ctx)
	if err != nil {
		return err
	}
	_ = stream.Send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Register{
		Register: &schedulerv1.Register{NodeName: node, MachineId: "m", Status: facts},
	}})
	for {
		order, err := stream.Recv()
		if err != nil {
			return err
		}
		if order.GetAdmitted() != nil {
			return nil
		}
	}
}

// forwarded fetches a large file through port-forward, and connects to a port without a
// listener.
func forwarded(t *testing.T, c *rikcluster.Cluster) {
	address, reported := forward(t, c, "workload/files", ":8080", ":9")
	for range 3 {
		got, err := fetch(t.Context(), "http://"+address[0]+"/big")
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(got))
		found := false
		for _, in := range instancesOf(c, "files") {
			found = found || strings.HasPrefix(c.Rikctl("exec", in.Name, "--", "sha256sum", "/srv/big"), hex.EncodeToString(sum[:]))
		}
		if !found {
			t.Errorf("%d bytes came, which are no instance's", len(got))
		}
	}
	if got, err := fetch(t.Context(), "http://"+address[1]+"/"); err == nil {
		t.Errorf("at a port where nothing listens: %q", got)
	}
	c.Eventually(func() error {
		if text := reported(); !strings.Contains(text, "port 9 failed") || !strings.Contains(text, "refused") {
			return fmt.Errorf("printed was %q", text)
		}
		return nil
	})
	// The forwarded instance may be replaced in the meantime.
	in := instancesOf(c, "files")[0]
	c.Rikctl("delete", "instance", in.Name)
	c.Eventually(func() error {
		if n := len(instancesOf(c, "files")); n != 2 {
			return fmt.Errorf("%d instances", n)
		}
		return nil
	})
	waitReady(c, "files")
	c.Eventually(func() error {
		_, err := fetch(t.Context(), "http://"+address[0]+"/big")
		return err
	})
}

// forward runs port-forward in the background and returns the local addresses.
func forward(t *testing.T, c *rikcluster.Cluster, target string, ports ...string) (addresses []string, reported func() string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "rikctl"), append([]string{"port-forward", target, "--address", "127.0.0.1"}, ports...)...)
	cmd.Env = append(cmd.Environ(), "RIKCONFIG="+filepath.Join(c.DataDir(), "config.yaml"))
	log, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	lines := bufio.NewScanner(out)
	for range ports {
		if !lines.Scan() {
			t.Fatalf("port-forward ended: %v", lines.Err())
		}
		addresses = append(addresses, strings.Fields(lines.Text())[2])
	}
	return addresses, func() string {
		text, _ := os.ReadFile(log.Name())
		return string(text)
	}
}

// deletedNode checks that a deleted node is refused and runs nothing until it joins again.
func deletedNode(t *testing.T, c *rikcluster.Cluster) {
	config, path := identityOf(t, c, 2)
	var doomed []string
	for _, in := range instancesOf(c, "files") {
		if in.Spec.NodeName == "node-2" {
			doomed = append(doomed, string(in.UID))
		}
	}
	if n := len(c.InstanceProcesses("httpd")); n != 2 {
		t.Errorf("httpd runs in %d instances", n)
	}
	c.Rikctl("delete", "node", "node-2")
	c.Eventually(func() error {
		running := c.InstanceProcesses("httpd")
		for _, uid := range doomed {
			if len(running[uid]) > 0 {
				return fmt.Errorf("instance %s of the deleted node still runs", uid)
			}
		}
		if log := c.Machine(2).Riklet().Tail(); !strings.Contains(log, "rikctl token create") {
			return fmt.Errorf("the node does not say how to come back:\n%s", log)
		}
		return nil
	})
	c.Eventually(func() error {
		for _, in := range instancesOf(c, "files") {
			why := c.TryRikctl("why", in.Name)
			if why.Err != nil {
				return why.Err
			}
			if strings.Contains(why.Stdout, "node-2") {
				return fmt.Errorf("why %s speaks of the deleted node:\n%s", in.Name, why.Stdout)
			}
		}
		return nil
	})
	if err := connectAs(t, config, "node-2"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the controller takes a revoked certificate: %v", err)
	}
	if err := registerAs(t, config, "node-2"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the scheduler takes a revoked certificate: %v", err)
	}
	// A restart with a token available does not join again.
	c.Machine(2).Riklet().Stop()
	c.Machine(2).Start()
	c.Eventually(func() error {
		log := c.Machine(2).Riklet().Tail()
		if since := log[max(0, strings.LastIndex(log, "instances recovered")):]; !strings.Contains(since, "rikctl token create") {
			return fmt.Errorf("the restarted node is not refused:\n%s", log)
		}
		return nil
	})
	if out := c.TryRikctl("get", "node", "node-2"); out.Err == nil {
		t.Errorf("the deleted node is back:\n%s", out.Stdout)
	}
	c.Machine(2).Riklet().Stop()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	c.Machine(2).Start()
	c.AwaitNodes(2)
	if err := connectAs(t, config, "node-2"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("after its successor joined the controller accepts a revoked certificate: %v", err)
	}
}
