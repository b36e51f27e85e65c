package bridge

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"rik.dev/rik/internal/riklet/netns"
)

// namespace is a separate network namespace, held by a sleeping process.
type namespace struct {
	testing.TB
	pid  int
	file *os.File
}

func newNamespace(t testing.TB) *namespace {
	t.Helper()
	cmd := exec.Command("sleep", "7200")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	file, err := netns.Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	n := &namespace{TB: t, pid: cmd.Process.Pid, file: file}
	n.run("ip", "link", "set", "lo", "up")
	return n
}

// run runs a program inside and returns its output.
func (n *namespace) run(argv ...string) string {
	n.Helper()
	cmd := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(n.pid), "-n", "--"}, argv...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.Fatalf("%v: %v: %s", argv, err, bytes.TrimSpace(out))
	}
	return string(out)
}

// sysctl reads a setting inside.
func (n *namespace) sysctl(path string) (value string) {
	n.Helper()
	err := netns.Within(n.file, func() error {
		data, err := os.ReadFile(filepath.Join("/proc/sys", path))
		value = strings.TrimSpace(string(data))
		return err
	})
	if err != nil {
		n.Fatal(err)
	}
	return value
}

// do runs work on a thread inside.
func (n *namespace) do(work func() error) {
	n.Helper()
	if err := netns.Within(n.file, work); err != nil {
		n.Fatal(err)
	}
}

// newBridge returns a Bridge in its own namespace.
func newBridge(t testing.TB) (*namespace, *Bridge) {
	t.Helper()
	host := newNamespace(t)
	var b *Bridge
	host.do(func() (err error) {
		b, err = New(DefaultName)
		return err
	})
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return host, b
}

var someSettings = Settings{
	PodCIDR: netip.MustParsePrefix("10.62.7.0/24"), MTU: 1400, Domain: "rik.local",
	ClusterRanges: []ClusterRange{{netip.MustParsePrefix("10.62.7.0/24"), "this node's range", "--cluster-cidr"}},
}

func newSwitch(t testing.TB) (*namespace, *Switch) {
	t.Helper()
	host, b := newBridge(t)
	s := NewSwitch(b, nil)
	if err := s.Configure(t.Context(), someSettings); err != nil {
		t.Fatal(err)
	}
	return host, s
}

// devices lists the names of all devices except the loopback.
func (n *namespace) devices() []string {
	n.Helper()
	var names []string
	for line := range strings.Lines(n.run("ip", "-o", "link")) {
		name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
		// Some kernels create tunnel devices in every namespace.
		if name = strings.TrimSuffix(name, ":"); name != "lo" && strings.Contains(line, "link/ether") {
			names = append(names, name)
		}
	}
	return names
}
