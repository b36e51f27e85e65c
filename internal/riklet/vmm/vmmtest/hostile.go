package vmmtest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/vmm"
)

// lies are false answers that a compromised VMM could send. Each function writes until it fails.
var lies = map[string]func(net.Conn){
	"silence":         func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
	"hanging up":      func(net.Conn) {},
	"an endless line": func(c net.Conn) { flood(c, strings.Repeat("a", 1<<16)) },
	"endless lines":   func(c net.Conn) { flood(c, strings.Repeat("a\n", 1<<15)) },
	"endless events":  func(c net.Conn) { flood(c, `{"QMP":{}}`+"\n", `{"event":"STOP","data":{}}`+"\n") },
	"endless JSON":    func(c net.Conn) { flood(c, `{"QMP":`, strings.Repeat(`[`, 1<<16)) },
	"an endless header": func(c net.Conn) {
		flood(c, "HTTP/1.1 200 OK\r\n", "X-A: "+strings.Repeat("b", 1<<10)+"\r\n")
	},
	"an endless body": func(c net.Conn) {
		flood(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "10000\r\n"+strings.Repeat("1", 1<<16)+"\r\n")
	},
	"wrong types": func(c net.Conn) {
		flood(c, "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n"+`{"state":[1]}`, `{"QMP":1,"id":1,"return":7,"state":7}`+"\n")
	},
}

// flood writes the first part once and the rest repeatedly. It is slow enough that only the
// reader's memory could fill.
func flood(c net.Conn, first string, rest ...string) {
	again := strings.Join(rest, "")
	if again == "" {
		again = first
	}
	if _, err := io.WriteString(c, first); err != nil {
		return
	}
	for {
		if _, err := io.WriteString(c, again); err != nil {
			return
		}
	}
}

// hostile checks that no peer on the VMM's socket can block a caller beyond its context, fill
// its memory, or be accepted as a VMM.
func (s *suite) hostile(t *testing.T) {
	if s.ControlSocket == nil {
		t.Skip("the driver has no socket")
	}
	for name, falsify := range lies {
		t.Run(name, func(t *testing.T) {
			m := s.machine(t)
			// The peer is the test's own process. The driver must not refuse it because of its
			// user.
			m.UID, m.GID = uint32(os.Geteuid()), uint32(os.Getegid())
			serve(t, s.ControlSocket(m), falsify)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- s.ask(ctx, m) }()
			select {
			case err := <-done:
				if err == nil {
					t.Error("a peer with false answers was accepted as a running VMM")
				}
			case <-time.After(s.Timeout):
				t.Fatal("the call did not end with its context")
			}
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 32<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
		})
	}
	t.Run("another user", s.rejectsImpostor)
}

func (s *suite) ask(ctx context.Context, m vmm.Machine) error {
	v, err := s.Driver.Connect(ctx, m)
	if err != nil {
		return err
	}
	_, first := v.State(ctx)
	_, second := v.Metrics(ctx)
	third := v.Pause(ctx)
	_ = v.Close()
	if first == nil && second == nil && third == nil {
		return nil
	}
	return errors.Join(first, second, third)
}

// rejectsImpostor checks that the driver sends nothing to a socket that a process of another user
// than the machine's serves.
func (s *suite) rejectsImpostor(t *testing.T) {
	m := s.machine(t)
	m.UID++
	asked := make(chan struct{}, 100)
	serve(t, s.ControlSocket(m), func(c net.Conn) {
		if n, _ := c.Read(make([]byte, 1)); n > 0 {
			asked <- struct{}{}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := s.Driver.Connect(ctx, m); err == nil {
		t.Error("Connect() to a socket of another user = nil, want an error")
	}
	if len(asked) > 0 {
		t.Error("the driver sent data to a socket of another user")
	}
}

// serve answers every connection to a socket with f.
func serve(t *testing.T, path string, f func(net.Conn)) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan net.Conn, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c
			go func() {
				defer func() { _ = c.Close() }()
				f(c)
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		close(conns)
		for c := range conns {
			_ = c.Close()
		}
	})
}
