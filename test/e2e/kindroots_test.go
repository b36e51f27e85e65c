package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// functionRoots runs Functions whose root is an archive and a file system image behind a URL.
func functionRoots(t *testing.T, c *rikcluster.Cluster, url string, tools rikcluster.Tools) {
	deployed := map[string]string{}
	for _, file := range []string{tools.TarGz, tools.Ext4} {
		name := "root-" + strings.ReplaceAll(strings.TrimPrefix(filepath.Base(file), "tools."), ".", "-")
		deployed[name] = file
		applyText(t, c, rooted(name, url+"/"+filepath.Base(file), sumOf(t, file)))
	}
	wrong := strings.Repeat("0", 64)
	applyText(t, c, rooted("root-wrong", url+"/"+filepath.Base(tools.TarGz), wrong))
	for name, file := range deployed {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c := c.In(t)
			in := eventuallyInstance(c, name, "Completed", func(in *rikv1alpha1.Instance) bool { return in.Status.Phase == rikv1alpha1.InstanceCompleted })
			if got, want := c.Rikctl("logs", in.Name), "a function in "+in.Name+"\n"; got != want {
				t.Errorf("the log is %q, want %q", got, want)
			}
		})
	}
	t.Run("with another checksum", func(t *testing.T) {
		in := eventuallyInstance(c.In(t), "root-wrong", "Failed", func(in *rikv1alpha1.Instance) bool { return in.Status.Phase == rikv1alpha1.InstanceFailed })
		for _, want := range []string{"checksum", wrong[:12]} {
			if !strings.Contains(in.Status.Message, want) {
				t.Errorf("the message is %q, want %q in it", in.Status.Message, want)
			}
		}
	})
	for _, name := range []string{"root-tar-gz", "root-ext4", "root-wrong"} {
		c.Rikctl("delete", "workload", name)
	}
}

func rooted(name, url, sum string) string {
	return fmt.Sprintf(`apiVersion: rik.dev/v1alpha1
kind: Workload
metadata: {name: %s}
spec:
  kind: Function
  deploy: Automatic
  replicas: 1
  restartPolicy: Never
  function:
    execution:
      rootfs: %s
      sha256: "%s"
      command: [/bin/sh, -c, 'echo a function in $(/bin/hostname)']
    resources: {limits: {memory: 128Mi}}
`, name, url, sum)
}

func sumOf(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// paperApp tests the published design's commands for Apps with the program rik.
func paperApp(t *testing.T, c *rikcluster.Cluster, tools rikcluster.Tools) {
	rik := func(args ...string) string {
		t.Helper()
		out := c.Rik(args...)
		if out.Err != nil {
			t.Fatalf("rik %v: %v", args, out.Err)
		}
		return out.Stdout
	}
	file := func(name, program string) string {
		path := filepath.Join(c.Dir, name+".yaml")
		text := fmt.Sprintf(`name: %s
repo: %s
action: deploy
metadata: {name: %s, description: "says who it is"}
command: [%s]
`, name, tools.Directory, name, program)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if got := rik("deploy", "-f", file("nginx", "./bin/hello")); got != "nginx deployed\n" {
		t.Errorf("rik deploy says %q", got)
	}
	rik("deploy", "-f", file("task", "./bin/true"))
	want := regexp.MustCompile(`^NAME\s+STATUS\s+AGE\s*\nnginx\s+Running\s+\S+\s*\ntask\s+Completed\s+\S+\s*\n$`)
	c.Eventually(func() error {
		if got := rik("get", "apps"); !want.MatchString(got) {
			return fmt.Errorf("rik get apps says:\n%s", got)
		}
		return nil
	})
	in := eventuallyInstance(c, "nginx", "running", func(in *rikv1alpha1.Instance) bool { return in.Status.Phase == rikv1alpha1.InstanceRunning })
	node := in.Spec.NodeName
	notRoot(t, c, string(in.UID))
	if got := c.Rikctl("get", "functions"); strings.Contains(got, "nginx") {
		t.Errorf("an App is listed among Functions:\n%s", got)
	}
	if got, want := rik("delete", "nginx"), "nginx deleted on "+node+"\n"; got != want {
		t.Errorf("rik delete says %q, want %q", got, want)
	}
	if err := traces(c, string(in.UID)); err != nil {
		t.Errorf("after it was deleted there is %v", err)
	}
	if got, want := c.Rikctl("delete", "app", "task"), "task deleted on "+node+"\n"; got != want {
		t.Errorf("rikctl delete app says %q, want %q", got, want)
	}
}

// notRoot checks that an App is a process on the machine that runs as an unprivileged user.
func notRoot(t *testing.T, c *rikcluster.Cluster, uid string) {
	t.Helper()
	processes := c.InstanceProcesses("hello")[uid]
	if len(processes) != 1 {
		t.Fatalf("the App runs as %v, want one process", processes)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", processes[0].PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"Uid", "Gid"} {
		if found := regexp.MustCompile(`(?m)^` + field + `:\s+(\d+)`).FindSubmatch(status); found == nil || string(found[1]) == "0" {
			t.Errorf("the App's %s is %q", field, found)
		}
	}
	if !strings.Contains(string(status), "CapEff:\t0000000000000000") {
		t.Errorf("the App has capabilities:\n%s", status)
	}
}
