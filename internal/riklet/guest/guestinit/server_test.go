package guestinit_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/wire"
)

// limit is how long a test waits for something that must happen.
const limit = time.Minute

// await fails the test unless the channel is closed in time.
func (h *fakeServer) await(done <-chan struct{}, what string) {
	h.Helper()
	select {
	case <-done:
	case <-time.After(limit):
		h.Fatalf("%s did not happen within %s", what, limit)
	}
}

// streams starts a session and returns a function that opens its streams, to send what no node
// sends.
func (h *fakeServer) streams() func() net.Conn {
	h.Helper()
	node, in := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.server.Serve(in)
	}()
	s, err := guest.NewSession(h.Context(), node)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		_ = s.Close()
		h.await(done, "the end of the session")
	})
	return func() net.Conn {
		h.Helper()
		conn, err := s.Open(h.Context())
		h.must(err)
		h.Cleanup(func() { _ = conn.Close() })
		h.must(conn.SetDeadline(time.Now().Add(limit)))
		return conn
	}
}

// request sends a line, and then frames, and returns the answer.
func (h *fakeServer) request(conn net.Conn, line string, frames ...[]byte) guest.Answer {
	h.Helper()
	_, err := conn.Write(append([]byte(line+"\n"), bytes.Join(frames, nil)...))
	h.must(err)
	var answer guest.Answer
	h.must(wire.ReadLine(conn, &answer))
	return answer
}

// healthy fails the test unless the session still answers.
func (h *fakeServer) healthy(open func() net.Conn) {
	h.Helper()
	if answer := h.request(open(), `{"op":"health"}`); answer.Failure != nil {
		h.Errorf("the session does not answer any more: %v", answer.Failure.Text)
	}
}

func TestIncompleteRequestsAreRefused(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	open := h.streams()
	for line, want := range map[string]string{
		`{}`:                          "does not support the operation",
		`{"op":"fly"}`:                `does not support the operation "fly"`,
		`{"op":"run"}`:                "no process",
		`{"op":"configure"}`:          "no configuration",
		`{"op":"files"}`:              "no volume",
		`{"op":"thaw"}`:               "no identity",
		`{"op":"signal","signal":15}`: "does not run",
		`{"op":"signal","run":99}`:    "does not run",
		`{"op":"resize","run":99}`:    "does not run",
		`{"op":"stdin","run":99}`:     "does not run",
		`{"op":"run","process":{"container":"main","kept":true}}`: "does not run",
	} {
		answer := h.request(open(), line)
		if answer.Failure == nil || !strings.Contains(answer.Failure.Text, want) {
			t.Errorf("%s is answered with %+v, want a failure with %q", line, answer, want)
		}
	}
	h.healthy(open)
	if h.stage.config != nil || len(h.stage.volumes)+len(h.stage.thawed)+len(h.stage.started) > 0 {
		t.Errorf("a refused request reached the machine: %+v", h.stage)
	}
}

// TestMalformedRequestsEndTheirStream checks that a line that is no request ends its own stream,
// and neither the session nor its processes.
func TestMalformedRequestsEndTheirStream(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	open := h.streams()
	running := open()
	if answer := h.request(running, `{"op":"run","process":{"container":"main","argv":["serve"]}}`); answer.Failure != nil {
		t.Fatal(answer.Failure)
	}
	for _, line := range []string{"", "garbage", "[1,2]", `{"op":5}`, `{"op":"run","run":-1}`, `{"op":"health"} {"op":"health"}`, "\x00\xff", strings.Repeat("x", wire.MaxMessage+1)} {
		conn := open()
		go func() { _, _ = io.WriteString(conn, line+"\n") }()
		if answer, err := io.ReadAll(conn); err != nil || len(answer) > 0 {
			t.Errorf("%.40q is answered with %.100q, %v, want the end of the stream", line, answer, err)
		}
	}
	h.must(open().Close()) // a stream without a request
	h.healthy(open)
	h.stage.process("main serve").exit(3)
	frames := wire.NewReader(running)
	var e guest.Exit
	if kind, _, err := frames.Next(); err != nil || kind != wire.Exit || frames.JSON(&e) != nil || e.Code != 3 {
		t.Errorf("the process ended with a frame of kind %d, %+v, %v", kind, e, err)
	}
}

// frame returns a frame as it is on the wire.
func frame(t *testing.T, kind wire.Kind, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := wire.WriteFrame(&b, kind, []byte(content)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// bySum compares long content by its sum, because cmp would search for the difference for minutes.
var bySum = cmp.Transformer("sum", func(b []byte) string { return fmt.Sprintf("%d bytes, %x", len(b), sha256.Sum256(b)) })

func TestFilesArriveWhole(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	g, _ := h.session()
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // more than a line and many frames
	volumes := []guest.Volume{
		{Name: "plain"},
		{Name: "settings", Projected: true, Files: []guest.File{{Path: "a", Mode: 0o640, Data: []byte("one")}, {Path: "deep/b", Mode: 0o400, Data: big}, {Path: "empty", Mode: 0o644}}},
		{Name: "keys", Projected: true, Files: []guest.File{{Path: "a", Mode: 0o600, Data: []byte("two")}}},
	}
	h.must(g.Configure(t.Context(), guest.Config{Hostname: "echo-1", Volumes: volumes, Time: time.Unix(5, 0).UTC(), Entropy: []byte("random")}))
	want := &guest.Config{Hostname: "echo-1", Volumes: volumes, Time: time.Unix(5, 0).UTC(), Entropy: []byte("random")}
	if diff := cmp.Diff(want, h.stage.config, bySum); diff != "" {
		t.Errorf("configured with (-want +got):\n%s", diff)
	}
	h.must(g.Files(t.Context(), volumes[1]))
	if diff := cmp.Diff(volumes[1:2], h.stage.volumes, bySum); diff != "" {
		t.Errorf("files of (-want +got):\n%s", diff)
	}
}

// TestMalformedFilesChangeNothing checks that the machine gets a volume only if all its files
// have arrived.
func TestMalformedFilesChangeNothing(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	open := h.streams()
	header, data, end := frame(t, wire.File, `{"volume":"v","path":"a","mode":420}`), frame(t, wire.Data, "content"), frame(t, wire.End, "")
	const line = `{"op":"files","volume":{"name":"v"}}`
	for name, frames := range map[string][][]byte{
		"content without a file": {data, end},
		"another volume's file":  {frame(t, wire.File, `{"volume":"w","path":"a"}`), end},
		"a header of no sense":   {frame(t, wire.File, "no"), end},
		"output":                 {header, frame(t, wire.Stdout, "x"), end},
		"an exit":                {frame(t, wire.Exit, `{"code":0}`)},
		"an unknown kind":        {{0x63, 0, 0, 0, 0}},
		"a giant frame":          {{byte(wire.Data), 0xff, 0xff, 0xff, 0xff}},
	} {
		if answer := h.request(open(), line, frames...); answer.Failure == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	cut := open()
	_, err := cut.Write(slices.Concat([]byte(line+"\n"), header, data[:len(data)-1]))
	h.must(errors.Join(err, cut.Close()))
	h.healthy(open)
	if len(h.stage.volumes) > 0 {
		t.Errorf("the machine got %+v", h.stage.volumes)
	}
	if answer := h.request(open(), line, header, data, end); answer.Failure != nil || len(h.stage.volumes) != 1 {
		t.Errorf("a correct request is answered with %+v", answer)
	}
}

func TestSignalsReachOnlyARunningProcess(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	g, _ := h.session()
	first, _ := h.run(g, mainProcess)
	second, _ := h.run(g, guest.Process{Container: "main", Argv: []string{"look"}, Exec: true})
	h.must(first.Signal(t.Context(), int(syscall.SIGHUP)))
	h.must(first.Signal(t.Context(), int(syscall.SIGTERM)))
	h.must(second.Signal(t.Context(), int(syscall.SIGINT)))
	serve, look := h.stage.process("main serve"), h.stage.process("main look")
	if got := serve.received(); !slices.Equal(got, []int{1, 15}) {
		t.Errorf("the container got the signals %v, want 1 and 15", got)
	}
	if got := look.received(); !slices.Equal(got, []int{2}) {
		t.Errorf("the command got the signals %v, want 2", got)
	}
	serve.exit(0)
	if _, err := first.Wait(); err != nil {
		t.Fatal(err)
	}
	// The PID may now belong to another process.
	open := h.streams()
	if answer := h.request(open(), `{"op":"signal","run":1,"signal":9}`); answer.Failure != nil {
		t.Errorf("a signal to a process that has ended: %v", answer.Failure.Text)
	}
	if got := append(serve.received(), look.received()...); len(got) != 3 {
		t.Errorf("signals after the end: %v", got)
	}
}

func TestInputArrivesAndEnds(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	g, _ := h.session()
	input := strings.Repeat("line of input\n", 20000)
	running, err := g.Run(t.Context(), mainProcess, guest.Streams{Stdin: strings.NewReader(input)})
	h.must(err)
	p := h.stage.process("main serve")
	h.must(p.in.SetReadDeadline(time.Now().Add(limit)))
	if got, err := io.ReadAll(p.in); err != nil || string(got) != input {
		t.Errorf("the process got %d of %d bytes, %v", len(got), len(input), err)
	}
	p.exit(0)
	if e, err := running.Wait(); err != nil || e.Code != 0 {
		t.Errorf("Wait() = %+v, %v", e, err)
	}
	// Input for a process that was started without it.
	h.run(g, guest.Process{Container: "deaf", Argv: []string{"serve"}})
	if answer := h.request(h.streams()(), `{"op":"stdin","run":2}`); answer.Failure == nil {
		t.Error("a process without input has input")
	}
}

// TestOutputIsFollowed checks that each line arrives while the process runs, and that the last
// output arrives before the exit, also if another process keeps the pipe open.
func TestOutputIsFollowed(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	g, _ := h.session()
	running, said := h.run(g, mainProcess)
	p := h.stage.process("main serve")
	for i := range 3 {
		line := fmt.Sprintf("line %d\n", i)
		_, err := p.out.WriteString(line)
		h.must(err)
		h.says(said, line)
	}
	left, err := unix.Dup(int(p.out.Fd()))
	h.must(err)
	leftBehind := os.NewFile(uintptr(left), "left behind")
	defer leftBehind.Close()
	last := strings.Repeat("y", 50000) + "\n" // more than one frame, and less than a pipe holds
	_, err = p.out.WriteString(last)
	h.must(err)
	p.exit(5)
	h.says(said, last)
	if e, err := running.Wait(); err != nil || e.Code != 5 {
		t.Errorf("Wait() = %+v, %v", e, err)
	}
}

func TestASessionEndsItsProcesses(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	g, end := h.session()
	h.run(g, mainProcess)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	abandoned, err := g.Run(ctx, guest.Process{Container: "main", Argv: []string{"look"}, Exec: true}, guest.Streams{})
	h.must(err)
	cancel(reason)
	if _, err := abandoned.Wait(); !errors.Is(err, reason) {
		t.Errorf("Wait() of an abandoned command = %v, want %v", err, reason)
	}
	h.await(h.stage.process("main look").done, "the end of an abandoned command")
	select {
	case <-h.stage.process("main serve").done:
		t.Error("the container ended with a command in it")
	default:
	}
	end()
	h.await(h.stage.process("main serve").done, "the end of the container")
}

func TestTerminalsAreResized(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	g, _ := h.session()
	running, _ := h.run(g, guest.Process{Container: "main", Argv: []string{"shell"}, TTY: true})
	h.must(running.Resize(t.Context(), guest.Size{Width: 100, Height: 30}))
	size, err := unix.IoctlGetWinsize(int(h.stage.process("main shell").tty.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col != 100 || size.Row != 30 {
		t.Errorf("the process sees the size %+v, %v, want 100x30", size, err)
	}
	plain, _ := h.run(g, mainProcess)
	if err := plain.Resize(t.Context(), guest.Size{Width: 1, Height: 1}); err == nil || !strings.Contains(err.Error(), "no terminal") {
		t.Errorf("Resize() without a terminal = %v", err)
	}
}

// TestDialCarriesBothDirections checks the connections that port-forward and the probes use.
func TestDialCarriesBothDirections(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	dial, accepted := dialPair()
	h.stage.dial = dial
	g, _ := h.session()
	conn, err := g.Dial(t.Context(), 80)
	h.must(err)
	server := <-accepted
	deadline := time.Now().Add(limit)
	h.must(errors.Join(conn.SetDeadline(deadline), server.SetDeadline(deadline)))
	request, response := strings.Repeat("request ", 100000), strings.Repeat("response ", 100000)
	go func() {
		_, _ = io.WriteString(conn, request)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	if got, err := io.ReadAll(server); err != nil || string(got) != request {
		t.Errorf("the server got %d of %d bytes, %v", len(got), len(request), err)
	}
	go func() {
		_, _ = io.WriteString(server, response)
		_ = server.Close()
	}()
	if got, err := io.ReadAll(conn); err != nil || string(got) != response {
		t.Errorf("the node got %d of %d bytes, %v", len(got), len(response), err)
	}
	if _, err := g.Dial(t.Context(), 81); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("Dial() of a port without a server = %v", err)
	}

	// When the node leaves, the server sees the end of its connection.
	conn, err = g.Dial(t.Context(), 80)
	h.must(err)
	server = <-accepted
	h.must(errors.Join(conn.Close(), server.SetDeadline(deadline)))
	if got, err := io.ReadAll(server); errors.Is(err, os.ErrDeadlineExceeded) || len(got) > 0 {
		t.Errorf("after the node has left the server reads %q, %v", got, err)
	}
}

func TestThawPassesTheIdentity(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	g, _ := h.session()
	want := guest.Identity{Hostname: "echo-2", Hosts: "127.0.0.1 localhost\n", Resolv: "nameserver 10.0.2.9\n", Time: time.Unix(1700000000, 5).UTC(), Entropy: []byte("random")}
	h.must(g.Thaw(t.Context(), want))
	if diff := cmp.Diff([]guest.Identity{want}, h.stage.thawed); diff != "" {
		t.Errorf("thawed with (-want +got):\n%s", diff)
	}
}

func TestFailuresOfTheMachineKeepTheirKind(t *testing.T) {
	t.Parallel()
	h := newFakeServer(t)
	h.stage.usageErr = errors.New("no cgroups")
	g, _ := h.session()
	if _, err := g.Usage(t.Context()); err == nil || !strings.Contains(err.Error(), "no cgroups") {
		t.Errorf("Usage() = %v", err)
	}
	h.stage.usageErr = nil
	u, err := g.Usage(t.Context())
	if err != nil || u.CPUNanos != 5 || u.MemoryBytes != 6 || u.Containers["main"].MemoryBytes != 7 {
		t.Errorf("Usage() = %+v, %v", u, err)
	}
	for _, want := range []error{guest.ErrNoProgram, guest.ErrNotRunnable, guest.ErrDisk} {
		h.stage.startErr = fmt.Errorf("%w: the cause", want)
		if _, err := g.Run(t.Context(), mainProcess, guest.Streams{}); !errors.Is(err, want) || !strings.Contains(err.Error(), "the cause") {
			t.Errorf("Run() = %v, want %v with its cause", err, want)
		}
	}
}

// TestShutdownStopsThenPowersOff checks the order: kept containers end too, their exits arrive,
// and the machine ends even if the disks could not be written.
func TestShutdownStopsThenPowersOff(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"a clean one": nil, "disks that fail": errors.New("the disk is full")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFakeServer(t)
			h.stage.stopErr = failure
			g, _ := h.session()
			h.run(g, mainProcess)
			h.must(g.Keep(t.Context()))
			err := g.Shutdown(t.Context())
			if failure == nil && err != nil || failure != nil && (err == nil || !strings.Contains(err.Error(), failure.Error())) {
				t.Errorf("Shutdown() = %v, want %v", err, failure)
			}
			if !h.stage.stopped {
				t.Error("the disks were not written before the answer")
			}
			h.await(h.stage.process("main serve").done, "the end of the container")
			h.await(h.stage.poweredOff, "the power-off")
		})
	}
}
