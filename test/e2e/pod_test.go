package e2e

import (
	"fmt"
	"strings"
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedPods follows the published papers: a workload, its instances, and the commands
// with which users look at them.
func TestPrivilegedPods(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{})
	image := c.Busybox()

	t.Run("create, look inside, delete", func(t *testing.T) { lifeOfInstances(t, c.In(t), image) })
	t.Run("environment and volumes", func(t *testing.T) { environmentAndVolumes(t, c.In(t), image) })
	t.Run("restart policies", func(t *testing.T) { restartPolicies(t, c.In(t), image) })
	t.Run("probes", func(t *testing.T) { probes(t, c.In(t), image) })
	t.Run("automatic workloads roll out and back", func(t *testing.T) { rollout(t, c.In(t), image) })
	t.Run("last words", func(t *testing.T) { lastWords(t, c.In(t), image) })
	t.Run("several containers share a Pod", func(t *testing.T) { sharedPod(t, c.In(t), image) })
}

// apply creates a workload from YAML. If replicas is not 0, it also creates instances.
func apply(t *testing.T, c *rikcluster.Cluster, manifest, name string, replicas int) {
	t.Helper()
	if out := c.RikctlInput(manifest, "apply", "-f", "-"); out.Err != nil {
		t.Fatal(out.Err)
	}
	if replicas > 0 {
		c.Rikctl("create", "instance", "-w", name, "--replicas", fmt.Sprint(replicas))
	}
}

func waitReady(c *rikcluster.Cluster, workload string) {
	// Waiting for an object that does not exist is an error of the command line.
	c.Eventually(func() error {
		if len(instancesOf(c, workload)) == 0 {
			return fmt.Errorf("workload %s has no instance yet", workload)
		}
		return nil
	})
	c.Rikctl("wait", "--for=condition=Ready", "instance", "-l", "rik.dev/workload="+workload, "--timeout=230s")
}

// instancesOf returns a workload's instances that are not being deleted.
func instancesOf(c *rikcluster.Cluster, workload string) []rikv1alpha1.Instance {
	var list rikv1alpha1.InstanceList
	c.Get(&list, "namespaces/default/instances?labelSelector=rik.dev/workload="+workload)
	var alive []rikv1alpha1.Instance
	for _, in := range list.Items {
		if in.DeletionTimestamp == nil {
			alive = append(alive, in)
		}
	}
	return alive
}

// eventuallyInstance waits until the only instance of a workload fits, and returns it.
func eventuallyInstance(c *rikcluster.Cluster, workload, what string, fits func(*rikv1alpha1.Instance) bool) rikv1alpha1.Instance {
	var found rikv1alpha1.Instance
	c.Eventually(func() error {
		list := instancesOf(c, workload)
		if len(list) != 1 {
			return fmt.Errorf("%d instances of %s, want 1", len(list), workload)
		}
		if !fits(&list[0]) {
			return fmt.Errorf("instance of %s is not %s: %+v", workload, what, list[0].Status)
		}
		found = list[0]
		return nil
	})
	return found
}

func lifeOfInstances(t *testing.T, c *rikcluster.Cluster, image string) {
	manifest := rikcluster.Manifest("web", image, "echo hello from $HOSTNAME; exec sleep 100000", "")
	out := c.RikctlInput(manifest, "create", "workload", "-f", "-")
	if out.Err != nil || !strings.HasPrefix(out.Stdout, `Workload web has been successfully created with ID : "`) {
		t.Fatalf("create workload printed %q, %v", out.Stdout, out.Err)
	}
	uid := strings.Split(out.Stdout, `"`)[1]
	c.Rikctl("create", "instance", "--workload-id", uid, "--replicas", "3")
	waitReady(c, "web")
	list := instancesOf(c, "web")
	if len(list) != 3 {
		t.Fatalf("%d instances, want 3", len(list))
	}
	running := c.InstanceProcesses("sleep")
	for _, in := range list {
		if len(running[string(in.UID)]) != 1 {
			t.Errorf("instance %s runs as %v, want one process", in.Name, running[string(in.UID)])
		}
		if got, want := c.Rikctl("logs", in.Name), "hello from "+in.Name+"\n"; got != want {
			t.Errorf("log of %s is %q, want %q", in.Name, got, want)
		}
	}
	first := list[0].Name
	if out := c.TryRikctl("exec", first, "--", "/bin/sh", "-c", "echo out; echo err >&2; exit 7"); out.Code != 7 || out.Stdout != "out\n" || !strings.Contains(out.Stderr, "err") {
		t.Errorf("exec gave %q, %q and code %d, want out, err and 7", out.Stdout, out.Stderr, out.Code)
	}
	for program, code := range map[string]int{"/no/such": 127, "/etc": 126} {
		if out := c.TryRikctl("exec", first, "--", program); out.Code != code || !strings.Contains(out.Stderr, program) {
			t.Errorf("exec of %s gave %q and code %d, want its name and %d", program, out.Stderr, out.Code, code)
		}
	}
	if out := c.RikctlInput("over stdin", "exec", "-i", first, "--", "/bin/cat"); out.Stdout != "over stdin" {
		t.Errorf("exec -i gave %q, %v", out.Stdout, out.Err)
	}
	// Fault 13: instances wrote into each other's files.
	c.Rikctl("exec", first, "--", "/bin/sh", "-c", "echo mine > /file")
	if out := c.TryRikctl("exec", list[1].Name, "--", "/bin/cat", "/file"); out.Code == 0 {
		t.Errorf("a file of %s is seen in %s: %q", first, list[1].Name, out.Stdout)
	}
	for _, args := range [][]string{{"describe", "instance", first}, {"describe", "workload", "web"}, {"why", first}, {"get", "instances", "-o", "wide"}} {
		if got := c.Rikctl(args...); !strings.Contains(got, "web") {
			t.Errorf("rikctl %v does not name the workload:\n%s", args, got)
		}
	}
	c.Rikctl("delete", "workload", "web")
	c.Eventually(func() error {
		for _, in := range list {
			if left := rikcluster.Cgroups(string(in.UID)); len(left) > 0 {
				return fmt.Errorf("cgroups of %s are left: %v", in.Name, left)
			}
		}
		if out := c.Rikctl("get", "instances", "-o", "name"); out != "" {
			return fmt.Errorf("instances are left: %s", out)
		}
		return nil
	})
}

// environmentAndVolumes checks them in a container that does not run as root. The cluster was
// started with a umask that gives no permissions to others.
func environmentAndVolumes(t *testing.T, c *rikcluster.Cluster, image string) {
	settings := `apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {word: hunter2}
`
	if out := c.RikctlInput(settings, "apply", "-f", "-"); out.Err != nil {
		t.Fatal(out.Err)
	}
	manifest := rikcluster.Manifest("env", image, "echo $COLOR $WORD $NAME; cat /etc/settings/color; cat /etc/password/word; cat /work/made; "+
		"cat /etc/hosts /etc/resolv.conf > /work/own && echo read by nobody; exec sleep 100000", `
  volumes:
    - {name: settings, configMap: {name: settings}}
    - {name: password, secret: {name: password, mode: 0444}}
    - {name: work, emptyDir: {}}
  initContainers:
    - name: make
      image: `+image+`
      command: ["/bin/sh", "-c", "echo made by init > /work/made"]
      volumeMounts: [{name: work, mountPath: /work}]`) + `      user: "65534"
      env:
        - {name: COLOR, valueFrom: {configMapKeyRef: {name: settings, key: color}}}
        - {name: WORD, valueFrom: {secretKeyRef: {name: password, key: word}}}
        - {name: NAME, valueFrom: {fieldRef: metadata.name}}
      volumeMounts:
        - {name: settings, mountPath: /etc/settings}
        - {name: password, mountPath: /etc/password}
        - {name: work, mountPath: /work}
      resources: {limits: {memory: 64Mi, cpu: "1"}}
`
	apply(t, c, manifest, "env", 1)
	waitReady(c, "env")
	name := instancesOf(c, "env")[0].Name
	want := "blue hunter2 " + name + "\nbluehunter2made by init\nread by nobody\n"
	c.Eventually(func() error {
		if got := c.Rikctl("logs", name); got != want {
			return fmt.Errorf("the log is %q, want %q", got, want)
		}
		return nil
	})
	c.Rikctl("delete", "workload", "env")
}

func restartPolicies(t *testing.T, c *rikcluster.Cluster, image string) {
	apply(t, c, rikcluster.Manifest("done", image, "exit 0", "  restartPolicy: OnFailure"), "done", 1)
	apply(t, c, rikcluster.Manifest("once", image, "echo why; exit 3", "  restartPolicy: Never"), "once", 1)
	apply(t, c, rikcluster.Manifest("crash", image, "echo again; exit 1", ""), "crash", 1)
	eventuallyInstance(c, "done", "Completed", func(in *rikv1alpha1.Instance) bool { return in.Status.Phase == rikv1alpha1.InstanceCompleted })
	failed := eventuallyInstance(c, "once", "Failed", func(in *rikv1alpha1.Instance) bool { return in.Status.Phase == rikv1alpha1.InstanceFailed })
	if code := failed.Status.Containers[0].ExitCode; code == nil || *code != 3 {
		t.Errorf("the exit code is %v, want 3", code)
	}
	crashing := eventuallyInstance(c, "crash", "restarted twice", func(in *rikv1alpha1.Instance) bool {
		return len(in.Status.Containers) == 1 && in.Status.Containers[0].RestartCount >= 2
	})
	if got := c.Rikctl("logs", crashing.Name, "--previous"); got != "again\n" {
		t.Errorf("logs --previous is %q", got)
	}
	c.Eventually(func() error {
		if got := c.Rikctl("get", "instances", "-l", "rik.dev/workload=crash"); !strings.Contains(got, "CrashLoopBackOff") {
			return fmt.Errorf("get shows no CrashLoopBackOff:\n%s", got)
		}
		return nil
	})
	c.Eventually(func() error {
		for _, args := range [][]string{{"events"}, {"describe", "instance", crashing.Name}} {
			if got := c.Rikctl(args...); !strings.Contains(got, "BackOff") || !strings.Contains(got, "is started again after a pause") {
				return fmt.Errorf("rikctl %v shows no event of the crashes:\n%s", args, got)
			}
		}
		return nil
	})
	c.Rikctl("delete", "workload", "done", "once", "crash")
}

// lastWords checks that a reader who follows the log receives a container's output after
// SIGTERM.
func lastWords(t *testing.T, c *rikcluster.Cluster, image string) {
	apply(t, c, rikcluster.Manifest("last", image, "trap 'echo LASTWORDS; exit 3' TERM; echo up; while :; do sleep 0.2; done", ""), "last", 1)
	in := eventuallyInstance(c, "last", "running", func(in *rikv1alpha1.Instance) bool { return in.Status.Ready })
	follow := c.LineReader("logs", "-f", in.Name)
	follow.WaitLine("^up$")
	c.Rikctl("delete", "workload", "last")
	follow.WaitLine("^LASTWORDS$")
}

func probes(t *testing.T, c *rikcluster.Cluster, image string) {
	manifest := rikcluster.Manifest("probed", image, "touch /alive; exec sleep 100000", "") + `      readinessProbe: {exec: {command: ["/bin/cat", "/ready"]}, periodSeconds: 1}
      livenessProbe: {exec: {command: ["/bin/cat", "/alive"]}, periodSeconds: 1, failureThreshold: 2}
`
	apply(t, c, manifest, "probed", 1)
	in := eventuallyInstance(c, "probed", "running and not ready, with the reason", func(in *rikv1alpha1.Instance) bool {
		return in.Status.Phase == rikv1alpha1.InstanceRunning && !in.Status.Ready && strings.Contains(in.Status.Message, "readiness probe failed: the command exited with 1")
	})
	c.Eventually(func() error { // its event comes after its status
		if got := c.Rikctl("describe", "instance", in.Name); !strings.Contains(got, "Unhealthy") {
			return fmt.Errorf("no event says that it is not ready:\n%s", got)
		}
		return nil
	})
	c.Rikctl("exec", in.Name, "--", "/bin/touch", "/ready")
	eventuallyInstance(c, "probed", "ready", func(in *rikv1alpha1.Instance) bool { return in.Status.Ready })
	c.Rikctl("exec", in.Name, "--", "/bin/rm", "/alive")
	eventuallyInstance(c, "probed", "restarted", func(in *rikv1alpha1.Instance) bool {
		return in.Status.Containers[0].RestartCount > 0
	})
	c.Rikctl("delete", "workload", "probed")
}

func rollout(t *testing.T, c *rikcluster.Cluster, image string) {
	version := func(v string) string {
		return rikcluster.Manifest("auto", image, "echo "+v+"; exec sleep 100000", "  deploy: Automatic\n  replicas: 3")
	}
	apply(t, c, version("one"), "auto", 0)
	c.Rikctl("rollout", "status", "workload/auto", "--timeout=110s")
	logs := func(want string, count int) {
		t.Helper()
		c.Eventually(func() error {
			list := instancesOf(c, "auto")
			if len(list) != count {
				return fmt.Errorf("%d instances, want %d", len(list), count)
			}
			for _, in := range list {
				if out := c.TryRikctl("logs", in.Name); out.Stdout != want+"\n" {
					return fmt.Errorf("%s says %q, want %q", in.Name, out.Stdout, want)
				}
			}
			return nil
		})
	}
	logs("one", 3)
	apply(t, c, version("two"), "auto", 0)
	c.Rikctl("rollout", "status", "workload/auto", "--timeout=110s")
	logs("two", 3)
	if got := c.Rikctl("rollout", "history", "workload/auto"); strings.Count(got, "auto-") < 2 {
		t.Errorf("rollout history does not show two revisions:\n%s", got)
	}
	c.Rikctl("rollout", "undo", "workload/auto")
	logs("one", 3)
	c.Rikctl("scale", "workload", "auto", "--replicas", "1")
	logs("one", 1)
	c.Rikctl("delete", "workload", "auto")
}

func sharedPod(t *testing.T, c *rikcluster.Cluster, image string) {
	manifest := rikcluster.Manifest("pair", image, "exec httpd -f -p 8080 -h /", "") + `    - name: other
      image: ` + image + `
      command: ["/bin/sh", "-c", "exec sleep 100000"]
`
	apply(t, c, manifest, "pair", 1)
	waitReady(c, "pair")
	name := instancesOf(c, "pair")[0].Name
	c.Eventually(func() error {
		out := c.TryRikctl("exec", name, "-c", "other", "--", "/bin/wget", "-q", "-O", "-", "http://127.0.0.1:8080/etc/hostname")
		if strings.TrimSpace(out.Stdout) != name {
			return fmt.Errorf("the other container reads %q, %w", out.Stdout, out.Err)
		}
		return nil
	})
	c.Rikctl("delete", "workload", "pair")
}
