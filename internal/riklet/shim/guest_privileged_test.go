package shim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hashicorp/yamux"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/wire"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/logfile"
)

// process simulates a guest's init. It implements the protocol, and the program name of a
// process selects its behavior. An honest init would not do some of that.
type process struct {
	*place
	socket   string
	listener net.Listener
	ended    chan string // containers for whose run the node has ended the stream

	mu      sync.Mutex
	next    uint64
	signals map[uint64]chan int
	conn    net.Conn
	mux     *yamux.Session
}

func (p *place) newProcess(name string) *process {
	p.Helper()
	a := &process{place: p, socket: filepath.Join(p.dir, name), ended: make(chan string, 1000), signals: map[uint64]chan int{}}
	p.Cleanup(a.die)
	return a
}

func (a *process) link() shim.Link {
	return shim.Link{Channel: guest.Channel{Socket: a.socket}, Socket: filepath.Join(a.dir, "lent"), TimeoutMillis: timeout.Milliseconds()}
}

func (a *process) guest() guest.Guest { return guest.New(shim.GuestOpener(a.link().Socket)) }

// boot makes the guest answer.
func (a *process) boot() {
	a.Helper()
	listener, err := net.Listen("unix", a.socket)
	if err != nil {
		a.Fatal(err)
	}
	a.mu.Lock()
	a.listener = listener
	a.mu.Unlock()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go a.serve(conn)
		}
	}()
}

// die ends the channel, like the end of a VMM does.
func (a *process) die() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.listener != nil {
		_ = a.listener.Close()
	}
	if a.conn != nil {
		_ = a.conn.Close() // first, so that no exit can be reported any more
		_ = a.mux.Close()
	}
}

func (a *process) serve(conn net.Conn) {
	if wire.Answer(conn) != nil {
		return
	}
	mux, err := wire.Init(conn)
	if err != nil {
		return
	}
	a.mu.Lock()
	a.conn, a.mux = conn, mux
	a.mu.Unlock()
	for {
		stream, err := mux.AcceptStream()
		if err != nil {
			return
		}
		go a.serveRequests(stream)
	}
}

func (a *process) serveRequests(stream *yamux.Stream) {
	defer stream.Close()
	var r guest.Request
	if wire.ReadLine(stream, &r) != nil {
		return
	}
	switch r.Op {
	case guest.OpRun:
		a.act(stream, *r.Process)
	case guest.OpSignal:
		a.mu.Lock()
		a.signals[r.Run] <- r.Signal
		a.mu.Unlock()
		_ = wire.WriteLine(stream, guest.Answer{})
	case guest.OpHealth:
		_ = wire.WriteLine(stream, guest.Answer{})
	}
}

// act runs one process with the behavior that its name selects.
func (a *process) act(stream *yamux.Stream, p guest.Process) {
	switch p.Argv[0] {
	case "never":
		_ = wire.ReadLine(stream, &struct{}{}) // until the stream ends
		a.ended <- p.Container
		return
	case "missing":
		_ = wire.WriteLine(stream, guest.Answer{Failure: guest.NewFailure(guest.ErrNoProgram)})
		return
	case "plain":
		_ = wire.WriteLine(stream, guest.Answer{Failure: guest.NewFailure(guest.ErrNotRunnable)})
		return
	}
	a.mu.Lock()
	a.next++
	run, signal := a.next, make(chan int, 10)
	a.signals[run] = signal
	a.mu.Unlock()
	_ = wire.WriteLine(stream, guest.Answer{Run: run, PID: 1}) // 1 is a process of the node, too
	input := make(chan wire.Kind, 10)
	go func() {
		defer close(input)
		for frames := wire.NewReader(stream); ; {
			kind, _, err := frames.Next()
			if err != nil {
				return
			}
			input <- kind
		}
	}()
	exit := a.script(stream, p, signal, input)
	if exit != nil {
		_ = wire.WriteFrameJSON(stream, wire.Exit, exit)
	} else {
		a.ended <- p.Container
	}
}

func (a *process) script(stream *yamux.Stream, p guest.Process, signal <-chan int, input <-chan wire.Kind) *guest.Exit {
	switch p.Argv[0] {
	case "say":
		_ = wire.WriteFrame(stream, wire.Stdout, []byte(p.Argv[1]+"\nno end"))
		_ = wire.WriteFrame(stream, wire.Stderr, []byte(strings.Join(p.Env, ",")+"\n"))
		return &guest.Exit{Code: 7}
	case "grow":
		return &guest.Exit{Code: 137, OOMKilled: true}
	case "flood":
		line := bytes.Repeat([]byte("a line of some length that is not short\n"), 800)
		for range 800 { // 26 MB
			_ = wire.WriteFrame(stream, wire.Stdout, line)
		}
		return &guest.Exit{}
	case "lie":
		_, _ = stream.Write([]byte("this is no frame"))
		<-input
		return nil
	}
	for {
		select {
		case s := <-signal:
			return &guest.Exit{Code: 128 + s}
		case kind, ok := <-input:
			if !ok {
				return nil
			}
			if kind == wire.End && p.TTY {
				return &guest.Exit{Code: 1} // a shell whose terminal hangs up
			}
		}
	}
}

// guestRun returns the start of a process in the guest.
func (p *place) guestRun(name string, attempt int, argv ...string) shim.Start {
	return shim.Start{
		Container: name, Attempt: attempt, LogDir: p.file(name, "logs"), MarkFile: p.file(name, "mark"), ExitFile: p.file(name, "exit"),
		Guest: &guest.Process{Container: name, Argv: argv, Env: []string{"A=1"}},
	}
}

func (a *process) linked() *shim.Client {
	a.Helper()
	a.boot()
	c := a.run()
	a.Cleanup(func() { _ = c.Close() })
	if err := c.Link(a.ctx, a.link()); err != nil {
		a.Fatal(err)
	}
	return c
}

func TestPrivilegedShimRunsInAGuest(t *testing.T) {
	a := newPlace(t).newProcess("vm")
	c := a.linked()
	info, err := os.Stat(a.link().Socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the lent socket is %v, %v", info, err)
	}
	if err := a.guest().Health(a.ctx); err != nil {
		t.Errorf("Health() = %v", err)
	}
	got, err := c.Start(a.ctx, a.guestRun("a", 1, "say", "hello"))
	if err != nil || got.PID != 0 { // the guest's PID would be another process's here
		t.Fatalf("Start() = %+v, %v", got, err)
	}
	if e := a.awaitExit(c); e.Name != "a" || e.ExitCode != 7 || e.Message != "" || e.LogError != "" {
		t.Errorf("end = %+v", e)
	}
	if text := a.log("a"); !strings.Contains(text, "hello\n") || !strings.Contains(text, "no end") || !strings.Contains(text, "A=1\n") {
		t.Errorf("log = %q", text)
	}
	if _, err := os.Stat(a.file("a", "exit")); err != nil {
		t.Errorf("the end is not recorded: %v", err)
	}
	if _, err := c.Start(a.ctx, a.guestRun("b", 1, "grow")); err != nil {
		t.Fatal(err)
	}
	if e := a.awaitExit(c); e.Name != "b" || e.ExitCode != 137 || !e.OOMKilled {
		t.Errorf("end = %+v", e)
	}
	for argv, code := range map[string]int{"missing": 127, "plain": 126} {
		var failed *shim.StartError
		if _, err := c.Start(a.ctx, a.guestRun(argv, 1, argv)); !errors.As(err, &failed) || failed.ExitCode != code {
			t.Errorf("Start() of %s = %v (%+v)", argv, err, failed)
		}
	}
	if _, err := c.Start(a.ctx, a.guestRun("lie", 1, "lie")); err != nil {
		t.Fatal(err)
	}
	if e := a.awaitExit(c); e.Name != "lie" || e.ExitCode != 137 || !strings.Contains(e.Message, "protocol") {
		t.Errorf("end of one whose guest lies = %+v", e)
	}
	if err := c.Shutdown(a.ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.guest().Health(a.ctx); !errors.Is(err, shim.ErrGone) {
		t.Errorf("Health() without a supervisor = %v", err)
	}
}

func TestPrivilegedShimKeepsALinkBetweenConnections(t *testing.T) {
	a := newPlace(t).newProcess("vm")
	c := a.run()
	if _, err := c.Start(a.ctx, a.guestRun("a", 1, "wait")); err == nil || !strings.Contains(err.Error(), "link the guest first") {
		t.Errorf("Start() before there is a link = %v", err)
	}
	// The link is requested twice, before the guest answers.
	results := make(chan error, 2)
	for range 2 {
		go func() { results <- c.Link(a.ctx, a.link()) }()
	}
	a.boot()
	if err := errors.Join(<-results, <-results); err != nil {
		t.Fatal(err)
	}
	other := a.link()
	other.Channel.Socket += "2"
	if err := c.Link(a.ctx, other); err == nil || !strings.Contains(err.Error(), "a microVM has only one") {
		t.Errorf("Link() to another channel = %v", err)
	}
	order := a.guestRun("a", 1, "wait")
	order.Guest.TTY = true // its input must not end
	if _, err := c.Start(a.ctx, order); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}

	c, err := shim.Connect(a.ctx, a.socketOf())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if list := c.Containers(); len(list) != 1 || list[0].Name != "a" || list[0].Starting || list[0].Exited {
		t.Errorf("Containers() = %+v", list)
	}
	if err := c.Link(a.ctx, a.link()); err != nil {
		t.Errorf("Link() again = %v", err)
	}
	if again, err := c.Start(a.ctx, order); err != nil || again.Exited {
		t.Errorf("the same attempt again = %+v, %v", again, err)
	}
	if err := c.Shutdown(a.ctx); !errors.Is(err, shim.ErrBusy) {
		t.Errorf("Shutdown() = %v, want %v", err, shim.ErrBusy)
	}
	// The stream of one of the agent's commands ends only that command.
	ctx, cancel := context.WithCancelCause(a.ctx)
	errGiveUp := errors.New("given up")
	command, err := a.guest().Run(ctx, guest.Process{Container: "command", Argv: []string{"wait"}, Exec: true}, guest.Streams{})
	if err != nil {
		t.Fatal(err)
	}
	cancel(errGiveUp)
	if _, err := command.Wait(); !errors.Is(err, errGiveUp) {
		t.Errorf("Wait() = %v", err)
	}
	if got := <-a.ended; got != "command" {
		t.Errorf("the node ended the stream of %s", got)
	}
	if err := c.Signal(a.ctx, "a", syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e := a.awaitExit(c); e.Name != "a" || e.ExitCode != 128+15 {
		t.Errorf("end = %+v", e)
	}
	if err := c.Signal(a.ctx, "a", syscall.SIGTERM); err != nil {
		t.Errorf("Signal() to what has ended = %v", err)
	}
}

// socketOf returns the supervisor's socket, not the guest's.
func (a *process) socketOf() string { return a.place.socket() }

func TestPrivilegedShimEndsRunsWithTheirGuest(t *testing.T) {
	p := newPlace(t)
	a := p.newProcess("vm")
	c := a.linked()
	if _, err := c.Start(a.ctx, a.process("beside", 1, shell("exec sleep 1000"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if _, err := c.Start(a.ctx, a.guestRun(name, 1, "wait")); err != nil {
			t.Fatal(err)
		}
	}
	never := make(chan error, 1)
	go func() {
		_, err := c.Start(a.ctx, a.guestRun("never", 1, "never"))
		never <- err
	}()
	// A start without an answer does not block others.
	if _, err := c.Start(a.ctx, a.guestRun("c", 1, "say", "x")); err != nil {
		t.Fatal(err)
	}
	if e := p.awaitExit(c); e.Name != "c" || e.ExitCode != 7 {
		t.Errorf("end = %+v", e)
	}
	if err := c.Shutdown(p.ctx); !errors.Is(err, shim.ErrBusy) {
		t.Errorf("Shutdown() = %v, want %v", err, shim.ErrBusy)
	}
	a.die()
	ended := map[string]bool{}
	for range 2 {
		e := p.awaitExit(c)
		ended[e.Name] = true
		if e.ExitCode != 137 || !strings.Contains(e.Message, "microVM") {
			t.Errorf("end = %+v", e)
		}
	}
	if !ended["a"] || !ended["b"] {
		t.Errorf("ended are %v", ended)
	}
	if err := <-never; err == nil || !strings.Contains(err.Error(), "microVM") {
		t.Errorf("Start() of the one that was never answered = %v", err)
	}
	p.await("the end of the lent socket", func() bool { return errors.Is(a.guest().Health(p.ctx), shim.ErrGone) })

	// The next microVM of the same instance.
	next := p.newProcess("vm2")
	next.boot()
	if err := c.Link(p.ctx, next.link()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Start(p.ctx, p.guestRun("a", 2, "say", "again")); err != nil {
		t.Fatal(err)
	}
	if e := p.awaitExit(c); e.Name != "a" || e.Attempt != 2 || e.ExitCode != 7 {
		t.Errorf("end = %+v", e)
	}
	if err := c.Signal(p.ctx, "beside", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := p.awaitExit(c); e.Name != "beside" || e.ExitCode != 137 || e.Message != "" {
		t.Errorf("end of a plain process = %+v", e)
	}
	if err := c.Shutdown(p.ctx); err != nil {
		t.Error(err)
	}
}

func TestPrivilegedShimTimesOutOnASilentGuest(t *testing.T) {
	p := newPlace(t)
	c := p.run()
	defer c.Close()
	a := p.newProcess("vm")
	l := a.link()
	l.TimeoutMillis = 50
	if err := c.Link(p.ctx, l); err == nil || !strings.Contains(err.Error(), "did not answer within 50ms") {
		t.Errorf("Link() without a VMM = %v", err)
	}
	// A listener that sends nothing.
	silent, err := net.Listen("unix", a.socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Link(p.ctx, l); err == nil || !strings.Contains(err.Error(), "did not answer within 50ms") {
		t.Errorf("Link() to a silent listener = %v", err)
	}
	// The end of the supervisor ends the wait.
	waits := make(chan error, 1)
	l.TimeoutMillis = timeout.Milliseconds()
	go func() { waits <- c.Link(p.ctx, l) }()
	if _, err := silent.Accept(); err != nil {
		t.Fatal(err)
	}
	if err := c.Shutdown(p.ctx); err != nil {
		t.Error(err)
	}
	if err := <-waits; err == nil {
		t.Error("Link() = nil from a supervisor that ends")
	}
	_ = silent.Close()
}

func TestPrivilegedShimBoundsAFloodingGuest(t *testing.T) {
	a := newPlace(t).newProcess("vm")
	c := a.linked()
	order := a.guestRun("a", 1, "flood")
	order.LogLimits = logfile.Limits{Bytes: 1 << 20, Files: 2}
	if _, err := c.Start(a.ctx, order); err != nil {
		t.Fatal(err)
	}
	if e := a.awaitExit(c); e.ExitCode != 0 || e.LogError != "" {
		t.Errorf("end = %+v", e)
	}
	var size int64
	entries, err := os.ReadDir(a.file("a", "logs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			size += info.Size()
		}
	}
	if size == 0 || size > 3<<20 {
		t.Errorf("the log has %d bytes", size)
	}
	if peak := statusKB(t, c.PID(), "VmHWM"); peak > 16<<10 {
		t.Errorf("the supervisor used up to %d KB", peak)
	}
}

// A client that uses all shared streams leaves the supervisor its own.
func TestPrivilegedShimBoundsForwardedStreams(t *testing.T) {
	a := newPlace(t).newProcess("vm")
	c := a.linked()
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	results := make(chan error, 2*wire.Streams)
	for i := range 2 * wire.Streams {
		go func() {
			_, err := a.guest().Run(ctx, guest.Process{Container: fmt.Sprint(i), Argv: []string{"never"}, Exec: true}, guest.Streams{})
			results <- err
		}()
	}
	// Streams above the limit are refused; the others wait for their guest.
	refused := 0
	for refused < wire.Streams {
		select {
		case err := <-results:
			if err == nil || !strings.Contains(err.Error(), "too many open streams") {
				t.Fatalf("Run() = %v", err)
			}
			refused++
		case <-a.ctx.Done():
			t.Fatalf("%d were refused", refused)
		}
	}
	if _, err := c.Start(a.ctx, a.guestRun("a", 1, "wait")); err != nil {
		t.Fatalf("Start() while they are open = %v", err)
	}
	if err := c.Signal(a.ctx, "a", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := a.awaitExit(c); e.ExitCode != 137 || e.Message != "" {
		t.Errorf("end = %+v", e)
	}
	cancel()
	a.await("streams to be free again", func() bool { return a.guest().Health(a.ctx) == nil })
	if err := c.Shutdown(a.ctx); err != nil {
		t.Error(err)
	}
	a.await("all streams to end in the guest", func() bool { return len(a.ended) >= wire.Streams/2 })
}

// A start that hangs, in a runtime or in a guest, ends when its container is killed. The next
// attempt is not affected.
func TestPrivilegedShimCancelsAStart(t *testing.T) {
	a := newPlace(t).newProcess("vm")
	c := a.linked()
	hanging := a.order("runtime", 1, "true")
	hanging.Argv = []string{"/bin/sh", "-c", "sleep 100000; true"}
	for _, tc := range []struct{ hanging, next shim.Start }{
		{hanging, a.order("runtime", 2, "(outlive; exit 7) & echo $! > $PID")},
		{a.guestRun("guest", 1, "never"), a.guestRun("guest", 2, "say", "x")},
	} {
		name := tc.hanging.Container
		result := make(chan error, 1)
		go func() {
			_, err := c.Start(a.ctx, tc.hanging)
			result <- err
		}()
		var err error
		a.await("the end of the start of "+name, func() bool {
			// SIGTERM has no effect on a process that does not run yet.
			_ = c.Signal(a.ctx, name, syscall.SIGTERM)
			_ = c.Signal(a.ctx, name, syscall.SIGKILL) // the start may not have arrived yet
			select {
			case err = <-result:
				return true
			default:
				return false
			}
		})
		if _, sent := errors.AsType[*shim.StartError](err); !sent || !strings.Contains(err.Error(), "was canceled") {
			t.Errorf("Start() of %s = %v, want that it was canceled", name, err)
		}
		if _, err := c.Start(a.ctx, tc.next); err != nil {
			t.Fatal(err)
		}
		if e := a.awaitExit(c); e.Name != name || e.Attempt != 2 || e.ExitCode != 7 {
			t.Errorf("end = %+v", e)
		}
	}
	if err := c.Shutdown(a.ctx); err != nil {
		t.Error(err)
	}
}
