package guest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/wire"
)

// hostile returns a session with a guest that answers every stream with behave.
func hostile(t *testing.T, behave func(net.Conn)) *guest.Session {
	t.Helper()
	node, inside := net.Pipe()
	go func() {
		if wire.Answer(inside) != nil {
			return
		}
		mux, err := wire.Init(inside)
		if err != nil {
			return
		}
		for {
			stream, err := mux.AcceptStream()
			if err != nil {
				return
			}
			go behave(stream)
		}
	}()
	s, err := guest.NewSession(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// says answers each stream with this text, and then keeps the stream open.
func says(text string) func(net.Conn) {
	return func(c net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, c) }()
		_, _ = io.WriteString(c, text)
	}
}

var endlessText = strings.Repeat("x", wire.MaxMessage+1)

func operations(ctx context.Context, g guest.Guest) map[string]error {
	all := map[string]error{"health": g.Health(ctx), "shutdown": g.Shutdown(ctx), "thaw": g.Thaw(ctx, guest.Identity{}),
		"configure": g.Configure(ctx, guest.Config{}), "files": g.Files(ctx, guest.Volume{Name: "x"})}
	_, all["usage"] = g.Usage(ctx)
	_, all["run"] = g.Run(ctx, guest.Process{Argv: []string{"x"}}, guest.Streams{})
	_, all["dial"] = g.Dial(ctx, 80)
	return all
}

func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"garbage": "\x00\xff\x00garbage\n", "a list": "[1,2]\n",
		"a number that does not fit": "{\"pid\":1e99}\n", "a deep value": strings.Repeat("[", 100000) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := hostile(t, says(text))
			for op, err := range operations(t.Context(), guest.New(s.Open)) {
				if !errors.Is(err, guest.ErrProtocol) {
					t.Errorf("%s = %v, want ErrProtocol", op, err)
				}
			}
		})
	}
}

func TestHostileEndlessLine(t *testing.T) {
	t.Parallel()
	s := hostile(t, says(endlessText))
	if err := guest.New(s.Open).Health(t.Context()); !errors.Is(err, guest.ErrProtocol) {
		t.Errorf("Health() = %v, want ErrProtocol", err)
	}
}

// TestSilentGuest checks that every operation ends with its context. The session refuses new
// streams once the maximum is open, so that its memory stays limited.
func TestSilentGuest(t *testing.T) {
	t.Parallel()
	s := hostile(t, says(""))
	reason := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, reason)
	defer cancel()
	for op, err := range operations(ctx, guest.New(s.Open)) {
		if !errors.Is(err, reason) {
			t.Errorf("%s = %v, want %v", op, err, reason)
		}
	}
	var err error
	for range wire.Streams + 1 {
		if _, err = s.Open(t.Context()); err != nil {
			break
		}
	}
	if !errors.Is(err, guest.ErrBusy) {
		t.Errorf("without end streams are opened: %v", err)
	}
}

func TestHostileProcesses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a frame without kind":   "\x00\x00\x00\x00\x00",
		"an unknown kind":        "\x63\x00\x00\x00\x00",
		"a giant frame":          "\x04\xff\xff\xff\xff",
		"an exit that is none":   "\x06\x00\x00\x00\x02no",
		"an impossible code":     "\x06\x00\x00\x00\x0d{\"code\":9999}",
		"input from the guest":   "\x03\x00\x00\x00\x01x",
		"the end of a something": "\x02\x00\x00\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := guest.New(hostile(t, says("{\"run\":1,\"pid\":2}\n"+text)).Open)
			r, err := g.Run(t.Context(), guest.Process{Argv: []string{"x"}}, guest.Streams{})
			if err != nil {
				t.Fatal(err)
			}
			if exit, err := r.Wait(); !errors.Is(err, guest.ErrProtocol) {
				t.Errorf("Wait() = %+v, %v, want ErrProtocol", exit, err)
			}
		})
	}
}

// TestHostileMultiplexer checks that frames that only a node may send end the session.
func TestHostileMultiplexer(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(*yamux.Session, net.Conn){
		"opens a stream": func(m *yamux.Session, _ net.Conn) { _, _ = m.OpenStream() },
		"pings":          func(m *yamux.Session, _ net.Conn) { _, _ = m.Ping() },
		"garbage":        func(_ *yamux.Session, c net.Conn) { _, _ = io.WriteString(c, endlessText) },
		"hangs up":       func(_ *yamux.Session, c net.Conn) { _ = c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node, inside := net.Pipe()
			go func() {
				if wire.Answer(inside) != nil {
					return
				}
				mux, err := wire.Init(inside)
				if err == nil {
					do(mux, inside)
				}
			}()
			s, err := guest.NewSession(t.Context(), node)
			if err != nil {
				t.Fatal(err)
			}
			<-s.Done()
			if err := guest.New(s.Open).Health(t.Context()); err == nil {
				t.Error("a session that has ended answers")
			}
			_ = inside.Close()
		})
	}
}

// TestFailuresArePrintable checks the text of errors from a guest, because it appears in logs
// and on terminals.
func TestFailuresArePrintable(t *testing.T) {
	t.Parallel()
	g := guest.New(hostile(t, says("{\"failure\":{\"text\":\"a\\u001b[2Jb\\nc"+strings.Repeat("y", 5000)+"\"}}\n")).Open)
	err := g.Health(t.Context())
	if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") || len(err.Error()) > 1200 {
		t.Errorf("Health() = %q", err)
	}
}

func TestFailuresNameTheirKindOnce(t *testing.T) {
	t.Parallel()
	inside := fmt.Errorf("%w: %w: \"x\" is not on the PATH", guest.ErrNoProgram, guest.ErrNoProgram)
	err := guest.NewFailure(inside).Err()
	if !errors.Is(err, guest.ErrNoProgram) || strings.Count(err.Error(), guest.ErrNoProgram.Error()) != 1 {
		t.Errorf("Err() = %q, want its kind once", err)
	}
}
