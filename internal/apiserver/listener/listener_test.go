package listener

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestListenNamesTheHolder(t *testing.T) {
	t.Parallel()
	first, err := Listen(t.Context(), "127.0.0.1", 0, "--door")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	port := first.Addr().(*net.TCPAddr).Port
	_, err = Listen(t.Context(), "127.0.0.1", port, "--door")
	if err == nil {
		t.Fatal("the port was opened twice")
	}
	own, readErr := os.ReadFile("/proc/self/comm")
	if readErr != nil {
		t.Fatal(readErr)
	}
	for _, text := range []string{strconv.Itoa(port), "process " + strconv.Itoa(os.Getpid()), strings.TrimSpace(string(own)), "--door"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("Listen() = %q, want it to say %q", err, text)
		}
	}
	if _, err := Listen(t.Context(), "203.0.113.1", 0, "--door"); err == nil || strings.Contains(err.Error(), "has it") {
		t.Errorf("Listen() on an address of another machine = %v", err)
	}
}

// sniffedServer serves TLS behind Sniff.
func sniffedServer(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "through")
	}))
	server.Listener = Sniff(server.Listener)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// TestListenWaitsForAHolderThatEnds passes a port's socket between two processes, so that for a
// moment no process has it, like after a kill during a fork.
func TestListenWaitsForAHolderThatEnds(t *testing.T) {
	t.Parallel()
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := held.Addr().(*net.TCPAddr).Port
	file, err := held.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(int(file.Fd())), nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(file.Close(), held.Close()); err != nil {
		t.Fatal(err)
	}
	if early, err := net.Listen("tcp", held.Addr().String()); err == nil {
		_ = early.Close()
		t.Fatal("the socket on its way holds no port: the test tests nothing")
	}
	time.AfterFunc(100*time.Millisecond, func() { _ = errors.Join(unix.Close(pair[0]), unix.Close(pair[1])) })
	listener, err := Listen(t.Context(), "127.0.0.1", port, "--port")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
}

func TestSniffLetsTLSThrough(t *testing.T) {
	t.Parallel()
	server := sniffedServer(t)
	response, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "through" {
		t.Errorf("answer = %q, %v", body, err)
	}
}

func TestSniffAnswersPlainHTTP(t *testing.T) {
	t.Parallel()
	server := sniffedServer(t)
	response, err := http.Get("http://" + server.Listener.Addr().String() + "/a%20b?c=d")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if want := server.URL + "/a%20b"; response.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), want) {
		t.Errorf("answer = %d %q, want 400 naming %s", response.StatusCode, body, want)
	}
}

func TestSniffClosesOtherProtocols(t *testing.T) {
	t.Parallel()
	server := sniffedServer(t)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "SSH-2.0-x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(conn); err == nil && strings.Contains(string(answer), "through") {
		t.Errorf("answer = %q", answer)
	}
	// The next connection is still served.
	secure, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	secure.Close()
}
