package forward

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"rik.dev/rik/internal/rpc/portstream"
	"rik.dev/rik/internal/testkit/output"
)

// timeout allows for a busy machine under the race detector.
const timeout = time.Minute

func TestParsePort(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Port{
		"80": {80, 80}, "8080:80": {8080, 80}, ":80": {0, 80}, "65535:1": {65535, 1},
	} {
		if got, err := ParsePort(text); got != want || err != nil {
			t.Errorf("ParsePort(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", ":", "0", "80:", "80:0", "0:80", "65536", "http", "1:2:3", "-1", "+80:80"} {
		if got, err := ParsePort(text); err == nil {
			t.Errorf("ParsePort(%q) = %v, want an error", text, got)
		}
	}
}

// far is the server's side. It runs serve for each connection.
type far struct {
	url string
}

func newFar(t *testing.T, serve func(*portstream.Stream)) far {
	t.Helper()
	upgrader := websocket.Upgrader{Subprotocols: []string{portstream.Protocol}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		stream := portstream.New(ws)
		serve(stream)
		_ = stream.Close()
	}))
	t.Cleanup(s.Close)
	return far{"ws" + strings.TrimPrefix(s.URL, "http")}
}

func (f far) dial(ctx context.Context, _ int) (*portstream.Stream, error) {
	dialer := websocket.Dialer{Subprotocols: []string{portstream.Protocol}}
	ws, answer, err := dialer.DialContext(ctx, f.url, nil)
	if err != nil {
		return nil, err
	}
	_ = answer.Body.Close()
	return portstream.New(ws), nil
}

// running is a forwarder of one port.
type running struct {
	address string
	err     *output.Buffer
	stop    context.CancelFunc
	ended   chan error
}

func run(t *testing.T, c Config) *running {
	t.Helper()
	r := &running{err: &output.Buffer{}, ended: make(chan error, 1)}
	var out bytes.Buffer
	c.Addresses, c.Ports, c.Out, c.Err = []string{"127.0.0.1"}, []Port{{Remote: 80}}, &out, r.err
	if c.Final == nil {
		c.Final = func(error) bool { return false }
	}
	f, err := Listen(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	reported := regexp.MustCompile(`^Forwarding from (127\.0\.0\.1:\d+) -> 80\n$`).FindStringSubmatch(out.String())
	if reported == nil {
		t.Fatalf("the output is %q", out.String())
	}
	r.address = reported[1]
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- f.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

func (r *running) dial(t *testing.T) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(timeout))
	return conn.(*net.TCPConn)
}

// answer returns all data of a connection to which it writes nothing. A connection may fail
// before the dialer sees it as open.
func (r *running) answer() (string, error) {
	conn, err := net.Dial("tcp", r.address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	got, err := io.ReadAll(conn)
	return string(got), err
}

func echo(s *portstream.Stream) {
	if _, err := io.Copy(s, s); err != nil {
		return
	}
	_ = s.CloseWrite()
	s.Finish()
	_ = s.Wait()
}

// TestMany checks that simultaneous connections transfer all their data.
func TestMany(t *testing.T) {
	t.Parallel()
	r := run(t, Config{Dial: newFar(t, echo).dial})
	var all sync.WaitGroup
	for seed := range byte(8) {
		conn := r.dial(t)
		all.Go(func() {
			sent := make([]byte, 1<<20)
			_, _ = rand.NewChaCha8([32]byte{seed}).Read(sent)
			go func() {
				_, _ = conn.Write(sent)
				_ = conn.CloseWrite()
			}()
			got, err := io.ReadAll(conn)
			if err != nil || sha256.Sum256(got) != sha256.Sum256(sent) {
				t.Errorf("%d bytes came back with %v, want the %d that were sent", len(got), err, len(sent))
			}
		})
	}
	all.Wait()
	if text := r.err.String(); text != "" {
		t.Errorf("errors were printed: %s", text)
	}
}

// TestSlowReader checks that a slow reader does not delay other connections.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	r := run(t, Config{Dial: newFar(t, func(s *portstream.Stream) {
		chunk := make([]byte, 64<<10)
		first := make([]byte, 1)
		if _, err := io.ReadFull(s, first); err != nil {
			return
		}
		for first[0] == 's' {
			if _, err := s.Write(chunk); err != nil {
				return
			}
		}
		_, _ = s.Write([]byte("quick"))
		_ = s.CloseWrite()
		s.Finish()
		_ = s.Wait()
	}).dial})
	slow := r.dial(t)
	_, _ = slow.Write([]byte("s")) // do not read the data that follows
	for range 3 {
		quick := r.dial(t)
		_, _ = quick.Write([]byte("q"))
		if got, err := io.ReadAll(quick); string(got) != "quick" || err != nil {
			t.Errorf("with a slow reader: %q, %v", got, err)
		}
	}
}

// TestFailures checks that a failure is reported, does not affect the next connection, and does
// not look like a normal close.
func TestFailures(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	turn := 0
	f := newFar(t, func(s *portstream.Stream) {
		mu.Lock()
		turn++
		mine := turn
		mu.Unlock()
		switch mine {
		case 1:
			s.Fail(errors.New("connection refused"))
			_ = s.Wait()
		case 2:
			_, _ = s.Write([]byte("half"))
		default:
			echo(s)
		}
	})
	r := run(t, Config{Dial: f.dial})
	if got, err := r.answer(); err == nil {
		t.Errorf("a refused connection ended like a good one, with %q", got)
	}
	if got, err := r.answer(); err == nil {
		t.Errorf("half an answer ended like a whole one, with %q", got)
	}
	conn := r.dial(t)
	_, _ = conn.Write([]byte("again"))
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(conn); string(got) != "again" || err != nil {
		t.Errorf("after failures: %q, %v", got, err)
	}
	deadline := time.Now().Add(timeout)
	for _, want := range []string{"to port 80 failed: connection refused\n", portstream.ErrCut.Error()} {
		for !strings.Contains(r.err.String(), want) {
			if time.Now().After(deadline) {
				t.Fatalf("printed were %q, want also %q", r.err.String(), want)
			}
			<-time.After(time.Millisecond)
		}
	}
	r.stop()
	if err := <-r.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run() = %v, want the cancellation", err)
	}
}

// TestFinal checks that a permanent failure ends the forwarding.
func TestFinal(t *testing.T) {
	t.Parallel()
	gone := errors.New("instance web-1 not found")
	r := run(t, Config{
		Dial:  func(context.Context, int) (*portstream.Stream, error) { return nil, gone },
		Final: func(err error) bool { return errors.Is(err, gone) },
	})
	if _, err := r.answer(); err == nil {
		t.Error("the connection ended like a good one")
	}
	select {
	case err := <-r.ended:
		if !errors.Is(err, gone) {
			t.Errorf("Run() = %v, want the error", err)
		}
	case <-time.After(timeout):
		t.Error("the forwarding goes on")
	}
}

func TestListenTakesAllOrNothing(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var out bytes.Buffer
	port := taken.Addr().(*net.TCPAddr).Port
	_, err = Listen(t.Context(), Config{
		Addresses: []string{Localhost}, Ports: []Port{{Remote: 80}, {Local: port, Remote: 81}}, Out: &out,
	})
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(port)) || out.Len() > 0 {
		t.Errorf("Listen() with a taken port = %v, and %q was printed", err, out.String())
	}
}
