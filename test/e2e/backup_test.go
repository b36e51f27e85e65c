package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedBackup loses a server with everything on its disk, and restores it from a backup.
// Its node was never stopped. The instances that the backup knows continue with the same
// processes. One that began after the backup is kept and listed, until an administrator stops it.
func TestPrivilegedBackup(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{Machines: 1})
	hello := c.Hello()
	applyText(t, c, serving("before", hello, 4, "", `{port: 80, targetPort: 8080}`))
	waitReady(c, "before")
	kubectl := func(args ...string) string {
		t.Helper()
		result := c.Kubectl("", args...)
		if result.Err != nil {
			t.Fatal(result.Err)
		}
		return strings.TrimSpace(result.Stdout)
	}
	kubectl("create", "secret", "generic", "canary", "--from-literal=password=hunter2")
	token := kubectl("create", "token", "default", "--duration=2h")
	pass, file := filepath.Join(c.Dir, "passphrase"), filepath.Join(c.Dir, "x.rikbackup")
	if err := os.WriteFile(pass, []byte("correct horse battery staple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Rikctl("backup", "create", file, "--passphrase-file", pass)
	if out := c.Rikctl("backup", "verify", file, "--passphrase-file", pass); !strings.Contains(out, "can be restored") {
		t.Errorf("verify prints %q", out)
	}
	applyText(t, c, serving("after", hello, 1, "", `{port: 81, targetPort: 8080}`))
	waitReady(c, "after")
	known, unknown := instancesOf(c, "before"), instancesOf(c, "after")[0]
	before := c.InstanceProcesses("hello")

	c.Process("server").Kill()
	data := filepath.Join(c.Dir, "data")
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	killRestores(t, c, data, file, pass)
	c.StartComponentWith("server", "--restore", file, "--restore-passphrase-file", pass)
	c.AwaitReady()
	c.Eventually(func() error {
		out := c.Rikctl("restore", "status")
		if !strings.Contains(out, unknown.Namespace+"/"+unknown.Name) || strings.Contains(out, known[0].Name) {
			return fmt.Errorf("status prints %s", out)
		}
		return nil
	})
	after := c.InstanceProcesses("hello")
	for _, in := range append(known, unknown) {
		if uid := string(in.UID); fmt.Sprint(before[uid]) != fmt.Sprint(after[uid]) || len(after[uid]) == 0 {
			t.Errorf("instance %s/%s was %v and is %v", in.Namespace, in.Name, before[uid], after[uid])
		}
	}
	if got := kubectl("get", "secret", "canary", "-o", "jsonpath={.data.password}"); got != "aHVudGVyMg==" {
		t.Errorf("the secret is %q", got)
	}
	review := fmt.Sprintf("apiVersion: authentication.k8s.io/v1\nkind: TokenReview\nspec: {token: %s}\n", token)
	if out := c.Kubectl(review, "create", "-f", "-", "-o", "jsonpath={.status.user.username}"); out.Stdout != "system:serviceaccount:default:default" {
		t.Errorf("the token is of %q, %v", out.Stdout, out.Err)
	}
	c.Rikctl("node", "confirm", "--all")
	c.Eventually(func() error {
		if left := c.InstanceProcesses("hello")[string(unknown.UID)]; len(left) > 0 {
			return fmt.Errorf("it still has the processes %v", left)
		}
		return nil
	})
	c.Eventually(func() error {
		if out := c.Rikctl("restore", "status"); !strings.Contains(out, "No node waits") {
			return fmt.Errorf("status prints %s", out)
		}
		return nil
	})
	c.Rikctl("restore", "finish")
	c.Rikctl("scale", "workload", "before", "--replicas=5")
	waitReady(c, "before")
	if got := len(instancesOf(c, "before")); got != 5 {
		t.Errorf("there are %d instances, want 5", got)
	}
}

// killRestores kills restores at several moments. Each leaves a data directory that a server
// refuses.
func killRestores(t *testing.T, c *rikcluster.Cluster, data, file, pass string) {
	t.Helper()
	for _, after := range []time.Duration{200 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		run := exec.CommandContext(ctx, filepath.Join(c.Bin, "rik"), "server", "--no-agent", "--data-dir", data, "--restore", file, "--restore-passphrase-file", pass)
		out, _ := run.CombinedOutput()
		cancel()
		if strings.Contains(string(out), "the backup was restored") {
			t.Logf("the restore was complete after %s", after)
			if err := os.RemoveAll(data); err != nil {
				t.Fatal(err)
			}
			continue
		}
		content, err := os.ReadFile(filepath.Join(data, "restored.json"))
		if os.IsNotExist(err) {
			continue // it was still verifying the backup
		}
		if err != nil || !strings.Contains(string(content), strconv.Quote("complete")+": false") {
			t.Errorf("after a kill at %s: %s, %v", after, content, err)
		}
		refused, err := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "rik"), "server", "--no-agent", "--data-dir", data).CombinedOutput()
		if err == nil || !strings.Contains(string(refused), "a restore was interrupted") {
			t.Errorf("a server on it: %v, %s", err, refused)
		}
	}
}
