package guest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/testkit/output"
	"rik.dev/rik/internal/testkit/privileged"
)

// TestPrivilegedBootBehavior boots one guest and runs all tests in it, because a boot takes
// long.
func TestPrivilegedBootBehavior(t *testing.T) {
	privileged.Require(t)
	m := boot(t)
	if err := m.guest.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.guest.Run(t.Context(), container("early", "/bin/true"), guest.Streams{}); err == nil {
		t.Error("a guest that is not configured runs a container")
	}
	config, reported := testConfig(), time.Now()
	config.Time = reported.Add(-time.Hour) // differs from the machine's own clock
	if err := m.guest.Configure(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if err := m.guest.Configure(t.Context(), testConfig()); err == nil {
		t.Error("a guest is configured twice")
	}
	for _, tc := range []struct {
		name string
		test func(*testing.T, guest.Guest)
	}{
		{"process", testProcess},
		{"shell", testShell},
		{"clock", func(t *testing.T, g guest.Guest) { testClock(t, g, config.Time, reported) }},
		{"start errors", testStartErrors},
		{"stdin", testStdin},
		{"identity", testIdentity},
		{"read-only root", testReadOnlyRoot},
		{"fresh root", testFreshRoot},
		{"volumes", testVolumes},
		{"files", testFiles},
		{"limits", testLimits},
		{"signal and exec", testSignalAndExec},
		{"abandoned", testAbandoned},
		{"terminal", testTerminal},
		{"dial", testDial},
		{"thaw", testThaw},
		{"flood", testFlood},
		// This must be the last case, because the guest ends.
		{"shutdown", func(t *testing.T, _ guest.Guest) { testShutdown(t, m) }},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, m.guest) })
	}
}

// sh runs a script in a new container and returns its result.
func sh(t *testing.T, g guest.Guest, script string, change func(*guest.Process)) result {
	t.Helper()
	p := container("script", "/bin/sh", "-c", script)
	if change != nil {
		change(&p)
	}
	return run(t, g, p, nil)
}

// expect fails the test unless the script prints exactly this and succeeds.
func expect(t *testing.T, g guest.Guest, script, want string, change func(*guest.Process)) {
	t.Helper()
	if got := sh(t, g, script, change); got.stdout != want || got.exit.Code != 0 {
		t.Errorf("%s\ngot %+v\nwant %q", script, got, want)
	}
}

func testProcess(t *testing.T, g guest.Guest) {
	got := sh(t, g, `echo out $COLOR $HOME; echo err >&2; exit 7`, func(p *guest.Process) { p.Env = []string{"COLOR=red", "COLOR=blue"} })
	if want := (result{"out blue /root\n", "err\n", guest.Exit{Code: 7}}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := sh(t, g, "kill -9 $$; true", nil); got.exit.Code != 0 && got.exit.Code != 137 {
		t.Errorf("got %+v", got)
	}
}

func testShell(t *testing.T, g guest.Guest) {
	expect(t, g, "cat /etc/hosts /etc/resolv.conf; hostname; cat /etc/hostname",
		"127.0.0.1 localhost\n10.0.2.15 echo-1\nnameserver 10.0.2.3\necho-1\necho-1\n", nil)
	expect(t, g, "ip -o -4 addr show dev eth0 | grep -o 'inet [0-9./]*'; ip route; cat /sys/class/net/eth0/mtu /sys/class/net/lo/operstate",
		"inet 10.0.2.15/32\ndefault via 10.0.2.2 dev eth0 onlink \n1400\nunknown\n", nil)
	expect(t, g, "echo $$; test -e /proc/2/exe || echo alone; for d in null zero full random urandom tty pts shm; do test -e /dev/$d || echo no $d; done", "1\nalone\n", nil)
}

// testClock checks that the guest's clock has the time that the node set. Software emulation on
// a busy machine may lose time, but never gains any.
func testClock(t *testing.T, g guest.Guest, set, reported time.Time) {
	got := sh(t, g, "date +%s", nil)
	latest := set.Add(time.Since(reported)).Unix() + 1
	var now int64
	if _, err := fmt.Sscan(got.stdout, &now); err != nil || now < set.Unix() || now > latest {
		t.Errorf("the guest's clock shows %q, want from %d to %d", got.stdout, set.Unix(), latest)
	}
}

func testStartErrors(t *testing.T, g guest.Guest) {
	for _, tc := range []struct {
		argv []string
		want error
	}{
		{[]string{"nosuch"}, guest.ErrNoProgram},
		{[]string{"/nosuch"}, guest.ErrNoProgram},
		{[]string{"/bin/data"}, guest.ErrNotRunnable},
		{[]string{"/bin/nonsense"}, guest.ErrNotRunnable},
		{[]string{"/etc"}, guest.ErrNotRunnable},
		{nil, guest.ErrNotRunnable},
	} {
		_, err := g.Run(t.Context(), container("bad", tc.argv...), guest.Streams{})
		if !errors.Is(err, tc.want) {
			t.Errorf("Run(%q) = %v, want %v", tc.argv, err, tc.want)
		}
	}
	p := container("bad", "/bin/true")
	p.User = "nobody-here"
	if _, err := g.Run(t.Context(), p, guest.Streams{}); err == nil || !strings.Contains(err.Error(), "nobody-here") {
		t.Errorf("a user that is not there: %v", err)
	}
	p = container("../escape", "/bin/true")
	if _, err := g.Run(t.Context(), p, guest.Streams{}); err == nil {
		t.Error("a container's name may leave its directory")
	}
	p = container("bad", "/bin/true")
	p.Root.ID = "nosuch"
	if _, err := g.Run(t.Context(), p, guest.Streams{}); err == nil || !strings.Contains(err.Error(), `no disk "nosuch"`) {
		t.Errorf("a disk that is not there: %v", err)
	}
}

func testStdin(t *testing.T, g guest.Guest) {
	input := strings.Repeat("line of input\n", 50000)
	got := run(t, g, container("main", "/bin/wc", "-c"), strings.NewReader(input))
	if strings.TrimSpace(got.stdout) != fmt.Sprint(len(input)) {
		t.Errorf("wc counted %q of %d", got.stdout, len(input))
	}
	if got := run(t, g, container("main", "/bin/cat"), nil); got.stdout != "" || got.exit.Code != 0 {
		t.Errorf("without input: %+v", got)
	}
	// A process that does not read its input still ends.
	if got := run(t, g, container("main", "/bin/true"), endless{}); got.exit.Code != 0 {
		t.Errorf("with endless input: %+v", got)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func testIdentity(t *testing.T, g guest.Guest) {
	asUser := func(user string) func(*guest.Process) { return func(p *guest.Process) { p.User = user } }
	expect(t, g, "id -u; id -g; id -G; echo $HOME", "1000\n1000\n1000 2000\n/home/play\n", asUser("play"))
	expect(t, g, "id -u; id -g", "1000\n2000\n", asUser("play:extra"))
	expect(t, g, "id -u; id -g", "77\n88\n", asUser("77:88"))
	const status = "grep -E '^(CapEff|CapBnd|CapPrm|CapAmb|NoNewPrivs)' /proc/self/status | tr -d '\\t'"
	expect(t, g, status, "CapPrm:0000000000000000\nCapEff:0000000000000000\nCapBnd:00000000080000e1\nCapAmb:0000000000000000\nNoNewPrivs:1\n", asUser("play"))
	expect(t, g, status, "CapPrm:00000000080000e1\nCapEff:00000000080000e1\nCapBnd:00000000080000e1\nCapAmb:0000000000000000\nNoNewPrivs:1\n", nil)
	// CAP_MKNOD alone gives no access to the machine's disks and channel.
	if got := sh(t, g, "mknod /tmp/disk b 254 0 && cat /tmp/disk", nil); got.exit.Code == 0 {
		t.Errorf("a container reads the machine's disk: %.100q", got.stdout)
	}
	if got := sh(t, g, "echo b > /proc/sysrq-trigger", nil); got.exit.Code == 0 {
		t.Error("a container reaches the kernel's emergency keys")
	}
}

func testReadOnlyRoot(t *testing.T, g guest.Guest) {
	readOnly := func(p *guest.Process) {
		p.ReadOnlyRoot = true
		p.Mounts = []guest.Mount{{Volume: "data", Target: "/made/for/it"}}
	}
	got := sh(t, g, "touch /file", readOnly)
	if got.exit.Code == 0 || !strings.Contains(got.stderr, "Read-only") {
		t.Errorf("writing to a read-only root: %+v", got)
	}
	expect(t, g, "touch /made/for/it/file && echo yes > /dev/shm/x && cat /dev/shm/x", "yes\n", readOnly)
}

func testFreshRoot(t *testing.T, g guest.Guest) {
	expect(t, g, "echo mine > /file; mkdir -p /d/e; echo 1 > /d/e/f; cat /file", "mine\n", nil)
	expect(t, g, "test -e /file || echo fresh", "fresh\n", nil)
}

func testVolumes(t *testing.T, g guest.Guest) {
	with := func(mounts ...guest.Mount) func(*guest.Process) {
		return func(p *guest.Process) { p.Mounts = mounts }
	}
	expect(t, g, "echo kept > /data/file", "", with(guest.Mount{Volume: "data", Target: "/data"}))
	expect(t, g, "cat /link/sub/file; touch /link/sub/file 2>/dev/null || echo read-only", "kept\nread-only\n",
		with(guest.Mount{Volume: "data", Target: "/link/sub", ReadOnly: true}))
	// A path in a volume stays in the volume, even with links that a container has made.
	expect(t, g, "busybox ln -s / /data/root; busybox ln -s ../../../../../etc /data/etc", "", with(guest.Mount{Volume: "data", Target: "/data"}))
	expect(t, g, "cat /x/file; ls /x", "kept\netc\nfile\nroot\n", with(guest.Mount{Volume: "data", SubPath: "root", Target: "/x"}))
	expect(t, g, "ls /x", "", with(guest.Mount{Volume: "data", SubPath: "new/dir", Target: "/x"}))
	expect(t, g, "busybox stat -c %a /x /all/new", "777\n777\n", func(p *guest.Process) {
		p.User, p.Mounts = "1001", []guest.Mount{{Volume: "data", SubPath: "new/dir/more", Target: "/x"}, {Volume: "data", Target: "/all"}}
	})
	expect(t, g, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start", "0\n", nil)
	expect(t, g, "cat /f", "kept\n", with(guest.Mount{Volume: "data", SubPath: "file", Target: "/f"}))
	if got := sh(t, g, "dd if=/dev/zero of=/cache/big bs=1M count=4", with(guest.Mount{Volume: "cache", Target: "/cache"})); got.exit.Code == 0 || !strings.Contains(got.stderr, "No space") {
		t.Errorf("a volume in memory has no bound: %+v", got)
	}
	for _, bad := range []guest.Mount{{Volume: "nosuch", Target: "/x"}, {Volume: "data", Target: "/"}, {Volume: "../images", Target: "/x"},
		{Volume: "data", SubPath: "etc", Target: "/x"}} {
		p := container("bad", "/bin/true")
		p.Mounts = []guest.Mount{bad}
		if r, err := g.Run(t.Context(), p, guest.Streams{}); err == nil {
			_, _ = r.Wait()
			t.Errorf("Run with %+v gives no error", bad)
		}
	}
}

func testFiles(t *testing.T, g guest.Guest) {
	mount := func(p *guest.Process) {
		p.Mounts = []guest.Mount{{Volume: "settings", Target: "/settings", ReadOnly: true}}
	}
	expect(t, g, "cat /settings/a; wc -c < /settings/deep/b; stat -L -c %a /settings/a", "one3145728\n640\n", mount)
	out, in := io.Pipe()
	var said output.Buffer
	p := container("watcher", "/bin/sh", "-c", "echo ready; read go; cat /settings/a; ls /settings")
	mount(&p)
	r, err := g.Run(t.Context(), p, guest.Streams{Stdin: out, Stdout: &said})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Files(t.Context(), guest.Volume{Name: "settings", Projected: true, Files: []guest.File{{Path: "a", Mode: 0o644, Data: []byte("two\n")}}}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(in, "go\n")
	_ = in.Close()
	if exit, err := r.Wait(); err != nil || exit.Code != 0 || said.String() != "ready\ntwo\na\n" {
		t.Errorf("after a change: %q, %+v, %v", said.String(), exit, err)
	}
	for _, path := range []string{"../out", "/abs", "..data", "x/../../y", ""} {
		if err := g.Files(t.Context(), guest.Volume{Name: "settings", Files: []guest.File{{Path: path, Mode: 0o644}}}); err == nil {
			t.Errorf("a file at %q is accepted", path)
		}
	}
}

func testLimits(t *testing.T, g guest.Guest) {
	limited := func(p *guest.Process) { p.MemoryBytes, p.PIDs, p.MilliCPU = 16<<20, 20, 500 }
	expect(t, g, "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max /sys/fs/cgroup/cpu.max", "16777216\n20\n50000 100000\n", limited)
	got := sh(t, g, "tail /dev/zero", limited)
	if want := (guest.Exit{Code: 137, OOMKilled: true}); got.exit != want {
		t.Errorf("a process beyond its memory ended as %+v, want %+v", got.exit, want)
	}
	got = sh(t, g, "i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; echo all", limited)
	if strings.Contains(got.stdout, "all") {
		t.Errorf("40 processes with a limit of 20: %+v", got)
	}
	u, err := g.Usage(t.Context())
	if err != nil || u.CPUNanos == 0 || u.MemoryBytes == 0 || len(u.Containers) != 0 {
		t.Errorf("Usage() = %+v, %v", u, err)
	}
}

// lines returns a reader of a process's output. A process without output for long makes the
// reads fail.
func lines(t *testing.T) (*bufio.Reader, io.Writer) {
	r, w := io.Pipe()
	silent := time.AfterFunc(timeout, func() { _ = w.CloseWithError(errors.New("the process printed nothing")) })
	t.Cleanup(func() { silent.Stop() })
	return bufio.NewReader(r), w
}

func testSignalAndExec(t *testing.T, g guest.Guest) {
	said, stdout := lines(t)
	p := container("server", "/bin/sh", "-c", "trap 'echo stopping; exit 3' TERM; echo up; while true; do sleep 0.05; done")
	p.User, p.Env = "play", []string{"OF=container"}
	r, err := g.Run(t.Context(), p, guest.Streams{Stdout: stdout})
	if err != nil {
		t.Fatal(err)
	}
	if line, err := said.ReadString('\n'); line != "up\n" {
		t.Fatalf("the process printed %q, %v", line, err)
	}
	if r.PID() <= 1 {
		t.Errorf("PID() = %d", r.PID())
	}
	if _, err := g.Run(t.Context(), p, guest.Streams{}); err == nil || !strings.Contains(err.Error(), "already runs") {
		t.Errorf("a container started twice: %v", err)
	}
	command := guest.Process{Container: "server", Exec: true, Argv: []string{"/bin/sh", "-c", "id -u; echo $OF $MORE; test -e /proc/1/root/bin/sh && hostname; grep CapBnd /proc/self/status | tr -d '\\t'; cat /sys/fs/cgroup/pids.current | wc -l; exit 4"}, Env: []string{"MORE=command"}}
	got := run(t, g, command, nil)
	if want := "1000\ncontainer command\necho-1\nCapBnd:00000000080000e1\n1\n"; got.stdout != want || got.exit.Code != 4 {
		t.Errorf("a command in the container: %+v, want %q", got, want)
	}
	root := guest.Process{Container: "server", Exec: true, User: "0", Argv: []string{"cat"}}
	if got := run(t, g, root, strings.NewReader("through")); got.stdout != "through" {
		t.Errorf("cat in the container: %+v", got)
	}
	// A process that the command leaves behind does not delay the end of the command.
	root.Argv = []string{"sh", "-c", "sleep 1000 & echo left"}
	if got := run(t, g, root, nil); got.stdout != "left\n" {
		t.Errorf("a command that leaves a process: %+v", got)
	}
	if _, err := g.Run(t.Context(), guest.Process{Container: "server", Exec: true, Argv: []string{"nosuch"}}, guest.Streams{}); !errors.Is(err, guest.ErrNoProgram) {
		t.Errorf("a command that is not there: %v", err)
	}
	u, err := g.Usage(t.Context())
	if err != nil || u.Containers["server"].MemoryBytes == 0 {
		t.Errorf("Usage() = %+v, %v", u, err)
	}
	if err := r.Signal(t.Context(), int(syscall.SIGTERM)); err != nil {
		t.Fatal(err)
	}
	if line, err := said.ReadString('\n'); line != "stopping\n" {
		t.Errorf("after SIGTERM it printed %q, %v", line, err)
	}
	if exit, err := r.Wait(); err != nil || exit != (guest.Exit{Code: 3}) {
		t.Errorf("Wait() = %+v, %v", exit, err)
	}
	if err := r.Signal(t.Context(), int(syscall.SIGTERM)); err != nil {
		t.Errorf("a signal to a process that has ended: %v", err)
	}
	if _, err := g.Run(t.Context(), root, guest.Streams{}); err == nil || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("a command in a container that has ended: %v", err)
	}
}

// testAbandoned ends a process by canceling its context.
func testAbandoned(t *testing.T, g guest.Guest) {
	reason := errors.New("the test cancels it")
	ctx, cancel := context.WithCancelCause(t.Context())
	r, err := g.Run(ctx, container("main", "/bin/sh", "-c", "sleep 1000 & sleep 1000"), guest.Streams{})
	if err != nil {
		t.Fatal(err)
	}
	cancel(reason)
	if _, err := r.Wait(); !errors.Is(err, reason) {
		t.Errorf("Wait() = %v, want %v", err, reason)
	}
	// The container's name is free once the process is gone.
	deadline := time.Now().Add(timeout)
	for {
		if r, err = g.Run(t.Context(), container("main", "/bin/true"), guest.Streams{}); err == nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		t.Fatalf("the abandoned container stays: %v", err)
	}
	_, _ = r.Wait()
}

func testTerminal(t *testing.T, g guest.Guest) {
	p := container("main", "/bin/sh", "-c", "tty; stty size; read line; echo got $line; stty size")
	p.TTY, p.Size, p.User = true, guest.Size{Width: 80, Height: 24}, "play"
	input, keyboard := io.Pipe()
	said, stdout := lines(t)
	r, err := g.Run(t.Context(), p, guest.Streams{Stdin: input, Stdout: stdout})
	if err != nil {
		t.Fatal(err)
	}
	read := func(want string) {
		t.Helper()
		if line, err := said.ReadString('\n'); line != want+"\r\n" {
			t.Fatalf("the terminal printed %q, %v, want %q", line, err, want)
		}
	}
	read("/dev/pts/0")
	read("24 80")
	if err := r.Resize(t.Context(), guest.Size{Width: 100, Height: 30}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(keyboard, "hello\n")
	read("hello") // the echo
	read("got hello")
	read("30 100")
	if exit, err := r.Wait(); err != nil || exit.Code != 0 {
		t.Errorf("Wait() = %+v, %v", exit, err)
	}
}

func testDial(t *testing.T, g guest.Guest) {
	r, err := g.Run(t.Context(), container("server", "nc", "-l", "-p", "8080", "-e", "/bin/cat"), guest.Streams{})
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(timeout)
	for {
		conn, err := g.Dial(t.Context(), 8080)
		if err != nil && time.Now().Before(deadline) {
			continue // the program does not listen yet
		}
		if err != nil {
			t.Fatal(err)
		}
		sent := bytes.Repeat([]byte("0123456789"), 40000)
		go func() {
			_, _ = conn.Write(sent)
			_ = conn.(interface{ CloseWrite() error }).CloseWrite()
		}()
		got, err := io.ReadAll(conn)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d of %d bytes came back, %v", len(got), len(sent), err)
		}
		_ = conn.Close()
		break
	}
	if exit, err := r.Wait(); err != nil || exit.Code != 0 {
		t.Errorf("Wait() = %+v, %v", exit, err)
	}
	if _, err := g.Dial(t.Context(), 81); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a port without a listener: %v", err)
	}
}

func testThaw(t *testing.T, g guest.Guest) {
	config := testConfig()
	later := time.Now().Add(36 * time.Hour)
	identity := guest.Identity{Hostname: "echo-2", Interfaces: config.Interfaces, Hosts: "127.0.0.1 localhost\n", Resolv: "nameserver 10.0.2.9\n", Time: later, Entropy: config.Entropy}
	identity.Interfaces[0].MAC = "52:54:00:aa:bb:cc"
	if err := g.Thaw(t.Context(), identity); err != nil {
		t.Fatal(err)
	}
	got := sh(t, g, "hostname; cat /etc/resolv.conf /sys/class/net/eth0/address; ip route; date +%s", nil)
	want := "echo-2\nnameserver 10.0.2.9\n52:54:00:aa:bb:cc\ndefault via 10.0.2.2 dev eth0 onlink \n"
	rest, ok := strings.CutPrefix(got.stdout, want)
	if !ok {
		t.Errorf("got %+v, want %q", got, want)
	}
	var now int64
	if _, err := fmt.Sscan(rest, &now); err != nil || now < later.Unix() || now > later.Unix()+int64(timeout.Seconds()) {
		t.Errorf("the clock shows %q, want %d", rest, later.Unix())
	}
}

// testFlood checks that a stream that is not read does not delay other streams.
func testFlood(t *testing.T, g guest.Guest) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck, writer := io.Pipe()
	defer stuck.Close()
	r, err := g.Run(ctx, container("flood", "/bin/sh", "-c", "while true; do echo flood; done"), guest.Streams{Stdout: writer})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		expect(t, g, "echo through", "through\n", nil)
	}
	cancel()
	_ = stuck.Close()
	if _, err := r.Wait(); err == nil {
		t.Error("an abandoned process has an exit")
	}
}

// testShutdown checks that all processes end and that the VMM exits by itself.
func testShutdown(t *testing.T, m *vm) {
	expect(t, m.guest, "echo hello from inside", "hello from inside\n", nil)
	if err := m.guest.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-m.exited:
		if err != nil {
			t.Errorf("the VMM ended: %v", err)
		}
	case <-time.After(timeout):
		t.Error("the VMM continues after a shutdown")
	}
	<-m.session.Done()
	if err := m.guest.Health(t.Context()); err == nil {
		t.Error("a guest that was shut down answers")
	}
}
