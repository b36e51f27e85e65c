package guestinit_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/guestinit"
)

// fakeServer is a server whose sessions the test can start and end.
type fakeServer struct {
	*testing.T
	stage  *stage
	server *guestinit.Server
}

func newFakeServer(t *testing.T) *fakeServer {
	s := newStage()
	return &fakeServer{T: t, stage: s, server: guestinit.NewServer(s, t.Logf)}
}

// session starts a session. end ends it and returns when the server is done with it.
func (h *fakeServer) session() (g guest.Guest, end func()) {
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
	end = sync.OnceFunc(func() {
		_ = s.Close()
		select {
		case <-done:
		case <-time.After(time.Minute):
			h.Error("the session does not end")
		}
	})
	h.Cleanup(end)
	return guest.New(s.Open), end
}

// run starts or joins a process and returns a reader of its output.
func (h *fakeServer) run(g guest.Guest, p guest.Process) (guest.Running, *bufio.Reader) {
	h.Helper()
	r, w := io.Pipe()
	running, err := g.Run(h.Context(), p, guest.Streams{Stdout: w})
	if err != nil {
		h.Fatal(err)
	}
	go func() { _, _ = running.Wait(); _ = w.Close() }()
	return running, bufio.NewReader(r)
}

func (h *fakeServer) says(from *bufio.Reader, want string) {
	h.Helper()
	if line, err := from.ReadString('\n'); line != want {
		h.Errorf("the process printed %q, %v, want %q", line, err, want)
	}
}

func (h *fakeServer) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

var mainProcess = guest.Process{Container: "main", Argv: []string{"serve"}}

func TestAKeptContainerChangesItsSession(t *testing.T) {
	h := newFakeServer(t)
	g, end := h.session()
	_, said := h.run(g, mainProcess)
	beside, _ := h.run(g, guest.Process{Container: "main", Argv: []string{"look"}, Exec: true})
	process := h.stage.process("main serve")
	_, _ = process.out.WriteString("before\n")
	h.says(said, "before\n")
	h.must(g.Keep(t.Context()))
	_, _ = process.out.WriteString("while it was kept\n")
	end()
	if sendRemaining, _ := io.ReadAll(said); len(sendRemaining) > 0 {
		t.Errorf("a kept container sends %q to its old session", sendRemaining)
	}
	if _, err := beside.Wait(); err == nil {
		t.Error("a command outlived its session")
	}
	select {
	case <-h.stage.process("main look").done:
	case <-time.After(time.Minute):
		t.Error("the command in the container was not killed")
	}

	g, _ = h.session()
	kept := guest.Process{Container: "main", Kept: true}
	h.must(g.Thaw(t.Context(), guest.Identity{}))
	running, said := h.run(g, kept)
	h.says(said, "while it was kept\n")
	if running.PID() != 7 {
		t.Errorf("PID() = %d, want the old one", running.PID())
	}
	if _, err := g.Run(t.Context(), kept, guest.Streams{}); err == nil || !strings.Contains(err.Error(), "this process does not run") {
		t.Errorf("a joined container can be joined again: %v", err)
	}
	process.exit(3)
	if e, err := running.Wait(); err != nil || e.Code != 3 {
		t.Errorf("Wait() = %+v, %v", e, err)
	}
}

func TestExitOfAKeptContainerIsReported(t *testing.T) {
	h := newFakeServer(t)
	g, end := h.session()
	h.run(g, mainProcess)
	h.must(g.Keep(t.Context()))
	h.stage.process("main serve").exit(4)
	end()
	g, _ = h.session()
	h.must(g.Thaw(t.Context(), guest.Identity{}))
	running, _ := h.run(g, guest.Process{Container: "main", Kept: true})
	if e, err := running.Wait(); err != nil || e.Code != 4 {
		t.Errorf("Wait() = %+v, %v", e, err)
	}
}

func TestThawEndsKeep(t *testing.T) {
	h := newFakeServer(t)
	g, end := h.session()
	_, said := h.run(g, mainProcess)
	process := h.stage.process("main serve")
	h.must(g.Keep(t.Context()))
	_, _ = process.out.WriteString("held\n")
	h.must(g.Thaw(t.Context(), guest.Identity{}))
	h.says(said, "held\n")
	end()
	select {
	case <-process.done:
	case <-time.After(time.Minute):
		t.Error("a container that is kept no more outlived its session")
	}
}

// A session that ends without Keep, after one with Keep, ends the kept processes.
func TestUnjoinedContainersEndWithTheNextSession(t *testing.T) {
	h := newFakeServer(t)
	g, end := h.session()
	h.run(g, mainProcess)
	h.must(g.Keep(t.Context()))
	end()
	g, end = h.session()
	h.must(g.Thaw(t.Context(), guest.Identity{}))
	end()
	select {
	case <-h.stage.process("main serve").done:
	case <-time.After(time.Minute):
		t.Error("the process still runs")
	}
	g, _ = h.session()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if _, err := g.Run(ctx, guest.Process{Container: "main", Kept: true}, guest.Streams{}); err != nil {
			if !strings.Contains(err.Error(), "this process does not run") {
				t.Error(err)
			}
			return
		}
	}
}
