package e2e

import (
	"crypto/tls"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedAccess checks what an unknown user on the machine can do with a running server.
func TestPrivilegedAccess(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{NoAgent: true})

	t.Run("anonymous requests get 401", func(t *testing.T) {
		anonymous := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		defer anonymous.CloseIdleConnections()
		for path, want := range map[string]int{
			"/apis/rik.dev/v1alpha1/workloads": 401, "/api/v1/secrets": 401, "/metrics": 401, "/rik/why/default/x": 401,
			"/api/v0/workloads.list": 401, "/api/v0/nothing": 401, "/readyz": 200, "/healthz": 200, "/version": 200,
		} {
			// On a busy machine the server may be unready for a moment.
			c.In(t).Eventually(func() error {
				response, err := anonymous.Get("https://127.0.0.1:5000" + path)
				if err != nil {
					return err
				}
				_ = response.Body.Close()
				if response.StatusCode != want {
					return fmt.Errorf("GET %s = %d, want %d", path, response.StatusCode, want)
				}
				return nil
			})
		}
	})
	t.Run("plain HTTP names the URL", func(t *testing.T) {
		response, err := http.Get("http://127.0.0.1:5000/")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		if response.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "https://127.0.0.1:5000") {
			t.Errorf("plain HTTP got %d: %s", response.StatusCode, body)
		}
	})
	t.Run("only our ports are open", func(t *testing.T) {
		// Tests of this package have their own network namespace.
		for _, port := range listening(t) {
			switch port {
			case 4995, 4997, 5000:
			default:
				t.Errorf("port %d is open", port)
			}
		}
	})
	t.Run("secrets are for root alone", func(t *testing.T) {
		c := c.In(t)
		err := filepath.WalkDir(c.DataDir(), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			if !d.IsDir() && d.Type() != fs.ModeSocket && info.Mode().Perm()&0o077 != 0 && filepath.Ext(path) != ".crt" {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
			return nil
		})
		if info, e := os.Stat(c.DataDir()); e != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the data directory has mode %v, %v, want 0700", info.Mode(), e)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Run("a second server says who is there", func(t *testing.T) {
		c := c.In(t)
		second := rikcluster.Run(t, "rik", "server", "--no-agent", "--data-dir", t.TempDir(), "--worker-port", "0", "--node-port", "0")
		if second.Code == 0 || !strings.Contains(second.Stderr, "5000") || !strings.Contains(second.Stderr, "--port") {
			t.Errorf("a second server on the port: code %d\n%s", second.Code, second.Stderr)
		}
		same := rikcluster.Run(t, "rik", "server", "--no-agent", "--data-dir", c.DataDir(), "--worker-port", "0", "--node-port", "0", "--port", "5999")
		if same.Code == 0 || !strings.Contains(same.Stderr, strconv.Itoa(c.Process("server").PID())) {
			t.Errorf("a second server on the data: code %d, want the first one's id in:\n%s", same.Code, same.Stderr)
		}
	})
}

// listening returns the TCP ports that are open in this network namespace.
func listening(t *testing.T) []int {
	t.Helper()
	var ports []int
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		raw, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			fields := strings.Fields(line)
			if len(fields) < 4 || fields[3] != "0A" { // TCP_LISTEN
				continue
			}
			_, hexPort, err := net.SplitHostPort(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			port, err := strconv.ParseInt(hexPort, 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			ports = append(ports, int(port))
		}
	}
	return ports
}
