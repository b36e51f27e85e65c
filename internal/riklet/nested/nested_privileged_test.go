package nested

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/testkit/privileged"
)

// The test program is also the first process of the container, with these variables.
const (
	asFirst = "RIK_TEST_NESTED_DIR"
	inGroup = "RIK_TEST_NESTED_GROUP"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(asFirst); dir != "" {
		os.Exit(first(dir, os.Getenv(inGroup)))
	}
	os.Exit(m.Run())
}

// The riklet of the test: the first run leaves an orphan and dies, the second one waits for SIGTERM.
const riklet = `
cd "$0"
if [ ! -e runs ]; then
  echo 1 >runs
  cat /proc/sys/kernel/random/boot_id >boot-id
  echo 1 >/proc/sys/net/ipv4/ip_forward && cat /proc/sys/net/ipv4/ip_forward >settings
  echo changed >/proc/sys/kernel/domainname 2>/dev/null && echo writable >machine-settings
  cat /proc/self/cgroup >cgroup
  while read -r dir; do mkdir "$dir/made" && rmdir "$dir/made" || echo "$dir" >>read-only; done <groups
  sh -c 'sleep 0.05 & echo $! >orphan'
  (trap "" TERM; trap "echo >left; exit" USR1; while :; do sleep 0.05; done) &
  echo $! >survivor
  kill -9 $$
fi
kill -0 "$(cat survivor)" && echo >survived
until ! kill -0 "$(cat orphan)"; do sleep 0.05; done
trap 'echo >stopped; exit 0' TERM
echo >ready
while :; do sleep 0.05; done
`

// first makes the view of a container, as Docker does with cgroup v1, and runs the node in it.
func first(dir, group string) int {
	runtime.LockOSThread()
	if err := restrict(dir, group); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := Prepare(filepath.Join(dir, "run")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	node := Node{Argv: []string{"/bin/sh", "-c", riklet, dir}, Again: 10 * time.Millisecond, Grace: 300 * time.Millisecond, Logger: slog.Default()}
	code, err := node.Run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func restrict(dir, group string) error {
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		readOnly("/proc/sys", "/proc/sys"),
	)
	layout, detected := cgroup.Detect()
	var groups strings.Builder
	for _, root := range layout.Paths("/") {
		err = errors.Join(err, readOnly(filepath.Join(root, group), root))
		fmt.Fprintln(&groups, root)
	}
	return errors.Join(err, detected, os.WriteFile(filepath.Join(dir, "groups"), []byte(groups.String()), 0o600))
}

func readOnly(source, target string) error {
	return errors.Join(
		unix.Mount(source, target, "", unix.MS_BIND, ""),
		unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID, ""),
	)
}

func TestPrivilegedNodeInAContainer(t *testing.T) {
	privileged.Require(t)
	dir, group := t.TempDir(), fmt.Sprintf("/riktest-nested-%d", os.Getpid())
	cmd := exec.Command(os.Args[0])
	enter(t, cmd, group)
	cmd.Env = append(os.Environ(), asFirst+"="+dir, inGroup+"="+group)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for end := time.Now().Add(30 * time.Second); missing(dir, "ready"); {
		select {
		case err := <-ended:
			t.Fatalf("the first process ended: %v\n%s", err, out.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatal("the node was not started again within 30s")
		}
	}
	check(t, dir)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the container ended with %v, want success\n%s", err, out.String())
	}
	if missing(dir, "stopped") {
		t.Error("the riklet did not get SIGTERM")
	}
	if !strings.Contains(out.String(), "did not end") {
		t.Errorf("the first process did not wait for the process that ignores SIGTERM:\n%s", out.String())
	}
}

// enter starts the command in a group of its own in every hierarchy.
func enter(t *testing.T, cmd *exec.Cmd, group string) {
	t.Helper()
	layout, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	procs, err := layout.Make(group)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := layout.Destroy(ctx, group); err != nil {
			t.Error(err)
		}
	})
	for _, path := range layout.Paths(group) {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The shell enters the group and executes the test program.
	cmd.Args = append([]string{"/bin/sh", "-c", `program=$1; shift; for f; do echo $$ >"$f"; done; exec "$program"`, "sh", cmd.Path}, procs...)
	cmd.Path = "/bin/sh"
	cmd.SysProcAttr = &syscall.SysProcAttr{}
}

func missing(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err != nil
}

func check(t *testing.T, dir string) {
	t.Helper()
	read := func(name string) string {
		data, _ := os.ReadFile(filepath.Join(dir, name))
		return strings.TrimSpace(string(data))
	}
	machine, err := os.ReadFile(bootID)
	if err != nil {
		t.Fatal(err)
	}
	if got := read("boot-id"); len(got) != 36 || got == strings.TrimSpace(string(machine)) {
		t.Errorf("the boot ID is %q, want one that differs from the machine's", got)
	}
	if got := read("settings"); got != "1" {
		t.Errorf("the container's network settings are read-only: net.ipv4.ip_forward = %q", got)
	}
	if !missing(dir, "machine-settings") {
		t.Error("the machine's settings are writable")
	}
	if got := read("read-only"); got != "" {
		t.Errorf("read-only cgroups: %s", got)
	}
	for line := range strings.Lines(read("cgroup")) {
		if strings.Contains(line, "riktest-nested") {
			t.Errorf("the node sees the path of its cgroup on the machine: %s", line)
		}
	}
	if missing(dir, "survived") {
		t.Error("a process of an instance ended with the riklet")
	}
}
