package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// notifyVariable has the address of systemd's socket; see sd_notify(3).
const notifyVariable = "NOTIFY_SOCKET"

// serviceManager receives what programs tell systemd.
type serviceManager struct {
	address string

	mu       sync.Mutex
	messages []string
}

func newServiceManager(t *testing.T) *serviceManager {
	t.Helper()
	m := &serviceManager{address: filepath.Join(t.TempDir(), "notify")}
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		message := make([]byte, 4096)
		for {
			n, err := socket.Read(message)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.messages = append(m.messages, string(message[:n]))
			m.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		if err := socket.Close(); err != nil {
			t.Error(err)
		}
		group.Wait()
	})
	return m
}

// inOrder returns an error unless the messages have these beginnings, in this order.
func (m *serviceManager) inOrder(beginnings ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rest := beginnings
	for _, message := range m.messages {
		if len(rest) > 0 && strings.HasPrefix(message, rest[0]) {
			rest = rest[1:]
		}
	}
	if len(rest) > 0 {
		return fmt.Errorf("no message %q in %q", rest[0], m.messages)
	}
	return nil
}

// heirs returns the processes whose environment has the address, except some.
func (m *serviceManager) heirs(except ...int) ([]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, file := range files {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		environment, err := os.ReadFile(file)
		if err != nil || slices.Contains(except, pid) || !bytes.Contains(environment, []byte(notifyVariable+"="+m.address)) {
			continue // the process may have ended
		}
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "comm"))
		found = append(found, fmt.Sprintf("%d %s", pid, strings.TrimSpace(string(command))))
	}
	return found, nil
}

// TestPrivilegedServiceManager checks what a server and a node tell systemd, and that no process
// that they start can speak for them.
func TestPrivilegedServiceManager(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	m := newServiceManager(t)
	t.Setenv(notifyVariable, m.address)
	c := rikcluster.Start(t, rikcluster.Options{})
	if err := os.Unsetenv(notifyVariable); err != nil { // other programs of the test are no services
		t.Fatal(err)
	}
	c.Eventually(func() error {
		return m.inOrder("STATUS=starting: waiting for the datastore", "STATUS=starting: waiting for the API server", "STATUS=starting: waiting for the controller",
			"STATUS=the API answers at https://", "READY=1", "STATUS=the API answers; node node-1 starts", "STATUS=the API answers; node node-1 runs")
	})
	c.RikctlInput("apiVersion: rik.dev/v1alpha1\nkind: Workload\nmetadata: {name: web}\nspec:\n  kind: Pod\n  deploy: Automatic\n  containers:\n  - {name: web, image: "+c.Busybox()+", command: [sleep, \"1000\"]}\n", "apply", "-f", "-")
	c.Rikctl("rollout", "status", "workload/web", "--timeout=2m")
	server := c.Process("server")
	all, err := m.heirs()
	if err != nil || len(all) == 0 {
		t.Fatalf("the server itself was started with the address, and is not found: %v, %v", all, err)
	}
	if others, err := m.heirs(server.PID()); err != nil || len(others) > 0 {
		t.Errorf("these processes have the address of the service manager: %q, %v", others, err)
	}
	c.Rikctl("delete", "workload", "web")
	server.Stop()
	deadline := time.Now().Add(10 * time.Second)
	for err = errors.New("not asked yet"); err != nil && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		err = m.inOrder("READY=1", "STOPPING=1")
	}
	if err != nil {
		t.Error(err)
	}
}
