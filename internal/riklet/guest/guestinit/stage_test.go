package guestinit

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/wire"
)

func TestEnvironmentHasDefaults(t *testing.T) {
	t.Parallel()
	who := identity{home: "/home/play"}
	for name, tc := range map[string]struct {
		process guest.Process
		want    []string
	}{
		"none":                {guest.Process{}, []string{"PATH=" + defaultPath, "HOME=/home/play"}},
		"a terminal":          {guest.Process{TTY: true}, []string{"PATH=" + defaultPath, "HOME=/home/play", "TERM=xterm"}},
		"set by the workload": {guest.Process{TTY: true, Env: []string{"TERM=dumb", "HOME=/", "PATH=/bin"}}, []string{"TERM=dumb", "HOME=/", "PATH=/bin"}},
		"the last one counts": {guest.Process{Env: []string{"A=1", "B=2", "A=3"}}, []string{"A=3", "B=2", "PATH=" + defaultPath, "HOME=/home/play"}},
		"empty values stay":   {guest.Process{Env: []string{"HOME=", "E=a=b"}}, []string{"HOME=", "E=a=b", "PATH=" + defaultPath}},
		"no variables":        {guest.Process{Env: []string{"novalue", "=x", ""}}, []string{"PATH=" + defaultPath, "HOME=/home/play"}},
	} {
		if diff := cmp.Diff(tc.want, environment(tc.process, who)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestLookProgramDistinguishesItsErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, d := range []string{"first/dir", "second", "third"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]os.FileMode{"second/tool": 0o755, "third/tool": 0o755, "first/data": 0o644, "second/data": 0o644, "third/late": 0o755, "first/late": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, path), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"PATH=" + strings.Join([]string{dir + "/first", dir + "/second", dir + "/third"}, ":")}
	for name, want := range map[string]struct {
		path string
		err  error
	}{
		"tool": {path: dir + "/second/tool"}, "late": {path: dir + "/third/late"},
		"data": {err: guest.ErrNotRunnable}, "dir": {err: guest.ErrNotRunnable}, "nosuch": {err: guest.ErrNoProgram},
		dir + "/third/tool": {path: dir + "/third/tool"}, dir + "/first/data": {err: guest.ErrNotRunnable},
		dir + "/first": {err: guest.ErrNotRunnable}, dir + "/nosuch": {err: guest.ErrNoProgram},
	} {
		path, err := lookProgram(name, env)
		if !errors.Is(err, want.err) || err == nil && path != want.path {
			t.Errorf("lookProgram(%q) = %q, %v, want %q, %v", name, path, err, want.path, want.err)
		}
	}
	if _, err := lookProgram("tool", nil); !errors.Is(err, guest.ErrNoProgram) {
		t.Errorf("lookProgram() without a PATH = %v", err)
	}
}

func TestCapabilitySetHasTheKernelsNumbers(t *testing.T) {
	t.Parallel()
	for number, name := range map[int]string{
		unix.CAP_CHOWN: "CAP_CHOWN", unix.CAP_KILL: "CAP_KILL", unix.CAP_NET_BIND_SERVICE: "NET_BIND_SERVICE", unix.CAP_NET_RAW: "CAP_NET_RAW",
		unix.CAP_SYS_CHROOT: "CAP_SYS_CHROOT", unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN", unix.CAP_SYS_TIME: "CAP_SYS_TIME", unix.CAP_MKNOD: "CAP_MKNOD",
		unix.CAP_AUDIT_READ: "CAP_AUDIT_READ", unix.CAP_CHECKPOINT_RESTORE: "CAP_CHECKPOINT_RESTORE",
	} {
		if got, err := capabilitySet([]string{name}); err != nil || got != 1<<number {
			t.Errorf("capabilitySet(%s) = %#x, %v, want bit %d", name, got, err, number)
		}
	}
	if len(capabilities) != unix.CAP_LAST_CAP+1 {
		t.Errorf("%d capabilities, the kernel has %d", len(capabilities), unix.CAP_LAST_CAP+1)
	}
	if got, err := capabilitySet([]string{"CAP_KILL", "CAP_CHOWN", "CAP_KILL"}); err != nil || got != 0b100001 {
		t.Errorf("capabilitySet() of two = %#b, %v", got, err)
	}
	for _, name := range []string{"CAP_FLY", "", "cap_kill"} {
		if _, err := capabilitySet([]string{"CAP_CHOWN", name}); err == nil {
			t.Errorf("capabilitySet(%q) gives no error", name)
		}
	}
}

func TestNamesAndTargetsStayInTheirPlace(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "web-1", "a.b_c", strings.Repeat("x", 253)} {
		if err := validName("volume", name); err != nil {
			t.Errorf("validName(%q) = %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/a", "-a", "a-", "A", "a b", "a\n", "a\x00", strings.Repeat("x", 254)} {
		if err := validName("volume", name); err == nil {
			t.Errorf("validName(%q) gives no error", name)
		}
	}
	for _, target := range []string{"/data", "/a/../b", "/a//b/"} {
		if err := validTarget(target); err != nil {
			t.Errorf("validTarget(%q) = %v", target, err)
		}
	}
	for _, target := range []string{"", "data", "/", "//", "/.", "/..", "/a/.."} {
		if err := validTarget(target); err == nil {
			t.Errorf("validTarget(%q) gives no error", target)
		}
	}
}

func TestPathsAreOpenedBelowTheRoot(t *testing.T) {
	t.Parallel()
	outside, root := t.TempDir(), t.TempDir()
	for link, target := range map[string]string{"out": outside, "up": "../../../../../../.." + outside, "dangling": "/not/there", "self": "self"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b := rootBuilder{fd: fd}
	for path, want := range map[string]string{
		"/new/deep": "new/deep", "../../escape": "escape", "/dangling": "dangling", "/out/x": "", "/up/x": "",
	} {
		made, err := b.openOrMake(path, false, 0o777)
		if err != nil {
			t.Errorf("openOrMake(%s) = %v", path, err)
			continue
		}
		real, err := os.Readlink(fdPath(made))
		if err := errors.Join(err, unix.Close(made)); err != nil || !strings.HasPrefix(real, root+"/") {
			t.Errorf("openOrMake(%s) opened %s, %v, want a directory below %s", path, real, err, root)
		}
		if want == "" {
			continue
		}
		if info, err := os.Lstat(filepath.Join(root, want)); err != nil || !info.IsDir() || info.Mode().Perm() != 0o777 {
			t.Errorf("openOrMake(%s) made %v, %v, want a directory with mode 0777", path, info, err)
		}
	}
	if made, err := b.openOrMake("/self/x", false, 0o755); !errors.Is(err, unix.ELOOP) {
		t.Errorf("openOrMake() of a loop = %d, %v, want ELOOP", made, err)
	}
	made, err := b.openOrMake("/etc/hosts", true, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(made)
	if info, err := os.Lstat(filepath.Join(root, "etc/hosts")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("openOrMake() of a file made %v, %v", info, err)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside the root: %v, %v", entries, err)
	}
}

func TestExitCodesAreThoseOfAShell(t *testing.T) {
	t.Parallel()
	for status, want := range map[unix.WaitStatus]int{0: 0, 3 << 8: 3, 255 << 8: 255, unix.WaitStatus(unix.SIGKILL): 137, unix.WaitStatus(unix.SIGTERM): 143} {
		if got := exitCode(status); got != want {
			t.Errorf("exitCode(%#x) = %d, want %d", int(status), got, want)
		}
	}
}

func TestFieldsOfCgroupFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "memory.events")
	if err := os.WriteFile(path, []byte("low 0\noom 9\noom_kill 3\nbad x\nshort\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readField(path, "oom_kill"); err != nil || got != 3 {
		t.Errorf("readField(oom_kill) = %d, %v, want 3", got, err)
	}
	for _, word := range []string{"oom_", "bad", "short", "missing"} {
		if got, err := readField(path, word); err == nil {
			t.Errorf("readField(%s) = %d without an error", word, got)
		}
	}
	if got := oomKills(filepath.Dir(path)); got != 3 {
		t.Errorf("oomKills() = %d, want 3", got)
	}
	if got := oomKills("/nosuch"); got != 0 {
		t.Errorf("oomKills() without a cgroup = %d", got)
	}
}

// control returns both ends of a stage's control socket.
func control(t *testing.T) (init, stage *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	init, stage = os.NewFile(uintptr(pair[0]), "init"), os.NewFile(uintptr(pair[1]), "stage")
	t.Cleanup(func() { _, _ = init.Close(), stage.Close() })
	return init, stage
}

// TestCommandReadsTheReportOfAStage checks what the init learns from a stage that starts its
// program, fails, ends early, or sends no report that makes sense.
func TestCommandReadsTheReportOfAStage(t *testing.T) {
	t.Parallel()
	failure := func(err error) func(*os.File) {
		return func(f *os.File) {
			_, _ = f.Write([]byte{failureByte})
			_ = wire.WriteLine(f, guest.NewFailure(err))
		}
	}
	for name, tc := range map[string]struct {
		tty    bool
		report func(*os.File)
		want   error
		text   string
	}{
		"it runs":              {report: func(*os.File) {}},
		"no program":           {report: failure(guest.ErrNoProgram), want: guest.ErrNoProgram},
		"not runnable":         {report: failure(guest.ErrNotRunnable), want: guest.ErrNotRunnable},
		"another failure":      {report: failure(errors.New("no disk")), text: "no disk"},
		"ends early":           {tty: true, report: func(*os.File) {}, text: "ended before it began"},
		"half a failure":       {report: func(f *os.File) { _, _ = f.WriteString("f{\"text\":") }, text: "ended before it began"},
		"a failure of no kind": {report: func(f *os.File) { _, _ = f.WriteString("f[]\n") }, text: "ended before it began"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs := control(t)
			go func() {
				var got order
				if err := wire.ReadLine(theirs, &got); err != nil || !slices.Equal(got.Process.Argv, []string{"x"}) {
					t.Errorf("the stage got %+v, %v", got, err)
				}
				tc.report(theirs)
				_ = theirs.Close()
			}()
			tty, err := command(ours, order{Process: guest.Process{Argv: []string{"x"}, TTY: tc.tty}})
			ok := tc.want == nil && tc.text == ""
			if tty != nil || ok != (err == nil) || tc.want != nil && !errors.Is(err, tc.want) || err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Errorf("command() = %v, %v, want %v, %q", tty, err, tc.want, tc.text)
			}
		})
	}
}

func TestCommandReceivesTheTerminal(t *testing.T) {
	t.Parallel()
	ours, theirs := control(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		var got order
		_ = wire.ReadLine(theirs, &got)
		_ = unix.Sendmsg(int(theirs.Fd()), []byte{ttyByte}, unix.UnixRights(pair[0]), nil, 0)
		_, _ = unix.Close(pair[0]), theirs.Close()
	}()
	tty, err := command(ours, order{Process: guest.Process{TTY: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	if err := tty.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Errorf("the terminal has no deadlines, so its output cannot be stopped: %v", err)
	}
	other := os.NewFile(uintptr(pair[1]), "other")
	_, _ = other.WriteString("typed")
	_ = other.Close()
	if got, err := io.ReadAll(tty); err != nil || string(got) != "typed" {
		t.Errorf("the terminal says %q, %v", got, err)
	}
}

// TestEndsAreConnected checks each stream that a stage gets.
func TestEndsAreConnected(t *testing.T) {
	t.Parallel()
	e, err := newEnds(false, true)
	if err != nil {
		t.Fatal(err)
	}
	defer e.closeParentEnds()
	if len(e.childEnds()) != stageFD+1 {
		t.Fatalf("a stage has %d descriptors, want %d", len(e.childEnds()), stageFD+1)
	}
	for i, pair := range [][2]*os.File{{e.stdin, e.child[0]}, {e.child[1], e.stdout}, {e.child[2], e.stderr}, {e.child[3], e.control}, {e.control, e.child[3]}} {
		text := string(rune('a' + i))
		var got [1]byte
		if _, err := pair[0].WriteString(text); err != nil {
			t.Fatal(err)
		}
		if _, err := pair[1].Read(got[:]); err != nil || string(got[:]) != text {
			t.Errorf("stream %d carries %q, %v, want %q", i, got, err, text)
		}
	}
	e.closeChildEnds()
	if rest, err := io.ReadAll(e.stdout); err != nil || len(rest) > 0 {
		t.Errorf("after the stage has closed its ends: %q, %v", rest, err)
	}
	deaf, err := newEnds(true, true)
	if err != nil {
		t.Fatal(err)
	}
	if deaf.stdin != nil || deaf.stdout != nil || deaf.stderr != nil || len(deaf.childEnds()) != stageFD+1 {
		t.Errorf("with a terminal the init has pipes: %+v", deaf)
	}
	deaf.closeChildEnds()
	if err := deaf.closeParentEnds(); err != nil {
		t.Error(err)
	}
}

// TestReaperReportsItsChildren checks exits, also of a child that ends at once, and that signals
// reach a child until it is reaped.
func TestReaperReportsItsChildren(t *testing.T) {
	r := &reaper{waiting: map[int]chan unix.WaitStatus{}}
	start := func(script string) (int, <-chan unix.WaitStatus) {
		pid, ended, err := r.spawn(func() (int, error) {
			p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", script}, &os.ProcAttr{})
			if err != nil {
				return 0, err
			}
			pid := p.Pid
			return pid, p.Release() // the reaper waits for it
		})
		if err != nil {
			t.Fatal(err)
		}
		return pid, ended
	}
	await := func(ended <-chan unix.WaitStatus) int {
		deadline := time.After(time.Minute)
		for {
			r.reap()
			select {
			case status := <-ended:
				return exitCode(status)
			case <-deadline:
				t.Fatal("the child was not reaped")
			case <-time.After(time.Millisecond):
			}
		}
	}
	_, quick := start("exit 3")
	pid, slow := start("exec sleep 1000")
	if got := await(quick); got != 3 {
		t.Errorf("the first child ended with %d, want 3", got)
	}
	if err := r.signal(pid, int(unix.SIGTERM)); err != nil {
		t.Errorf("signal() = %v", err)
	}
	if got := await(slow); got != 143 {
		t.Errorf("the second child ended with %d, want 143", got)
	}
	if err := r.signal(os.Getpid(), int(unix.SIGKILL)); err != nil { // this test is no child of its own
		t.Errorf("signal() to another process = %v", err)
	}
	if _, _, err := r.spawn(func() (int, error) { return 0, net.ErrClosed }); !errors.Is(err, net.ErrClosed) {
		t.Errorf("spawn() = %v, want the error of the start", err)
	}
	if len(r.waiting) > 0 {
		t.Errorf("the reaper still waits for %v", r.waiting)
	}
}
