package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/testkit/output"
)

func TestPrivilegedRunToCompletion(t *testing.T) {
	t.Parallel()
	n := newNode(t).bare()
	n.start()
	in := podOf("u1", rikv1alpha1.RestartNever, sh("main", "echo out; echo err >&2; printf half"))
	n.ensure(in)
	n.ensure(in) // Ensure is idempotent
	s := n.awaitPhase("u1", rikv1alpha1.InstanceCompleted)
	if c := s.Containers[0]; c.ExitCode == nil || *c.ExitCode != 0 || c.Reason != reasonCompleted || c.ImageDigest == "" || c.RestartCount != 0 {
		t.Errorf("container = %+v", c)
	}
	got := n.log("u1", "")
	for _, want := range []string{"out\n", "err\n", "half"} {
		if !strings.Contains(got, want) {
			t.Errorf("log = %q, want %q in it", got, want)
		}
	}
	n.stop("u1", -1)
}

func TestPrivilegedFailureKeepsItsCode(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartNever, sh("main", "exit 42"), sh("killed", "kill -9 $$")))
	s := n.awaitPhase("u1", rikv1alpha1.InstanceFailed)
	// PID 1 of a namespace ignores a SIGKILL from itself: the shell continues and exits.
	if c := s.Containers[0]; c.ExitCode == nil || *c.ExitCode != 42 || c.Reason != reasonError {
		t.Errorf("container = %+v", c)
	}
	if !strings.Contains(s.Message, `"main" exited with 42`) {
		t.Errorf("message = %q", s.Message)
	}
	n.stop("u1", -1)
}

func TestPrivilegedExec(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, sh("main", "echo data > /etc/passwd; touch /set; "+forever)))
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	ctx := t.Context()
	eventually(t, func() string {
		if code, err := d.Exec(ctx, "u1", "", instance.ExecOptions{Command: []string{"/bin/test", "-e", "/set"}}); code != 0 || err != nil {
			return fmt.Sprintf("the script has not come to its wait: %d, %v", code, err)
		}
		return ""
	})

	var stdout, stderr bytes.Buffer
	code, err := d.Exec(ctx, "u1", "", instance.ExecOptions{
		Command: []string{"/bin/sh", "-c", "cat; hostname; echo no >&2; exit 7"},
		Stdin:   strings.NewReader("given\n"), Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil || code != 7 || stdout.String() != "given\nname-of-u1\n" || stderr.String() != "no\n" {
		t.Errorf("Exec() = %d, %v, %q, %q", code, err, stdout.String(), stderr.String())
	}
	stdout.Reset()
	resize := make(chan instance.Size, 1)
	code, err = d.Exec(ctx, "u1", "main", instance.ExecOptions{
		Command: []string{"/bin/sh", "-c", "tty && until [ \"$(stty size)\" = '33 77' ]; do sleep 0.05; done; stty size; exit 3"},
		TTY:     true, Stdout: &stdout, Resize: resizeTo(resize, instance.Size{Width: 77, Height: 33}),
	})
	if err != nil || code != 3 || !strings.Contains(stdout.String(), "/dev/pts/") || !strings.Contains(stdout.String(), "33 77") {
		t.Errorf("Exec() with a terminal = %d, %v, %q", code, err, stdout.String())
	}
	execWithoutProgram(t, d)
	short, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	started := &signalWriter{wrote: make(chan struct{}, 10)}
	go func() {
		_, err := d.Exec(short, "u1", "main", instance.ExecOptions{Command: []string{"/bin/sh", "-c", "echo here; exec sleep 4242"}, Stdout: started})
		ended <- err
	}()
	<-started.wrote
	cancel()
	if err := <-ended; err == nil {
		t.Error("Exec() whose context ended = nil, want an error")
	}
	eventually(t, func() string {
		var out bytes.Buffer
		_, _ = d.Exec(ctx, "u1", "main", instance.ExecOptions{Command: []string{"/bin/ps"}, Stdout: &out})
		if strings.Contains(out.String(), "4242") {
			return "the command still runs: " + out.String()
		}
		return ""
	})
	n.stop("u1", -1)
	if _, err := d.Exec(ctx, "u1", "main", instance.ExecOptions{Command: []string{"true"}}); err == nil {
		t.Error("Exec() in a removed instance = nil, want an error")
	}
}

// execWithoutProgram executes missing files and files that are no programs. The exit codes are
// those of a shell, and the message names the file. A command's own exit code 255 is unchanged.
func execWithoutProgram(t *testing.T, d *Driver) {
	t.Helper()
	for _, tc := range []struct {
		command string
		code    int
	}{
		{"no-such", 127}, {"/no/such", 127}, {"/etc/passwd", 126}, {"/etc", 126},
	} {
		for _, tty := range []bool{false, true} {
			var out bytes.Buffer
			o := instance.ExecOptions{Command: []string{tc.command}, TTY: tty, Stdout: &out}
			if !tty {
				o.Stderr = &out
			}
			code, err := d.Exec(t.Context(), "u1", "main", o)
			if err != nil || code != tc.code || !strings.Contains(out.String(), tc.command) {
				t.Errorf("Exec(%s), terminal %t = %d, %v, %q; want %d and its name", tc.command, tty, code, err, out.String(), tc.code)
			}
		}
	}
	for script, want := range map[string]int{"exit 255": 255, "kill -9 $$": 137, "kill -TERM $$": 143} {
		if code, err := d.Exec(t.Context(), "u1", "main", instance.ExecOptions{Command: []string{"/bin/sh", "-c", script}}); err != nil || code != want {
			t.Errorf("Exec(%s) = %d, %v, want %d", script, code, err, want)
		}
	}
}

func resizeTo(c chan instance.Size, s instance.Size) <-chan instance.Size {
	c <- s
	return c
}

type signalWriter struct{ wrote chan struct{} }

func (s *signalWriter) Write(p []byte) (int, error) {
	s.wrote <- struct{}{}
	return len(p), nil
}

func TestPrivilegedTerminal(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	c := sh("main", "tty; echo $TERM")
	c.TTY = true
	n.ensure(podOf("u1", rikv1alpha1.RestartNever, c))
	n.awaitPhase("u1", rikv1alpha1.InstanceCompleted)
	if got := strings.ReplaceAll(n.log("u1", ""), "\r", ""); got != "/dev/pts/0\nxterm\n" {
		t.Errorf("log = %q", got)
	}
}

func TestPrivilegedRestartsWithBackOff(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartOnFailure, sh("main", "echo run; test -e /v/second && exit 0; touch /v/second; exit 5")))
	in := podOf("u2", rikv1alpha1.RestartOnFailure, sh("main", "echo run $(cat /v/n 2>/dev/null); test -e /v/n && exit 0; echo 2 > /v/n; exit 5"))
	in.Template.Volumes = []rikv1alpha1.Volume{{Name: "v", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}}
	in.Template.Containers[0].VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "v", MountPath: "/v"}}
	n.ensure(in)
	// The volume survives the restart. The root file system does not (u1 has no volume and
	// continues).
	s := n.await("u2", "completed", func(s rikv1alpha1.InstanceStatus) bool { return s.Phase == rikv1alpha1.InstanceCompleted })
	if s.Containers[0].RestartCount != 1 {
		t.Errorf("restarts = %d, want 1", s.Containers[0].RestartCount)
	}
	if got := n.log("u2", ""); got != "run 2\n" {
		t.Errorf("log = %q, want that of the second run", got)
	}
	var previous bytes.Buffer
	err := n.driver.Logs(t.Context(), "u2", "main", instance.LogOptions{Previous: true}, &previous)
	if err != nil || !strings.HasPrefix(previous.String(), "run") || strings.Contains(previous.String(), "run 2") {
		t.Errorf("previous log = %q, %v", previous.String(), err)
	}
	n.await("u1", "crash looping", func(s rikv1alpha1.InstanceStatus) bool {
		return s.Reason == reasonCrashLoop && s.Containers[0].RestartCount > 0 && s.Phase == rikv1alpha1.InstanceRunning
	})
	n.stop("u1", 0)
	n.stop("u2", 0)
}

func TestPrivilegedInitContainersInOrder(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	in := podOf("u1", rikv1alpha1.RestartNever, sh("main", "cat /v/log; echo main"))
	in.Template.InitContainers = []rikv1alpha1.Container{sh("one", "sleep 0.2; echo one >> /v/log"), sh("two", "echo two >> /v/log")}
	in.Template.Volumes = []rikv1alpha1.Volume{{Name: "v", EmptyDir: &rikv1alpha1.EmptyDirVolume{InMemory: true, SizeLimitBytes: 1 << 20}}}
	mount := []rikv1alpha1.VolumeMount{{Name: "v", MountPath: "/v"}}
	in.Template.Containers[0].VolumeMounts = mount
	for i := range in.Template.InitContainers {
		in.Template.InitContainers[i].VolumeMounts = mount
	}
	n.ensure(in)
	n.awaitPhase("u1", rikv1alpha1.InstanceCompleted)
	if got := n.log("u1", "main"); got != "one\ntwo\nmain\n" {
		t.Errorf("log = %q", got)
	}
	bad := podOf("u2", rikv1alpha1.RestartNever, sh("main", forever))
	bad.Template.InitContainers = []rikv1alpha1.Container{sh("one", "exit 9")}
	n.ensure(bad)
	s := n.awaitPhase("u2", rikv1alpha1.InstanceFailed)
	if s.Reason != reasonInitFailed || s.Containers[0].State != rikv1alpha1.ContainerWaiting {
		t.Errorf("status = %+v", s)
	}
}

func TestPrivilegedGraceThenKill(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	handlesTerm := sh("polite", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 1000 & wait $!; done")
	ignoresTerm := sh("stubborn", "trap '' TERM; echo up; while :; do sleep 1; done")
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, handlesTerm, ignoresTerm))
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	for _, name := range []string{"polite", "stubborn"} { // PID 1 gets no unhandled signal
		eventually(t, func() string { return cmp.Diff("up\n", n.log("u1", name)) })
	}
	follow := &output.Buffer{}
	followed := make(chan error, 1)
	go func() {
		followed <- n.driver.Logs(context.Background(), "u1", "polite", instance.LogOptions{Follow: true}, follow)
	}()
	n.driver.Stop("u1", time.Hour)
	eventually(t, func() string {
		if !strings.Contains(follow.String(), "bye") {
			return "the polite one did not get its signal: " + follow.String()
		}
		return ""
	})
	if s := n.status("u1"); s.Phase != rikv1alpha1.InstanceDestroying {
		t.Errorf("phase = %s while one ignores the signal", s.Phase)
	}
	n.stop("u1", 0) // a shorter grace period applies at once
	if err := <-followed; err != nil {
		t.Errorf("following the log = %v", err)
	}
}

// A log follower receives the last output of a deleted container.
func TestPrivilegedLastLogLinesAreFollowed(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, sh("main", "trap 'echo LASTWORDS; exit 3' TERM; echo up; while :; do sleep 0.2; done")))
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	follow := &output.Buffer{}
	followed := make(chan error, 1)
	go func() {
		followed <- n.driver.Logs(context.Background(), "u1", "main", instance.LogOptions{Follow: true}, follow)
	}()
	eventually(t, func() string { return cmp.Diff("up\n", follow.String()) })
	n.stop("u1", time.Hour)
	if err := <-followed; err != nil || follow.String() != "up\nLASTWORDS\n" {
		t.Errorf("followed %q, %v", follow.String(), err)
	}
}

func TestPrivilegedOutOfMemory(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	c := sh("main", "x=a; while :; do x=$x$x; done")
	c.Resources.Limits = rikv1alpha1.ResourceList{rikv1alpha1.ResourceMemory: quantity("32Mi")}
	n.ensure(podOf("u1", rikv1alpha1.RestartNever, c))
	s := n.awaitPhase("u1", rikv1alpha1.InstanceFailed)
	if got := s.Containers[0]; got.Reason != reasonOOMKilled || got.ExitCode == nil || *got.ExitCode != 137 {
		t.Errorf("container = %+v", got)
	}
}

// The kernel kills the process that needs the memory, which may not be a container's first
// process. The first process may continue, or exit with any code.
func TestPrivilegedOutOfMemoryOfAnotherProcess(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	const eat = "sh -c 'x=a; while :; do x=$x$x; done'; "
	for uid, script := range map[string]string{"u1": eat + "exit 3", "u2": eat + "exit 0", "u3": eat + forever} {
		c := sh("main", script)
		c.Resources.Limits = rikv1alpha1.ResourceList{rikv1alpha1.ResourceMemory: quantity("32Mi")}
		n.ensure(podOf(uid, rikv1alpha1.RestartNever, c))
	}
	s := n.awaitPhase("u1", rikv1alpha1.InstanceFailed)
	if got := s.Containers[0]; got.Reason != reasonOOMKilled || got.ExitCode == nil || *got.ExitCode != 3 || !strings.Contains(got.Message, "exited with 3") {
		t.Errorf("one that exits with 3: container = %+v", got)
	}
	s = n.awaitPhase("u2", rikv1alpha1.InstanceCompleted)
	if got := s.Containers[0]; got.Reason != reasonOOMKilled || got.ExitCode == nil || *got.ExitCode != 0 {
		t.Errorf("one that exits with 0: container = %+v", got)
	}
	s = n.await("u3", "short of memory", func(s rikv1alpha1.InstanceStatus) bool {
		return len(s.Containers) > 0 && s.Containers[0].LastState != nil
	})
	got := s.Containers[0]
	if last := got.LastState; got.State != rikv1alpha1.ContainerRunning || got.RestartCount != 0 || last.Reason != reasonOOMKilled || !strings.Contains(last.Message, "the container keeps running") {
		t.Errorf("one that keeps running: container = %+v, last state %+v", got, last)
	}
	n.stop("u3", time.Second)
}

// TestPrivilegedLastState checks that the end of a run is still known during the next run, also
// after a restart of the riklet.
func TestPrivilegedLastState(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	c := sh("main", "[ -e /e/again ] && exec sleep 100000; touch /e/again; x=a; while :; do x=$x$x; done")
	c.Resources.Limits = rikv1alpha1.ResourceList{rikv1alpha1.ResourceMemory: quantity("32Mi")}
	c.VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "e", MountPath: "/e"}}
	in := podOf("u1", rikv1alpha1.RestartAlways, c)
	in.Template.Volumes = []rikv1alpha1.Volume{{Name: "e", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}}
	n.ensure(in)
	again := func(s rikv1alpha1.InstanceStatus) bool {
		return len(s.Containers) == 1 && s.Containers[0].State == rikv1alpha1.ContainerRunning && s.Containers[0].RestartCount == 1
	}
	check := func(when string) {
		t.Helper()
		got := n.await("u1", "running again", again).Containers[0]
		last := got.LastState
		if last == nil || last.Reason != reasonOOMKilled || last.ExitCode != 137 || last.FinishedAt == nil || got.ExitCode != nil || got.Reason != "" {
			t.Errorf("%s: container = %+v, last state %+v; want the OOM kill in the last state only", when, got, last)
		}
	}
	check("after the restart")
	n.end()
	n.start()
	check("with another agent")
	n.stop("u1", 0)
}

func TestPrivilegedVolumesAndEnvironment(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	n.objects.configMaps["cm"] = map[string][]byte{"a": []byte("1"), "b": []byte("2")}
	n.objects.secrets["s"] = map[string][]byte{"key": []byte("hidden")}
	host := t.TempDir()
	c := sh("main", `echo "$A $B $NAME $C"; cat /cm/a /s/deep/er; stat -c %a /s/deep/er; ls /sub; echo x > /host/made; `+
		`touch /cm/no 2>&1 || true; cat /etc/hostname; `+forever)
	c.EnvFrom = []rikv1alpha1.EnvFromSource{{ConfigMap: "cm", Prefix: "CM_"}}
	c.Env = []rikv1alpha1.EnvVar{
		{Name: "A", ValueFrom: &rikv1alpha1.EnvVarSource{SecretKeyRef: &rikv1alpha1.KeyRef{Name: "s", Key: "key"}}},
		{Name: "B", Value: "$(CM_b)-$(A)"},
		{Name: "NAME", ValueFrom: &rikv1alpha1.EnvVarSource{FieldRef: "metadata.name"}},
		{Name: "C", ValueFrom: &rikv1alpha1.EnvVarSource{ConfigMapKeyRef: &rikv1alpha1.KeyRef{Name: "none", Key: "k", Optional: true}}},
	}
	c.VolumeMounts = []rikv1alpha1.VolumeMount{
		{Name: "cm", MountPath: "/cm"}, {Name: "s", MountPath: "/s"}, {Name: "e", MountPath: "/sub", SubPath: "in/side"}, {Name: "h", MountPath: "/host"},
	}
	in := podOf("u1", rikv1alpha1.RestartAlways, c)
	in.Template.Volumes = []rikv1alpha1.Volume{
		{Name: "cm", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "cm"}},
		{Name: "s", Secret: &rikv1alpha1.ObjectVolume{Name: "s", Items: []rikv1alpha1.KeyToPath{{Key: "key", Path: "deep/er"}}}},
		{Name: "e", EmptyDir: &rikv1alpha1.EmptyDirVolume{}},
		{Name: "h", HostPath: &rikv1alpha1.HostPathVolume{Path: host + "/new", Create: true}},
	}
	n.ensure(in)
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	want := "hidden 2-hidden name-of-u1 \n1hidden400\ntouch: /cm/no: Read-only file system\nname-of-u1\n"
	eventually(t, func() string { return cmp.Diff(want, n.log("u1", "")) })

	n.objects.setConfigMap("cm", map[string][]byte{"c": []byte("changed")})
	d.ObjectsChanged()
	eventually(t, func() string {
		var out bytes.Buffer
		_, err := d.Exec(t.Context(), "u1", "", instance.ExecOptions{Command: []string{"/bin/sh", "-c", "ls /cm; cat /cm/c"}, Stdout: &out})
		if err != nil || out.String() != "c\nchanged" {
			return out.String()
		}
		return ""
	})
	n.stop("u1", -1)
	if _, err := readFile(host + "/new/made"); err != nil {
		t.Errorf("the file in the node's path is missing: %v", err)
	}
}

// A container that writes endlessly to the files that the node mounts in it fills only its own
// small file system, also over restarts.
func TestPrivilegedFilesOfTheNodeAreBounded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	fill := sh("fill", "for f in hosts hostname resolv.conf; do dd if=/dev/zero bs=64k of=/etc/$f 2>/dev/null; done; cat /etc/* > /dev/null; echo full; exit 1")
	fill.User = "0"
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, fill, sh("beside", forever)))
	n.await("u1", "restarted", func(s rikv1alpha1.InstanceStatus) bool {
		return len(s.Containers) > 0 && s.Containers[0].RestartCount >= 1
	})
	var st unix.Statfs_t
	if err := unix.Statfs(d.paths.PodFile("u1", ""), &st); err != nil || int64(st.Blocks)*st.Bsize > podFileBytes+2*roundUp(1) {
		t.Errorf("the files may take %d bytes, %v, want %d at most", int64(st.Blocks)*st.Bsize, err, podFileBytes+2*roundUp(1))
	}
	if err := unix.Statfs(filepath.Join(d.paths.RunDir("u1"), "shm"), &st); err != nil || int64(st.Blocks)*st.Bsize != 64<<20 {
		t.Errorf("/dev/shm has %d bytes, %v, want %d", int64(st.Blocks)*st.Bsize, err, 64<<20)
	}
	if err := unix.Statfs(d.paths.RunDir(""), &st); err != nil || st.Bavail == 0 {
		t.Errorf("the node's run directory has %d blocks left, %v", st.Bavail, err)
	}
	n.ensure(podOf("u2", rikv1alpha1.RestartAlways, sh("main", forever)))
	n.awaitPhase("u2", rikv1alpha1.InstanceRunning)
	if code, err := d.Exec(t.Context(), "u1", "beside", instance.ExecOptions{Command: []string{"true"}}); code != 0 || err != nil {
		t.Errorf("a command in the other container = %d, %v", code, err)
	}
	// A new supervisor starts with intact files.
	n.killSupervisor("u1")
	n.await("u1", "started again", func(s rikv1alpha1.InstanceStatus) bool {
		return s.Containers[1].RestartCount == 1 && s.Containers[1].State == rikv1alpha1.ContainerRunning
	})
	for _, uid := range []string{"u1", "u2"} {
		n.stop(uid, time.Second)
	}
}

// An instance that fills the node's disk is evicted, and what it wrote is removed. Its log stays.
func TestPrivilegedDiskFillerIsEvicted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	fill := func(root, volume string) rikv1alpha1.Container {
		c := sh("main", "dd if=/dev/zero of=/tmp/f bs=1M count="+root+" 2>/dev/null; dd if=/dev/zero of=/v/f bs=1M count="+volume+" 2>/dev/null; sync; echo written; trap '' TERM; while :; do sleep 1000; done")
		c.VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "v", MountPath: "/v"}}
		return c
	}
	for uid, c := range map[string]rikv1alpha1.Container{"u1": fill("20", "20"), "u2": fill("25", "1"), "u3": fill("1", "50")} {
		in := podOf(uid, rikv1alpha1.RestartAlways, c)
		in.Template.TerminationGracePeriodSeconds = new(int64(3600)) // an eviction ignores it
		in.Template.Volumes = []rikv1alpha1.Volume{{Name: "v", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}}
		if uid == "u3" { // it requested what it uses
			in.Template.Containers[0].Resources.Requests = rikv1alpha1.ResourceList{rikv1alpha1.ResourceDisk: quantity("1Gi")}
		}
		n.ensure(in)
	}
	for _, uid := range []string{"u1", "u2", "u3"} {
		n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
		eventually(t, func() string { return cmp.Diff("written\n", n.log(uid, "main")) })
	}
	for _, want := range []string{"u1", "u2"} {
		if uid, err := d.Evict(t.Context()); uid != want || err != nil {
			t.Fatalf("Evict() = %q, %v, want %s", uid, err, want)
		}
		s := n.awaitPhase(want, rikv1alpha1.InstanceFailed)
		if s.Reason != reasonEvicted || !strings.Contains(s.Message, "nearly full") {
			t.Errorf("status = %+v", s)
		}
		for _, place := range []string{filepath.Join(d.paths.RootDir(want), "volumes"), n.images.Written(engine.ContainerID(want, "main"))} {
			if _, err := os.Stat(place); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %s exists: %v", want, place, err)
			}
		}
		if got := n.log(want, "main"); got != "written\n" {
			t.Errorf("%s: the log is %q", want, got)
		}
	}
	if uid, err := d.Evict(t.Context()); uid != "" || err != nil {
		t.Errorf("Evict() of an instance that uses what it requested = %q, %v", uid, err)
	}
	for _, uid := range []string{"u1", "u2", "u3"} {
		n.stop(uid, time.Second)
	}
}

// The run directory of an instance is a separate file system. Here a Secret has more keys than
// fit into it.
func TestPrivilegedObjectsOfAnInstanceAreBounded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	many := map[string][]byte{}
	for i := range engine.RunDirInodes {
		many["k"+strconv.Itoa(i)] = []byte("x")
	}
	n.objects.setConfigMap("many", many)
	in := podOf("u1", rikv1alpha1.RestartAlways, sh("main", forever))
	in.Template.Volumes = []rikv1alpha1.Volume{{Name: "v", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "many"}}}
	n.ensure(in)
	s := n.await("u1", "refused", func(s rikv1alpha1.InstanceStatus) bool { return s.Reason != "" && s.Message != "" })
	if !strings.Contains(s.Message, "32 MiB and 16384 files") {
		t.Errorf("the message is %q", s.Message)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(d.cfg.Run, &st); err != nil || st.Ffree < st.Files/2 {
		t.Errorf("the node's run directory has %d of %d files left, %v", st.Ffree, st.Files, err)
	}
	n.ensure(podOf("u2", rikv1alpha1.RestartAlways, sh("main", forever)))
	n.awaitPhase("u2", rikv1alpha1.InstanceRunning)
	for _, uid := range []string{"u1", "u2"} {
		n.stop(uid, time.Second)
	}
}

// runAsNonRoot applies to the user that the container really has: its own, or the image's, which
// is root here.
func TestPrivilegedRunAsNonRoot(t *testing.T) {
	t.Parallel()
	for name, newNode := range map[string]func(*testing.T) *node{"container": func(t *testing.T) *node { return newNode(t) }, "microVM": newVMNode} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.start()
			for user, want := range map[string]string{"": "would run as root", "0": "would run as root", "0:5": "would run as root", "root": "would run as root", "1001": "", "nobody": ""} {
				c := sh("main", "id -u")
				c.User, c.Security = user, &rikv1alpha1.Security{RunAsNonRoot: true}
				in := podOf("as-"+strings.ReplaceAll(user, ":", "-")+"-x", rikv1alpha1.RestartNever, c)
				if name == "microVM" {
					in.Template.Isolation = rikv1alpha1.IsolationMicroVM
				}
				n.ensure(in)
				s := n.await(in.UID, "over", func(s rikv1alpha1.InstanceStatus) bool { return s.Phase.Ended() })
				if want == "" && s.Phase != rikv1alpha1.InstanceCompleted || want != "" && (s.Phase != rikv1alpha1.InstanceFailed || !strings.Contains(s.Message, want)) {
					t.Errorf("as %q: %s, %q; want %q", user, s.Phase, s.Message, want)
				}
			}
		})
	}
}

// A user who may write to a volume may write below its subPaths, also if the directories did not
// exist.
func TestPrivilegedSubPathsHaveTheVolumesMode(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	c := sh("main", "echo mine > /disk/x; echo mine > /memory/x; cat /disk/x /memory/x; stat -c %a /disk /memory /all/a /all/a/b")
	c.User = "1001"
	c.VolumeMounts = []rikv1alpha1.VolumeMount{
		{Name: "disk", MountPath: "/disk", SubPath: "a/b/c"}, {Name: "memory", MountPath: "/memory", SubPath: "a"}, {Name: "disk", MountPath: "/all"},
	}
	in := podOf("u1", rikv1alpha1.RestartNever, c)
	in.Template.Volumes = []rikv1alpha1.Volume{
		{Name: "disk", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}, {Name: "memory", EmptyDir: &rikv1alpha1.EmptyDirVolume{InMemory: true}},
	}
	n.ensure(in)
	n.awaitPhase2("u1", rikv1alpha1.InstanceCompleted)
	if got := n.log("u1", ""); got != "mine\nmine\n777\n777\n777\n777\n" {
		t.Errorf("the log is %q", got)
	}
}

func TestPrivilegedSharedNamespaces(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	a := sh("a", "echo from a > /dev/shm/x; echo hello > /tmp/index.html; exec httpd -f -p 8080 -h /tmp")
	b := sh("b", "until [ -e /dev/shm/x ]; do sleep 0.05; done; cat /dev/shm/x; until wget -q -O - http://127.0.0.1:8080/ 2>/dev/null; do sleep 0.05; done; id -u; "+forever)
	b.User = "nobody"
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, a, b))
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	eventually(t, func() string { return cmp.Diff("from a\nhello\n65534\n", n.log("u1", "b")) })
	conn, err := d.Dial(t.Context(), "u1", 8080)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(answer), "hello\n") {
		t.Errorf("dialed answer = %q, %v", answer, err)
	}
	if u, err := d.Usage("u1"); err != nil || u.CPUNanos == 0 || u.MemoryBytes == 0 || u.StartedAt.IsZero() {
		t.Errorf("Usage() = %+v, %v", u, err)
	}
}
