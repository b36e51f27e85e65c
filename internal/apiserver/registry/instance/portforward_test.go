package instance_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"rik.dev/rik/internal/apiserver/registry/registrytest"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/rpc/portstream"
)

// port opens a port like a client.
func (s *sessions) port(t *testing.T, user, port string) (*portstream.Stream, *http.Response, error) {
	t.Helper()
	dialer := websocket.Dialer{Subprotocols: []string{portstream.Protocol}}
	url := "ws" + strings.TrimPrefix(s.url, "http") + "/" + s.name + "/portforward?port=" + port
	ws, answer, err := dialer.DialContext(t.Context(), url, http.Header{"X-User": {user}})
	if err != nil {
		return nil, answer, err
	}
	stream := portstream.New(ws)
	t.Cleanup(func() { _ = stream.Close() })
	return stream, answer, nil
}

// echo is a node whose port returns all data that it receives.
func echo(s *registrytest.FarEnd, _ *nodev1.OpenSession) *nodev1.SessionEnd {
	for {
		d := s.Read()
		if d == nil {
			return nil
		}
		if len(d.GetData()) > 0 {
			s.Print(nodev1.NewOutput(nodev1.Channel_CHANNEL_STDOUT, d.GetData()))
		}
		if d.GetEndOfInput() {
			s.Print(nodev1.NewEndOfOutput())
			return &nodev1.SessionEnd{}
		}
	}
}

func TestPortForward(t *testing.T) {
	t.Parallel()
	s := serve(t, "n1", func(s *registrytest.FarEnd, open *nodev1.OpenSession) *nodev1.SessionEnd {
		if open.GetPort().GetPort() != 80 {
			return &nodev1.SessionEnd{Error: "connection refused"}
		}
		d := s.Read()
		s.Out("you said " + string(d.GetData()))
		s.Print(nodev1.NewEndOfOutput())
		if d = s.Read(); string(d.GetData()) != "more" {
			return &nodev1.SessionEnd{Error: "after its own end the instance received " + d.String()}
		}
		if d = s.Read(); !d.GetEndOfInput() {
			return &nodev1.SessionEnd{Error: "at the client's end the instance received " + d.String()}
		}
		return &nodev1.SessionEnd{}
	})
	client, _, err := s.port(t, "ann", "80")
	if err != nil {
		t.Fatal(err)
	}
	if open := <-s.node.Opened; open.GetPort().GetPort() != 80 || open.GetUid() == "" {
		t.Errorf("asked of the node: %v", open)
	}
	_, _ = io.WriteString(client, "ping")
	got, err := io.ReadAll(client)
	if string(got) != "you said ping" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	// The instance has ended its output, and still receives input.
	_, _ = io.WriteString(client, "more")
	_ = client.CloseWrite()
	if err := client.Wait(); err != nil {
		t.Errorf("the connection ended with %v", err)
	}

	client, _, err = s.port(t, "ann", "81")
	if err != nil {
		t.Fatal(err)
	}
	var reported *portstream.RemoteError
	if _, err := io.ReadAll(client); !errors.As(err, &reported) || reported.Message != "connection refused" {
		t.Errorf("a port at which nothing listens: %v", err)
	}
}

func TestPortForwardMuch(t *testing.T) {
	t.Parallel()
	s := serve(t, "n1", echo)
	client, _, err := s.port(t, "ann", "80")
	if err != nil {
		t.Fatal(err)
	}
	sent := make([]byte, 4<<20)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(sent)
	go func() {
		_, _ = io.Copy(client, bytes.NewReader(sent))
		_ = client.CloseWrite()
	}()
	got, err := io.ReadAll(client)
	if err != nil || sha256.Sum256(got) != sha256.Sum256(sent) {
		t.Errorf("%d bytes came back with %v, want the %d that were sent", len(got), err, len(sent))
	}
	if err := client.Wait(); err != nil {
		t.Errorf("the connection ended with %v", err)
	}
}

// TestPortForwardOfOneThatLeaves: when one side disconnects, the other side ends too.
func TestPortForwardOfOneThatLeaves(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	s := serve(t, "n1", func(s *registrytest.FarEnd, _ *nodev1.OpenSession) *nodev1.SessionEnd {
		s.Out("here")
		<-s.Gone()
		close(gone)
		return nil
	})
	client, _, err := s.port(t, "ann", "80")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(client, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Error("the node's session outlives the client")
	}
}

func TestPortForwardRefusals(t *testing.T) {
	t.Parallel()
	s := serve(t, "n1", echo)
	for name, tc := range map[string]struct {
		user, port string
		want       int
	}{
		"a user without the right": {"bob", "80", http.StatusForbidden},
		"no port":                  {"ann", "", http.StatusBadRequest},
		"port 0":                   {"ann", "0", http.StatusBadRequest},
		"a port too high":          {"ann", "65536", http.StatusBadRequest},
	} {
		if _, answer, err := s.port(t, tc.user, tc.port); err == nil || answer.StatusCode != tc.want {
			t.Errorf("%s: %v, want %d", name, err, tc.want)
		}
	}
	if code, text, _ := get(t, s.url+"/"+s.name+"/portforward?port=80"); code != http.StatusBadRequest || !strings.Contains(text, "WebSocket") {
		t.Errorf("without a WebSocket: %d %s", code, text)
	}
	for bound, want := range map[string]int{"": http.StatusConflict, "n2": http.StatusServiceUnavailable} {
		s := serve(t, bound, echo)
		if _, answer, err := s.port(t, "ann", "80"); err == nil || answer.StatusCode != want {
			t.Errorf("an instance of node %q: %v, want %d", bound, err, want)
		}
	}
}
