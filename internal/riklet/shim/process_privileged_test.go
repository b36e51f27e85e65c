package shim_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/shim/logfile"
)

const testUser, testGroup, otherGroup = 54321, 54322, 54323

func (p *place) file(name, kind string) string { return filepath.Join(p.dir, name+"."+kind) }

// process returns the start of a plain process.
func (p *place) process(name string, attempt int, l launch.Process) shim.Start {
	return shim.Start{
		Container: name, Attempt: attempt, Process: &l, LogDir: p.file(name, "logs"),
		MarkFile: p.file(name, "mark"), ExitFile: p.file(name, "exit"),
	}
}

// shell returns a plain process of a user who owns no files.
func shell(script string) launch.Process {
	return launch.Process{
		Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, UID: testUser, GID: testGroup,
	}
}

func (p *place) log(name string) string {
	p.Helper()
	var text bytes.Buffer
	if err := logfile.Read(p.ctx, p.file(name, "logs"), logfile.Options{Tail: -1}, &text); err != nil {
		p.Fatal(err)
	}
	return text.String()
}

// runs starts a process, waits for its end and returns it.
func (p *place) runs(c *shim.Client, name string, l launch.Process) shim.Container {
	p.Helper()
	got, err := c.Start(p.ctx, p.process(name, 1, l))
	if err != nil || got.PID == 0 {
		p.Fatalf("Start() = %+v, %v", got, err)
	}
	e := p.awaitExit(c)
	if e.Name != name || !e.Exited || e.LogError != "" {
		p.Fatalf("end = %+v", e)
	}
	return e
}

// newCgroup creates a cgroup for the test in every hierarchy. It returns its cgroup.procs files
// and its directories.
func newCgroup(t *testing.T) (procs, dirs []string) {
	t.Helper()
	layout, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprintf("/rikshimtest-%d", os.Getpid())
	t.Cleanup(func() {
		for _, dir := range layout.Paths(group) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		}
	})
	for _, mount := range []string{layout.V1["pids"], layout.V1["memory"], layout.Unified} {
		if mount == "" {
			continue
		}
		dir := filepath.Join(mount, group)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		dirs, procs = append(dirs, dir), append(procs, filepath.Join(dir, "cgroup.procs"))
	}
	return procs, dirs
}

func TestPrivilegedShimRunsAProcessWithNothing(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	procs, _ := newCgroup(t)
	if err := os.Chmod(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l := shell(`cat /proc/self/status; pwd; env; hostname; ulimit -n; umask; cat /proc/self/oom_score_adj /proc/self/cgroup
ls /proc/self/fd | tr '\n' ','; echo; echo again >/dev/stderr; readlink /proc/self/fd/0; exit 7`)
	l.Groups, l.Dir, l.OpenFiles, l.OOMScoreAdj, l.Cgroups = []uint32{otherGroup}, p.dir, 77, 321, procs
	l.Env = append(l.Env, "SECRET=word")
	if e := p.runs(c, "a", l); e.ExitCode != 7 {
		t.Errorf("end = %+v", e)
	}
	text := p.log("a")
	for _, want := range []string{
		"Uid:\t54321\t54321\t54321\t54321\n", "Gid:\t54322\t54322\t54322\t54322\n", "Groups:\t54323 \n",
		"CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n",
		"CapBnd:\t0000000000000000\n", "CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n",
		"SigBlk:\t0000000000000000\n", "SigIgn:\t0000000000000000\n",
		p.dir + "\n", "SECRET=word\n", "inside\n", "\n77\n", "\n0022\n", "\n321\n", "/rikshimtest-",
		"0,1,2,3,\n", // 3 is ls's own
		"again\n", "/dev/null\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the process does not contain %q", want)
		}
	}
	for _, not := range []string{"RIK_LAUNCH", "GOGC"} {
		if strings.Contains(text, not) {
			t.Errorf("the process inherits %s", not)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestPrivilegedShimKeepsRootsCapabilities(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	const caps = "grep -E 'CapEff|NoNewPrivs|Groups' /proc/self/status"
	l := shell(caps)
	l.UID, l.GID, l.Root, l.KeepCapabilities = 0, 0, true, true
	p.runs(c, "a", l)
	if text := p.log("a"); strings.Contains(text, "CapEff:\t0000000000000000") || !strings.Contains(text, "NoNewPrivs:\t0") {
		t.Errorf("root that keeps its capabilities has %s", text)
	}
	l.KeepCapabilities = false
	p.runs(c, "b", l)
	if text := p.log("b"); !strings.Contains(text, "CapEff:\t0000000000000000") || !strings.Contains(text, "NoNewPrivs:\t1") {
		t.Errorf("root without capabilities has %s", text)
	}
	l = shell(caps)
	l.KeepCapabilities = true // has no effect for users other than root
	p.runs(c, "c", l)
	if text := p.log("c"); !strings.Contains(text, "CapEff:\t0000000000000000") || !strings.Contains(text, "NoNewPrivs:\t1") {
		t.Errorf("a user that requests to keep capabilities has %s", text)
	}
}

func TestPrivilegedShimRefusesProcesses(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	plain := p.file("plain", "txt")
	if err := errors.Join(os.Chmod(p.dir, 0o755), os.WriteFile(plain, []byte("echo never\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	formless, orphan := p.file("formless", "sh"), p.file("orphan", "sh")
	if err := errors.Join(os.WriteFile(formless, []byte("echo never\n"), 0o755), os.WriteFile(orphan, []byte("#!/no/such/sh\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	argv := func(argv ...string) func(*launch.Process) { return func(l *launch.Process) { l.Argv = argv } }
	for name, tc := range map[string]struct {
		change func(*launch.Process)
		code   int
		says   string
	}{
		"NoName":     {argv("no-such-program"), 127, "PATH /usr/bin:/bin"},
		"NoPath":     {argv("/no/such/program"), 127, "no such file"},
		"NoDirOnWay": {argv("/etc/passwd/x"), 127, "not a directory"},
		"Plain":      {argv(plain), 126, "execute permission"},
		"Directory":  {argv("/etc"), 126, "permission denied"},
		"NoForm":     {argv(formless), 126, "#!"},
		"NoShell":    {argv(orphan), 127, "interpreter"},
		"Empty":      {argv(), 0, "the command is empty"},
		"ZeroByte":   {argv("sh", "a\x00b"), 0, "NUL byte"},
		"Root":       {func(l *launch.Process) { l.UID = 0 }, 0, "user 0"},
		"RootGroup":  {func(l *launch.Process) { l.GID = 0 }, 0, "group 0"},
		"RootBeside": {func(l *launch.Process) { l.Groups = []uint32{0} }, 0, "group 0"},
		// The kernel reads this ID as "no change", so the process would stay root.
		"NoUser":    {func(l *launch.Process) { l.UID = 1<<32 - 1 }, 0, "not an ID"},
		"NoGroup":   {func(l *launch.Process) { l.GID = 1<<32 - 1 }, 0, "not an ID"},
		"Variable":  {func(l *launch.Process) { l.Env = []string{"=x"} }, 0, "NAME=value"},
		"NoDir":     {func(l *launch.Process) { l.Dir = "/no/such" }, 0, "working directory /no/such"},
		"NotItsDir": {func(l *launch.Process) { l.Dir = "/root" }, 0, "permission denied"},
		"NoCgroup":  {func(l *launch.Process) { l.Cgroups = []string{p.dir + "/cgroup.procs"} }, 0, "cgroup"},
		"OddCgroup": {func(l *launch.Process) { l.Cgroups = []string{plain} }, 0, "not the cgroup.procs"},
		"Score":     {func(l *launch.Process) { l.OOMScoreAdj = 1001 }, 0, "OOM score"},
		"Files":     {func(l *launch.Process) { l.OpenFiles = 1 << 60 }, 0, "fs.nr_open"},
		"Gone":      {func(l *launch.Process) { l.NamespacesOf = 1 << 30 }, 0, "may have ended"},
	} {
		t.Run(name, func(t *testing.T) {
			l := shell("echo never")
			tc.change(&l)
			_, err := c.Start(p.ctx, p.process(name, 1, l))
			var failed *shim.StartError
			if !errors.As(err, &failed) || failed.ExitCode != tc.code || !strings.Contains(failed.Text, tc.says) {
				t.Errorf("Start() = %v (%+v), want code %d and %q", err, failed, tc.code, tc.says)
			}
		})
	}
	both := p.order("both", 1, "true")
	both.Process = &launch.Process{Argv: []string{"true"}, UID: testUser, GID: testGroup}
	if _, err := c.Start(p.ctx, both); err == nil || !strings.Contains(err.Error(), "more than one") {
		t.Errorf("Start() of two kinds at once = %v", err)
	}
	// No process is left, and the supervisor still works.
	if e := p.runs(c, "last", shell("exit 3")); e.ExitCode != 3 {
		t.Errorf("end = %+v", e)
	}
	again, err := shim.Connect(p.ctx, p.socket())
	if err != nil {
		t.Fatal(err)
	}
	if list := again.Containers(); len(list) != 1 {
		t.Errorf("Containers() = %+v", list)
	}
	if err := errors.Join(again.Close(), c.Shutdown(p.ctx)); err != nil {
		t.Error(err)
	}
}

// A limit on processes that the program alone reaches must not prevent its start. The threads of
// the launch count too.
func TestPrivilegedShimRunsAProcessInATightCgroup(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	procs, dirs := newCgroup(t)
	limited := false
	for _, dir := range dirs {
		limited = limited || os.WriteFile(filepath.Join(dir, "pids.max"), []byte("1"), 0) == nil
	}
	if !limited {
		t.Skip("no hierarchy of this machine limits processes")
	}
	for i := range 20 {
		l := shell("echo on its own")
		l.Cgroups = procs
		name := "a" + strconv.Itoa(i)
		if e := p.runs(c, name, l); e.ExitCode != 0 || p.log(name) != "on its own\n" {
			t.Fatalf("end = %+v, log = %q", e, p.log(name))
		}
	}
	l := shell("sleep 0 & wait")
	l.Cgroups = procs
	if e := p.runs(c, "b", l); e.ExitCode == 0 {
		t.Errorf("end = %+v: the limit does not hold", e)
	}
}

// A larger environment than the kernel accepts in one string.
func TestPrivilegedShimRunsAProcessWithALargeEnvironment(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	l := shell(`echo ${#A} ${#B} ${#C}`)
	for _, name := range []string{"A", "B", "C"} {
		l.Env = append(l.Env, name+"="+strings.Repeat(name, 100_000))
	}
	p.runs(c, "a", l)
	if got := p.log("a"); got != "100000 100000 100000\n" {
		t.Errorf("log = %q", got)
	}
	l.Env = append(l.Env, "D="+strings.Repeat("d", 10<<20))
	if _, err := c.Start(p.ctx, p.process("b", 1, l)); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("Start() = %v", err)
	}
}

func TestPrivilegedShimSignalsProcesses(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	if _, err := c.Start(p.ctx, p.process("a", 1, shell(`trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done`))); err != nil {
		t.Fatal(err)
	}
	p.awaitLog("a", "ready")
	if err := errors.Join(c.Signal(p.ctx, "a", syscall.SIGTERM)); err != nil {
		t.Fatal(err)
	}
	if e := p.awaitExit(c); e.ExitCode != 9 {
		t.Errorf("end = %+v", e)
	}
	// SIGKILL reaches the other processes of the group, also through another agent's connection.
	order := p.process("b", 1, shell(`sleep 1000 & echo child $!; wait`))
	got, err := c.Start(p.ctx, order)
	if err != nil {
		t.Fatal(err)
	}
	p.awaitLog("b", "child ")
	child, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(p.log("b"), "child ")))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := shim.Connect(p.ctx, p.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if again, err := second.Start(p.ctx, order); err != nil || again.PID != got.PID {
		t.Errorf("the same attempt again = %+v, %v; want process %d", again, err, got.PID)
	}
	if err := second.Shutdown(p.ctx); !errors.Is(err, shim.ErrBusy) {
		t.Errorf("Shutdown() = %v, want %v", err, shim.ErrBusy)
	}
	if err := second.Signal(p.ctx, "b", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := p.awaitExit(second); e.Name != "b" || e.ExitCode != 128+9 {
		t.Errorf("end = %+v", e)
	}
	p.await("the child's end", func() bool { return errors.Is(syscall.Kill(child, 0), syscall.ESRCH) })
	if err := second.Shutdown(p.ctx); err != nil {
		t.Error(err)
	}
}

// await polls until done returns true, or the test's timeout expires.
func (p *place) await(what string, done func() bool) {
	p.Helper()
	for !done() {
		select {
		case <-p.ctx.Done():
			p.Fatalf("waited in vain for %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (p *place) awaitLog(name, text string) {
	p.Helper()
	p.await(fmt.Sprintf("%q in the log of %s", text, name), func() bool { return strings.Contains(p.log(name), text) })
}

// A program that writes faster than the disk must not use up the supervisor's memory, nor more
// disk space than its log may have.
func TestPrivilegedShimBoundsAFloodingProcess(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	order := p.process("a", 1, shell(`yes 'a line of some length that is not short' | head -c 50000000; yes | tr -d '\n' | head -c 20000000 >&2`))
	order.LogLimits = logfile.Limits{Bytes: 1 << 20, Files: 2}
	if _, err := c.Start(p.ctx, order); err != nil {
		t.Fatal(err)
	}
	if e := p.awaitExit(c); e.ExitCode != 0 || e.LogError != "" {
		t.Errorf("end = %+v", e)
	}
	var size int64
	entries, err := os.ReadDir(p.file("a", "logs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size == 0 || size > 3<<20 {
		t.Errorf("the log has %d bytes", size)
	}
	if peak := statusKB(t, c.PID(), "VmHWM"); peak > 16<<10 {
		t.Errorf("the supervisor used up to %d KB", peak)
	}
}

func statusKB(t testing.TB, pid int, field string) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in %s", field, data)
	return 0
}

// The agent runs commands next to a process, with its own streams.
func TestPrivilegedLaunchCommandInAContainer(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	l := shell("read line; hostname; echo got $line; id -u; exit 5")
	l.NamespacesOf = c.PID()
	cmd := launch.Command(p.binary, l)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = strings.NewReader("input\n"), &out
	if err := launch.Start(cmd); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 5 {
		t.Errorf("Wait() = %v", err)
	}
	if want := "inside\ngot input\n54321\n"; out.String() != want {
		t.Errorf("output = %q, want %q", out.String(), want)
	}

	l.Argv = []string{"no-such-program"}
	var failed *launch.Failure
	if err := launch.Start(launch.Command(p.binary, l)); !errors.As(err, &failed) || failed.Code != 127 || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Start() of a missing program = %v", err)
	}
	l.Argv = []string{"/etc/passwd"}
	if err := launch.Start(launch.Command(p.binary, l)); !errors.As(err, &failed) || failed.Code != 126 || !errors.Is(err, syscall.EACCES) {
		t.Errorf("Start() of a file that is no program = %v", err)
	}
	if err := launch.Start(launch.Command("/no/such/shim", l)); err == nil || !strings.Contains(err.Error(), "/no/such/shim") {
		t.Errorf("Start() without a supervisor's program = %v", err)
	}
	// Without a pipe, the failure is written to the standard error.
	sent, err := launch.Command(p.binary, l).CombinedOutput()
	if !errors.As(err, &exit) || exit.ExitCode() != 126 || !strings.Contains(string(sent), "executing /etc/passwd") {
		t.Errorf("CombinedOutput() = %q, %v", sent, err)
	}
}

// The user owns the terminal, so that programs can open it again.
func TestPrivilegedLaunchCommandAtATerminal(t *testing.T) {
	p := newPlace(t)
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	cmd := launch.Command(p.binary, shell(`test -t 0 && echo one >/dev/tty && echo two >/dev/stdout && stat -c 'owner %u' $(tty) && echo end`))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := launch.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := slave.Close(); err != nil {
		t.Fatal(err)
	}
	// The kernel returns the output in pieces, and EIO once no process has the terminal open for
	// writing.
	text, err := io.ReadAll(master)
	if want := "one\r\ntwo\r\nowner 54321\r\nend\r\n"; !errors.Is(err, syscall.EIO) || string(text) != want {
		t.Errorf("the terminal shows %q, %v; want %q", text, err, want)
	}
}

func TestPrivilegedShimRunsAProcessWithItsOwnMounts(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	// Only root can enter the test's directory, so the user cannot reach files below it by path.
	work, other := filepath.Join(p.dir, "work"), filepath.Join(p.dir, "other")
	if err := errors.Join(os.Mkdir(work, 0o755), os.Mkdir(other, 0o755), os.WriteFile(filepath.Join(work, "mine"), []byte("text\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	l := shell("exec 2>&1; cat mine; ls /proc/self/cwd/..")
	l.Dir = work
	if _, err := c.Start(p.ctx, p.process("closed", 1, l)); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("Start() in a directory that it cannot reach = %v", err)
	}
	l.Enclosed = true
	if e := p.runs(c, "enclosed", l); e.ExitCode == 0 || !strings.HasPrefix(p.log("enclosed"), "text\n") || strings.Contains(p.log("enclosed"), "other") {
		t.Errorf("enclosed: end = %+v, log = %q", e, p.log("enclosed"))
	}
	l = shell("ls " + p.dir + "; cat " + work + "/mine")
	l.Hide, l.Binds = p.dir, []launch.Bind{{Source: work, Target: work}}
	if e := p.runs(c, "hidden", l); e.ExitCode != 0 || p.log("hidden") != "work\ntext\n" {
		t.Errorf("hidden: end = %+v, log = %q", e, p.log("hidden"))
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("the node itself sees no more: %v", err)
	}
}
