package shim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/logfile"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/privileged"
)

const timeout = 2 * time.Minute

// place is a supervisor for one test. Its containers are plain processes, started by a script
// with the command line of a runtime. The Pod driver's tests use a real runtime.
type place struct {
	testing.TB
	dir, binary string
	cgroups     []string // the cgroup.procs files that its supervisors join
	ctx         context.Context
}

// builtShim is the supervisor's program, in the directory that TestMain removes.
var builtShim = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("/tmp", "rikshim")
	if err != nil {
		return "", err
	}
	shimDir = dir
	binary := filepath.Join(dir, "rik-shim")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "rik.dev/rik/cmd/rik-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building rik-shim: %w: %s", err, out)
	}
	return binary, nil
})

var shimDir string // of builtShim; empty: not created

func TestMain(m *testing.M) {
	code := m.Run()
	if shimDir != "" {
		_ = os.RemoveAll(shimDir)
	}
	os.Exit(code)
}

func newPlace(t testing.TB) *place {
	t.Helper()
	privileged.Require(t)
	dir, err := os.MkdirTemp("/tmp", "rikshim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &place{TB: t, dir: dir, binary: filepath.Join(dir, "rik-shim")}
	built, err := builtShim()
	if err == nil {
		err = os.Link(built, p.binary)
	}
	if err != nil {
		t.Fatal(err)
	}
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	return p
}

func (p *place) socket() string { return filepath.Join(p.dir, "s") }

func (p *place) run() *shim.Client {
	p.Helper()
	c, err := shim.Run(p.ctx, shim.Spawn{
		Binary: p.binary, Socket: p.socket(), Log: filepath.Join(p.dir, "log"),
		Settings: shim.Settings{Hostname: "inside", Loopback: true, Cgroups: p.cgroups},
	})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		if said, err := os.ReadFile(filepath.Join(p.dir, "log")); err != nil || len(said) > 0 {
			p.Errorf("the supervisor reports %s, %v", said, err)
		}
	})
	p.Cleanup(func() {
		c, err := shim.Connect(context.Background(), p.socket())
		if errors.Is(err, shim.ErrGone) {
			return
		}
		if err == nil {
			for _, container := range c.Containers() {
				_ = c.Signal(context.Background(), container.Name, syscall.SIGKILL)
			}
			err = errors.Join(c.Kill(context.Background()), c.Close())
		}
		if err != nil {
			p.Error(err)
		}
	})
	return c
}

// order returns a start whose runtime runs script. The container is the process whose ID the
// script writes to the file $PID. A shell waits for its own children, which a detached runtime
// does not. Therefore a container that ends by itself first calls outlive, which waits until the
// shell is gone.
func (p *place) order(name string, attempt int, script string) shim.Start {
	file := func(kind string) string { return filepath.Join(p.dir, name+"."+kind) }
	return shim.Start{
		Container: name, Attempt: attempt, PIDFile: file("pid"), RuntimeLog: file("runtime"), LogDir: file("logs"),
		MarkFile: file("mark"), ExitFile: file("exit"),
		Argv: []string{"/bin/sh", "-c", "PID=" + file("pid") + "; LOG=" + file("runtime") + "; " + outlive + script},
	}
}

// $$ is the shell that is the runtime, also in the processes that it leaves behind.
const outlive = "outlive() { while kill -0 $$ 2>/dev/null; do sleep 0.01; done; }; "

func (p *place) awaitExit(c *shim.Client) shim.Container {
	p.Helper()
	select {
	case e, ok := <-c.Exits():
		if !ok {
			p.Fatal("the supervisor is gone")
		}
		return e
	case <-p.ctx.Done():
		p.Fatal("no exit was reported")
	}
	panic("unreachable")
}

func TestPrivilegedShimReportsExits(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	got, err := c.Start(p.ctx, p.order("a", 1, "(outlive; hostname; cat /sys/class/net/lo/operstate >&2; exit 7) & echo $! > $PID"))
	if err != nil || got.PID == 0 {
		t.Fatalf("Start() = %+v, %v", got, err)
	}
	if e := p.awaitExit(c); e.Name != "a" || e.ExitCode != 7 || !e.Exited || e.LogError != "" {
		t.Errorf("end = %+v", e)
	}
	var text bytes.Buffer
	if err := logfile.Read(p.ctx, filepath.Join(p.dir, "a.logs"), logfile.Options{Tail: -1}, &text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "inside\n") || !strings.Contains(text.String(), "unknown\n") {
		t.Errorf("log = %q", text.String()) // "unknown" is the state of a loopback that is up
	}
	var noted shim.Container
	data, err := os.ReadFile(filepath.Join(p.dir, "a.exit"))
	if err != nil || json.Unmarshal(data, &noted) != nil || noted.ExitCode != 7 || noted.Attempt != 1 {
		t.Errorf("the recorded exit is %s, %v", data, err)
	}
	if err := c.Shutdown(p.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := shim.Connect(p.ctx, p.socket()); !errors.Is(err, shim.ErrGone) {
		t.Errorf("Connect() = %v, want %v", err, shim.ErrGone)
	}
	if err := c.Shutdown(p.ctx); err != nil {
		t.Errorf("second Shutdown() = %v", err)
	}
}

func TestPrivilegedShimSurvivesItsConnections(t *testing.T) {
	p := newPlace(t)
	first := p.run()
	order := p.order("a", 3, "sleep 1000 & echo $! > $PID")
	got, err := first.Start(p.ctx, order)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := shim.Connect(p.ctx, p.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if list := second.Containers(); len(list) != 1 || list[0].PID != got.PID || list[0].Attempt != 3 || list[0].Starting || list[0].Exited {
		t.Errorf("Containers() = %+v", list)
	}
	if again, err := second.Start(p.ctx, order); err != nil || again.PID != got.PID {
		t.Errorf("the same attempt again = %+v, %v; want process %d", again, err, got.PID)
	}
	order.Attempt = 4
	if _, err := second.Start(p.ctx, order); err == nil {
		t.Error("a second run was started during the first")
	}
	if err := second.Shutdown(p.ctx); !errors.Is(err, shim.ErrBusy) {
		t.Errorf("Shutdown() = %v, want %v", err, shim.ErrBusy)
	}
	if err := second.Signal(p.ctx, "a", syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e := p.awaitExit(second); e.ExitCode != 128+15 {
		t.Errorf("end = %+v", e)
	}
	if err := second.Signal(p.ctx, "a", syscall.SIGTERM); err != nil {
		t.Errorf("Signal() to what has ended = %v", err)
	}
	if err := second.Signal(p.ctx, "b", syscall.SIGTERM); err == nil {
		t.Error("Signal() to what never was = nil")
	}
}

func TestPrivilegedShimReportsRuntimeErrors(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	_, err := c.Start(p.ctx, p.order("a", 1, `echo '{"level":"error","msg":"no such program"}' > $LOG; exit 1`))
	if err == nil || !strings.Contains(err.Error(), "exited with 1: no such program") {
		t.Errorf("Start() = %v", err)
	}
	if mark, err := os.ReadFile(filepath.Join(p.dir, "a.mark")); err != nil || string(mark) != "1" {
		t.Errorf("mark = %q, %v", mark, err)
	}
	order := p.order("b", 1, "true")
	order.Argv = []string{"/no/such/runtime"}
	if _, err := c.Start(p.ctx, order); err == nil {
		t.Error("Start() with a runtime that is not there = nil")
	}
	order = p.order("c", 1, "exit 0")
	order.ConsoleSocket = filepath.Join(p.dir, "tty")
	order.Argv = []string{"/bin/false"}
	if _, err := c.Start(p.ctx, order); err == nil {
		t.Error("Start() that never hands a terminal over = nil")
	}
	// The supervisor still works.
	if _, err := c.Start(p.ctx, p.order("a", 1, "outlive & echo $! > $PID")); err != nil {
		t.Fatal(err)
	}
	if e := p.awaitExit(c); e.ExitCode != 0 {
		t.Errorf("end = %+v", e)
	}
}

// The supervisor leaves the cgroups before its first start, so that later starts do not wait for
// that in the kernel.
func TestPrivilegedShimLeavesTheAgentsCgroups(t *testing.T) {
	p := newPlace(t)
	p.cgroups, _ = newCgroup(t)
	c := p.run()
	defer c.Close()
	for _, file := range p.cgroups {
		poll.Until(t, 10*time.Second, "the supervisor has left", func(context.Context) error {
			members, err := os.ReadFile(file)
			if err == nil && strings.TrimSpace(string(members)) != strconv.Itoa(c.PID()) {
				err = fmt.Errorf("%s has %q, not the supervisor %d", file, members, c.PID())
			}
			return err
		})
	}
}

// A terminal that hangs up and a machine that shuts down send signals to all processes.
func TestPrivilegedShimIgnoresTerminationSignals(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		if err := syscall.Kill(c.PID(), s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Start(p.ctx, p.order("a", 1, "(outlive; kill -TERM $(exec sh -c 'echo $PPID'); exit 3) & echo $! > $PID")); err != nil {
		t.Fatal(err)
	}
	if e := p.awaitExit(c); e.ExitCode != 128+15 { // a child does not inherit the handler
		t.Errorf("end = %+v", e)
	}
	if err := c.Shutdown(p.ctx); err != nil {
		t.Error(err)
	}
}

// A machine that shuts down waits for processes that stay after SIGTERM.
func TestPrivilegedShimEndsWithTheMachine(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	if _, err := c.Start(p.ctx, p.order("a", 1, "outlive & echo $! > $PID")); err != nil {
		t.Fatal(err)
	}
	pid := c.PID()
	supervisor, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(supervisor)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.Close()
	// Its container still runs, so the supervisor does too, and an agent can connect.
	c, err = shim.Connect(p.ctx, p.socket())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Signal(p.ctx, "a", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.awaitExit(c)
	c.Close()
	poll.Until(t, timeout, "the supervisor has ended", func(context.Context) error {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(supervisor), Events: unix.POLLIN}}, 0)
		if err == nil && n == 0 {
			err = errors.New("it runs")
		}
		return err
	})
}
