package portstream

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
)

// pair returns the two ends of one connection.
func pair(t *testing.T) (client, server *Stream) {
	t.Helper()
	accepted := make(chan *Stream, 1)
	upgrader := websocket.Upgrader{Subprotocols: []string{Protocol}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		accepted <- New(ws)
	}))
	t.Cleanup(s.Close)
	dialer := websocket.Dialer{Subprotocols: []string{Protocol}}
	ws, answer, err := dialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(s.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	client, server = New(ws), <-accepted
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return client, server
}

func TestBothDirections(t *testing.T) {
	t.Parallel()
	client, server := pair(t)
	sent := make([]byte, 5<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(sent)
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(server, server)
		done <- errors.Join(err, server.CloseWrite())
		server.Finish()
		_ = server.Wait()
	}()
	go func() {
		_, _ = client.Write(sent)
		_ = client.CloseWrite()
	}()
	got, err := io.ReadAll(client)
	if err != nil || sha256.Sum256(got) != sha256.Sum256(sent) {
		t.Errorf("%d bytes came back with %v, want the %d that were sent", len(got), err, len(sent))
	}
	if err := client.Wait(); err != nil {
		t.Errorf("Wait() = %v, want a good end", err)
	}
	if err := <-done; err != nil {
		t.Errorf("the other side ended with %v", err)
	}
}

// TestHalfClose checks that the end of one direction does not end the other.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	client, server := pair(t)
	if err := server.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(client); len(got) > 0 || err != nil {
		t.Errorf("ReadAll() = %q, %v, want nothing", got, err)
	}
	if _, err := client.Write([]byte("still here")); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	if n, err := server.Read(buffer); string(buffer[:n]) != "still here" || err != nil {
		t.Errorf("Read() = %q, %v", buffer[:n], err)
	}
}

func TestFailureIsReported(t *testing.T) {
	t.Parallel()
	client, server := pair(t)
	_, _ = server.Write([]byte("half"))
	server.Fail(errors.New("connection refused"))
	got, err := io.ReadAll(client)
	var reported *RemoteError
	if string(got) != "half" || !errors.As(err, &reported) || reported.Message != "connection refused" {
		t.Errorf("ReadAll() = %q, %v, want the half and the reason", got, err)
	}
	// The reason also arrives after all data has arrived.
	client, server = pair(t)
	_ = server.CloseWrite()
	server.Fail(errors.New(strings.Repeat("x", 2*maxText)))
	if _, err := io.Copy(&bytes.Buffer{}, client); err != nil {
		t.Errorf("Copy() = %v, want all", err)
	}
	if err := client.Wait(); !errors.As(err, &reported) || len(reported.Message) < maxText/2 {
		t.Errorf("Wait() = %v, want the reason", err)
	}
}

// TestCut checks that data of a cut connection is not treated as complete.
func TestCut(t *testing.T) {
	t.Parallel()
	client, server := pair(t)
	_, _ = server.Write([]byte("half"))
	_ = server.Close()
	if got, err := io.ReadAll(client); string(got) != "half" || !errors.Is(err, ErrCut) {
		t.Errorf("ReadAll() = %q, %v, want the half and ErrCut", got, err)
	}
	client, server = pair(t)
	_ = server.CloseWrite()
	_ = server.Close()
	if _, err := io.ReadAll(client); err != nil {
		t.Errorf("ReadAll() = %v", err)
	}
	if err := client.Wait(); !errors.Is(err, ErrCut) {
		t.Errorf("Wait() = %v, want ErrCut", err)
	}
}

func TestMalformedFrames(t *testing.T) {
	t.Parallel()
	client, server := pair(t)
	if err := server.send(websocket.TextMessage, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 10)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("Read() of an unknown message = %v, want an error", err)
	}
}
