package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/oci"
)

// The published riklet reported Terminated and deleted nothing. In this test, a stop cannot succeed
// yet. It is not reported as Terminated. Its obstacle is reported, and it is retried.
func TestPrivilegedFault11TerminatedMeansNothingIsLeft(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	stuck := make(chan struct{})
	n.cfg.Hook = func(step string, at lifecycle.Point) error {
		select {
		case <-stuck:
			return nil
		default:
		}
		if step == stepRootfs && at == lifecycle.BeforeUndo {
			return fmt.Errorf("target is busy")
		}
		return nil
	}
	n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, sh("main", forever)))
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	n.driver.Stop("u1", 0)
	s := n.await("u1", "stuck", func(s rikv1alpha1.InstanceStatus) bool { return s.Reason == reasonStopFailed })
	if s.Phase != rikv1alpha1.InstanceDestroying || !strings.Contains(s.Message, "target is busy") {
		t.Errorf("status = %+v", s)
	}
	if len(n.leftOf("u1")) == 0 {
		t.Error("nothing is left although the root could not be unmounted")
	}
	close(stuck)
	n.stop("u1", 0)
	n.driver.Stop("unknown", 0)
	n.awaitPhase("unknown", rikv1alpha1.InstanceTerminated)
}

// The published riklet had no environment variables, limits, shared network, restarts, logs or
// exec. This test covers some of them, and other tests cover the rest.
func TestPrivilegedFault12LimitsAndExitsCount(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	c := sh("main", "echo $GREETING; exit 4")
	c.Env = []rikv1alpha1.EnvVar{{Name: "GREETING", Value: "hello"}}
	c.Resources.Limits = rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: quantity("250m"), rikv1alpha1.ResourceMemory: quantity("32Mi")}
	idle := sh("idle", forever)
	idle.Resources = c.Resources
	n.ensure(podOf("u1", rikv1alpha1.RestartOnFailure, c, idle))
	n.await("u1", "restarted", func(s rikv1alpha1.InstanceStatus) bool {
		return len(s.Containers) > 0 && s.Containers[0].RestartCount > 0
	})
	eventually(t, func() string { // the run may have just begun
		if got := n.log("u1", "main"); got != "hello\n" {
			return "log = " + got
		}
		return ""
	})
	all, parent := uint64(runtime.NumCPU())*1024, n.cfg.CgroupParent
	for _, file := range []struct{ v1, v2, group, want1, want2 string }{
		{"memory/%s/memory.limit_in_bytes", "%s/memory.max", parent + "/u1/idle", "33554432", "33554432"},
		{"cpu/%s/cpu.cfs_quota_us", "%s/cpu.max", parent + "/u1/idle", "25000", "25000 100000"},
		{"pids/%s/pids.max", "%s/pids.max", parent + "/u1/idle", "4096", "4096"},
		{"cpu/%s/cpu.shares", "%s/cpu.weight", parent + "/u1/idle", "256", "35"},
		{"cpu/%s/cpu.shares", "%s/cpu.weight", parent + "/u1", "512", "59"},
		{"cpu/%s/cpu.shares", "%s/cpu.weight", parent, fmt.Sprint(all), fmt.Sprint(cgroups.ConvertCPUSharesToCgroupV2Value(all))},
	} {
		got, err := readFile("/sys/fs/cgroup/" + fmt.Sprintf(file.v1, file.group))
		want := file.want1
		if err != nil {
			got, err = readFile("/sys/fs/cgroup/" + fmt.Sprintf(file.v2, file.group))
			want = file.want2
		}
		if err != nil || strings.TrimSpace(got) != want {
			t.Errorf("%s of %s = %q, %v; want %s", file.v1, file.group, got, err, want)
		}
	}
}

// Instances of one image once wrote into each other's files.
func TestPrivilegedFault13RootsAreNotShared(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	script := "test -e /mine && echo shared; echo $NAME > /mine; " + forever
	for _, uid := range []string{"u1", "u2"} {
		c := sh("main", script)
		c.Env = []rikv1alpha1.EnvVar{{Name: "NAME", Value: uid}}
		n.ensure(podOf(uid, rikv1alpha1.RestartAlways, c))
	}
	for _, uid := range []string{"u1", "u2"} {
		n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
		eventually(t, func() string {
			var out bytes.Buffer
			_, err := n.driver.Exec(t.Context(), uid, "", instance.ExecOptions{Command: []string{"cat", "/mine"}, Stdout: &out})
			if got := strings.TrimSpace(out.String()); err != nil || got != uid {
				return fmt.Sprintf("/mine = %q, %v", got, err)
			}
			return ""
		})
		if got := n.log(uid, ""); got != "" {
			t.Errorf("log of %s = %q", uid, got)
		}
	}
}

// slowImages delays the pulls of one reference.
type slowImages struct {
	oci.Images
	slow    string
	release chan struct{}
}

func (s *slowImages) Pull(ctx context.Context, r image.PullRequest) (*image.Image, error) {
	if r.Reference == s.slow {
		select {
		case <-s.release:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return s.Images.Pull(ctx, r)
}

// One image pull once blocked every other create and delete.
func TestPrivilegedFault19SlowPullDelaysNoOther(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.open()
	slow := &slowImages{Images: n.images, slow: "oci:/no/such:slow", release: make(chan struct{})}
	d.cfg.Images = slow
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	n.end = func() {
		cancel()
		<-done
		_, _ = d.Close(), n.images.Close()
		n.end = nil
	}
	for i := range 2 * cap(d.startSlots) { // more than start at once
		c := sh("main", forever)
		c.Image = slow.slow
		n.ensure(podOf(fmt.Sprintf("slow-%d", i), rikv1alpha1.RestartAlways, c))
	}
	n.ensure(podOf("quick", rikv1alpha1.RestartAlways, sh("main", forever)))
	n.awaitPhase("quick", rikv1alpha1.InstanceRunning)
	n.stop("quick", -1)
	n.stop("slow-0", -1) // while it still pulls
	if s := n.status("slow-1"); s.Phase != rikv1alpha1.InstanceCreating {
		t.Errorf("phase of what waits for its image = %s", s.Phase)
	}
	close(slow.release)
	n.await("slow-1", "without an image", func(s rikv1alpha1.InstanceStatus) bool { return s.Reason == reasonImagePull })
}

func TestPrivilegedBadImages(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	tests := []struct {
		name, image, reason string
		policy              rikv1alpha1.RestartPolicy
		phase               rikv1alpha1.InstancePhase
	}{
		{"missing-always", "oci:/no/such:image", reasonImagePull, rikv1alpha1.RestartAlways, rikv1alpha1.InstanceCreating},
		{"missing-never", "oci:/no/such:image", reasonImagePull, rikv1alpha1.RestartNever, rikv1alpha1.InstanceFailed},
		{"malformed", "not a reference", reasonInvalidImage, rikv1alpha1.RestartAlways, rikv1alpha1.InstanceFailed},
		{"no-user", tools.image, reasonConfig, rikv1alpha1.RestartAlways, rikv1alpha1.InstanceFailed},
		{"no-program", tools.image, reasonStart, rikv1alpha1.RestartNever, rikv1alpha1.InstanceFailed},
		{"no-configmap", tools.image, reasonConfig, rikv1alpha1.RestartAlways, rikv1alpha1.InstanceCreating},
	}
	for _, tc := range tests {
		c := sh("main", "true")
		c.Image = tc.image
		switch tc.name {
		case "no-user":
			c.User = "somebody"
		case "no-program":
			c.Command = []string{"/no/such/program"}
		case "no-configmap":
			c.EnvFrom = []rikv1alpha1.EnvFromSource{{ConfigMap: "none"}}
		}
		n.ensure(podOf(tc.name, tc.policy, c))
	}
	for _, tc := range tests {
		s := n.await(tc.name, tc.reason, func(s rikv1alpha1.InstanceStatus) bool { return s.Reason == tc.reason && s.Phase == tc.phase })
		if s.Message == "" {
			t.Errorf("%s: no message: %+v", tc.name, s)
		}
		n.stop(tc.name, -1)
	}
}

// If a file is executable but is no program for this machine, only the kernel detects that, after
// the runtime has reported success.
func TestPrivilegedInvalidPrograms(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	spec, err := ociimage.BusyboxSpec()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := os.ReadFile(ociimage.BusyboxPath)
	if err != nil {
		t.Fatal(err)
	}
	copy(foreign[18:], []byte{0xf3, 0xf3}) // e_machine: an unused value
	for name, content := range map[string][]byte{"foreign": foreign, "orphan": []byte("#!/no/such\n"), "text": []byte("text\n")} {
		spec.Files["x/"+name] = ociimage.File{Content: content, Mode: 0o755}
	}
	dir := t.TempDir()
	if _, err := ociimage.Write(dir, "latest", spec); err != nil {
		t.Fatal(err)
	}
	for uid, tc := range map[string]struct {
		script string // "": run the file of that name
		tty    bool
		want   string
	}{
		"foreign": {want: "exec /x/foreign: exec format error (it is neither"}, "text": {want: "exec /x/text: exec format error (it is neither", tty: true},
		"orphan": {want: "exec /x/orphan: no such file or directory (the file exists"},
		"honest": {script: "echo exec format error >&2; exit 255"},
	} {
		c := sh("main", tc.script)
		c.Image, c.TTY = "oci:"+dir+":latest", tc.tty
		if tc.script == "" {
			c.Command = []string{"/x/" + uid}
		}
		n.ensure(podOf(uid, rikv1alpha1.RestartNever, c))
		s := n.awaitPhase(uid, rikv1alpha1.InstanceFailed)
		reason, code := reasonStart, int32(codeNotStarted)
		if tc.want == "" {
			reason, code = reasonError, 255
		}
		if got := s.Containers[0]; s.Reason != reason || got.Reason != reason || *got.ExitCode != code || !strings.Contains(got.Message, tc.want) || !strings.Contains(s.Message, tc.want) {
			t.Errorf("%s: status = %+v", uid, s)
		}
	}
}

func TestPrivilegedImageSettingsCount(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	spec, err := ociimage.BusyboxSpec()
	if err != nil {
		t.Fatal(err)
	}
	spec.Entrypoint, spec.Cmd = []string{"/bin/sh", "-c"}, []string{"id -u; pwd; echo $FROM"}
	spec.Env, spec.User, spec.WorkingDir = append(spec.Env, "FROM=image"), "65534:0", "/made/for/it"
	dir := t.TempDir()
	if _, err := ociimage.Write(dir, "latest", spec); err != nil {
		t.Fatal(err)
	}
	n.ensure(podOf("u1", rikv1alpha1.RestartNever, rikv1alpha1.Container{Name: "main", Image: "oci:" + dir + ":latest"}))
	n.awaitPhase("u1", rikv1alpha1.InstanceCompleted)
	if got := n.log("u1", ""); got != "65534\n/made/for/it\nimage\n" {
		t.Errorf("log = %q", got)
	}
}

func TestPrivilegedFiftyAtOnce(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	n.start()
	var group sync.WaitGroup
	for i := range 50 {
		group.Go(func() {
			uid := fmt.Sprintf("many-%02d", i)
			if err := n.driver.Ensure(podOf(uid, rikv1alpha1.RestartAlways, sh("main", "echo $HOSTNAME; "+forever))); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for i := range 50 {
		uid := fmt.Sprintf("many-%02d", i)
		n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
		eventually(t, func() string {
			if got := n.log(uid, ""); got != "name-of-"+uid+"\n" {
				return "log of " + uid + " = " + got
			}
			return ""
		})
	}
	for i := range 50 {
		n.driver.Stop(fmt.Sprintf("many-%02d", i), -1)
	}
	for i := range 50 {
		n.stop(fmt.Sprintf("many-%02d", i), -1)
	}
	if got := n.driver.List(); len(got) != 0 {
		t.Errorf("List() = %v", got)
	}
}

// The default settings remove the permissions that a container would need first for an escape.
func TestPrivilegedSafeDefaults(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartNever, sh("main", strings.Join([]string{
		"grep -E 'NoNewPrivs|Seccomp:|CapEff' /proc/self/status",
		"touch /sys/x 2>/dev/null && echo sysfs is writable",
		"(echo 1 > /proc/sys/kernel/hostname) 2>/dev/null && echo sysctl is writable",
		"cat /proc/keys 2>/dev/null | wc -c",
		"mount -t tmpfs x /mnt 2>/dev/null && echo mounts",
		"mknod /tmp/d b 8 0 2>/dev/null && cat /tmp/d > /dev/null 2>&1 && echo reads a disk",
		"true",
	}, "\n"))))
	n.awaitPhase("u1", rikv1alpha1.InstanceCompleted)
	want := "CapEff:\t00000000a80405fb\nNoNewPrivs:\t1\nSeccomp:\t2\n0\n"
	if got := n.log("u1", ""); got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
}

// A node in a container has fewer capabilities than the kernel. A privileged container gets those
// of the node. A container that requests another capability fails with an error.
func TestPrivilegedCapabilitiesOfTheNode(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	d.capabilities &^= 1 << unix.CAP_SYSLOG
	privileged, added := sh("main", "grep CapEff /proc/self/status"), sh("main", "true")
	privileged.Security = &rikv1alpha1.Security{Privileged: true}
	added.Security = &rikv1alpha1.Security{AddCapabilities: []string{"SYSLOG"}}
	n.ensure(podOf("privileged", rikv1alpha1.RestartNever, privileged))
	n.ensure(podOf("added", rikv1alpha1.RestartAlways, added))
	n.awaitPhase("privileged", rikv1alpha1.InstanceCompleted)
	if got, want := n.log("privileged", ""), fmt.Sprintf("CapEff:\t%016x\n", uint64(boundingSet()&^(1<<unix.CAP_SYSLOG))); got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	s := n.await("added", "refused", func(s rikv1alpha1.InstanceStatus) bool { return s.Reason == reasonStart })
	if !strings.Contains(s.Message, "CAP_SYSLOG") || !strings.Contains(s.Message, "the node does not have the capability") {
		t.Errorf("status = %+v", s)
	}
}

// The supervisor may be killed too, for example by an administrator.
func TestPrivilegedSupervisorLost(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, sh("main", "echo run; "+forever)))
	n.ensure(podOf("u2", rikv1alpha1.RestartNever, sh("main", forever)))
	for _, uid := range []string{"u1", "u2"} {
		n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
		pid := n.driver.machine(uid).engineRunning().PID
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	n.await("u1", "running again", func(s rikv1alpha1.InstanceStatus) bool {
		return s.Phase == rikv1alpha1.InstanceRunning && s.Containers[0].State == rikv1alpha1.ContainerRunning && s.Containers[0].RestartCount == 1
	})
	s := n.awaitPhase("u2", rikv1alpha1.InstanceFailed)
	if s.Reason != reasonSupervisorLost {
		t.Errorf("status = %+v", s)
	}
	n.stop("u1", 0)
	n.stop("u2", 0)
	if _, err := os.Stat(filepath.Join(n.cfg.Run, "pods")); err != nil {
		t.Error(err)
	}
}

func TestPrivilegedHostNetwork(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	d := n.start()
	in := podOf("u1", rikv1alpha1.RestartAlways, sh("main", "readlink /proc/self/ns/net; hostname; "+forever))
	in.Template.HostNetwork = true
	n.ensure(in)
	s := n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	if s.Address != n.cfg.Node.Address {
		t.Errorf("address = %q", s.Address)
	}
	// Do not use /proc/self, the first thread: other tests may have moved it to another
	// namespace.
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string { return cmp.Diff(own+"\n"+host+"\n", n.log("u1", "")) })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := d.Dial(t.Context(), "u1", int32(listener.Addr().(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	n.stop("u1", 0)
}

func TestPrivilegedAnotherRuntime(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.cfg.Runtimes = map[string]string{"other": n.cfg.Runc}
	n.start()
	in := podOf("u1", rikv1alpha1.RestartAlways, sh("main", forever))
	in.Template.Runtime = "other"
	n.ensure(in)
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	if _, err := os.Stat(filepath.Join(n.cfg.Run, "runtimes", "other", engine.ContainerID("u1", "main"))); err != nil {
		t.Errorf("the other runtime has no state of it: %v", err)
	}
	n.stop("u1", 0)
}

func TestPrivilegedOldRuncIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	old := filepath.Join(n.dir, "runc")
	if err := os.WriteFile(old, []byte("#!/bin/sh\necho runc version 1.1.5+ds1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := n.cfg
	images, err := openImages(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer images.Close()
	cfg.Images, cfg.Runc = images, old
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Recover(t.Context()); !errors.Is(err, oci.ErrOldRunc) || !strings.Contains(err.Error(), "1.1.5") {
		t.Errorf("Recover() = %v, want %v", err, oci.ErrOldRunc)
	}
}
