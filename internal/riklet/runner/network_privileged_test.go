package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/netns"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/testkit/privileged"
)

// network is the network of a node, in its own network namespace.
type network struct {
	testing.TB
	pid      int // a process in the namespace
	settings bridge.Settings
	bridge   *bridge.Bridge
	paused   bool // its pod CIDR is not configured
	now      *bridge.Switch
}

var networkSettings = bridge.Settings{PodCIDR: netip.MustParsePrefix("10.62.7.0/24"), MTU: 1400, Domain: "rik.local"}

// openNetwork does what a riklet does when it starts.
func openNetwork(pid int, settings bridge.Settings) (b *bridge.Bridge, s *bridge.Switch, err error) {
	namespace, err := netns.Of(pid)
	if err != nil {
		return nil, nil, err
	}
	defer namespace.Close()
	err = netns.Within(namespace, func() (err error) {
		b, err = bridge.New(bridge.DefaultName)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	s = bridge.NewSwitch(b, nil)
	// The settings and the mount of /proc/sys belong to the thread.
	if err := s.Configure(context.Background(), settings); err != nil {
		return nil, nil, errors.Join(err, b.Close())
	}
	return b, s, nil
}

// newNetworkNode returns a node with a network.
func newNetworkNode(t testing.TB) *node {
	t.Helper()
	privileged.Require(t)
	cmd := exec.Command("sleep", "7200")
	// Another process group: on Ctrl-C the test still needs the namespace.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := &network{TB: t, pid: cmd.Process.Pid, settings: networkSettings}
	t.Cleanup(func() {
		if left := w.devices(); len(left) > 1 {
			t.Errorf("devices left: %v", left)
		}
		w.close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	n := newNode(t)
	n.network = w
	return n
}

// open opens the network again, as a restarted riklet does.
func (w *network) open() instance.Network {
	w.Helper()
	w.close()
	var err error
	if w.bridge, w.now, err = openNetwork(w.pid, w.settings); err != nil {
		w.Fatal(err)
	}
	if w.paused {
		w.now = bridge.NewSwitch(w.bridge, nil)
	}
	return w.now
}

func (w *network) close() {
	if w.bridge != nil {
		if err := w.bridge.Close(); err != nil {
			w.Error(err)
		}
	}
	w.bridge = nil
}

// dialerIn returns a dialer that connects from the network namespace of a process.
func dialerIn(pid int) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		namespace, err := netns.Of(pid)
		if err != nil {
			return nil, err
		}
		defer namespace.Close()
		err = netns.Within(namespace, func() (err error) {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
}

// run runs a program in the network namespace.
func (w *network) run(argv ...string) string {
	w.Helper()
	out, err := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(w.pid), "-n", "--"}, argv...)...).CombinedOutput()
	if err != nil {
		w.Fatalf("%v: %v: %s", argv, err, bytes.TrimSpace(out))
	}
	return string(out)
}

func (w *network) devices() []string {
	w.Helper()
	var names []string
	for line := range strings.Lines(w.run("ip", "-o", "link")) {
		name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
		if name = strings.TrimSuffix(name, ":"); strings.HasPrefix(name, "rik") {
			names = append(names, name)
		}
	}
	return names
}

func (w *network) leftOf(uid string) []string {
	w.Helper()
	if name := bridge.Device(uid); slices.Contains(w.devices(), name) {
		return []string{"device " + name}
	}
	return nil
}

func TestPrivilegedPodsReachEachOther(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	n.cfg.Resolver = filepath.Join(n.dir, "resolv.conf")
	if err := os.WriteFile(n.cfg.Resolver, []byte("search corp.example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	web := sh("web", "mkdir /tmp/w; echo hello from $MINE > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w")
	web.Env = []rikv1alpha1.EnvVar{{Name: "MINE", ValueFrom: &rikv1alpha1.EnvVarSource{FieldRef: "status.address"}}}
	web.ReadinessProbe = &rikv1alpha1.Probe{TCP: &rikv1alpha1.TCPProbe{Port: 8080}, PeriodSeconds: 1, TimeoutSeconds: 30}
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, web))
	s := n.await("u1", "ready", func(s rikv1alpha1.InstanceStatus) bool { return s.Ready })
	if s.Address != "10.62.7.2" || s.HostAddress != n.cfg.Node.Address {
		t.Errorf("addresses = %q and %q", s.Address, s.HostAddress)
	}
	client := sh("main", "cat /etc/resolv.conf; tail -n 1 /etc/hosts; wget -q -O - http://"+s.Address+":8080/; "+forever)
	n.ensure(podOf("u2", rikv1alpha1.RestartAlways, client))
	n.awaitPhase("u2", rikv1alpha1.InstanceRunning)
	want := "# written by rik; changes are lost when the instance ends\nnameserver 10.62.7.1\nsearch default.rik.local short_names.rik.local corp.example\noptions ndots:2\n" +
		"10.62.7.3\tname-of-u2\nhello from 10.62.7.2\n"
	eventually(t, func() string { return cmp.Diff(want, n.log("u2", "")) })
	n.stop("u1", 0)
	n.stop("u2", 0)
	if left := n.network.devices(); !slices.Equal(left, []string{bridge.DefaultName}) {
		t.Errorf("devices = %v", left)
	}
}

// A process that may send raw frames can forge source addresses. So no container may, unless an
// administrator allows it. The busybox of the tests can ping only with a raw socket.
func TestPrivilegedContainersHaveNoRawSockets(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	n.start()
	const ping = "ping -c 1 -w 30 10.62.7.1 2>&1 | grep -o -e 'permission denied' -e '1 packets received'; cat /proc/sys/net/ipv4/ping_group_range"
	plain, added := sh("plain", ping), sh("added", ping)
	plain.User = "0"
	added.Security = &rikv1alpha1.Security{AddCapabilities: []string{"NET_RAW"}}
	n.ensure(podOf("u1", rikv1alpha1.RestartNever, plain, added))
	n.awaitPhase("u1", rikv1alpha1.InstanceCompleted)
	want := "permission denied\n0\t2147483647\n" + "1 packets received\n0\t2147483647\n"
	if got := n.log("u1", "plain") + n.log("u1", "added"); got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
}

// A process that is not root may listen on every port of its instance, with and without a
// network. It may not listen on the node's ports below 1024.
func TestPrivilegedEveryUserListensOnLowPorts(t *testing.T) {
	t.Parallel()
	const script = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start; echo up > /tmp/index.html; httpd -p 127.0.0.1:80 -h /tmp && wget -q -O - http://127.0.0.1:80/"
	own, err := readFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if err != nil {
		t.Fatal(err)
	}
	for name, newNode := range map[string]func(testing.TB) *node{"with a network": newNetworkNode, "without": newNode} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.start()
			c := sh("main", script)
			c.User = "1001"
			n.ensure(podOf("u1", rikv1alpha1.RestartNever, c))
			s := n.awaitPhase2("u1", rikv1alpha1.InstanceCompleted)
			if got := n.log("u1", ""); got != "0\nup\n" {
				t.Errorf("the log is %q: %+v", got, s)
			}
			host := sh("main", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start")
			in := podOf("u2", rikv1alpha1.RestartNever, host)
			in.Template.HostNetwork = true
			n.ensure(in)
			n.awaitPhase2("u2", rikv1alpha1.InstanceCompleted)
			if got := n.log("u2", ""); got != own {
				t.Errorf("in the node's network the lowest port is %q, want %q as before", got, own)
			}
		})
	}
}

func TestPrivilegedEndedInstancesHaveNoAddress(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartNever, sh("main", "true")))
	if s := n.awaitPhase("u1", rikv1alpha1.InstanceCompleted); s.Address != "" {
		t.Errorf("address = %q", s.Address)
	}
	if left := n.network.leftOf("u1"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	n.stop("u1", -1)
}

func TestPrivilegedInstancesWaitForTheNetwork(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	n.network.paused = true
	n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, sh("main", forever)))
	n.ensure(podOf("u2", rikv1alpha1.RestartNever, sh("main", "true")))
	n.ensure(podOf("u3", rikv1alpha1.RestartAlways, sh("main", forever)))
	own := podOf("u4", rikv1alpha1.RestartAlways, sh("main", forever))
	own.Template.HostNetwork = true
	n.ensure(own)
	for _, uid := range []string{"u1", "u2", "u3"} {
		s := n.await(uid, "waiting", func(s rikv1alpha1.InstanceStatus) bool { return s.Reason == reasonNetwork })
		if s.Phase != rikv1alpha1.InstanceCreating || !strings.Contains(s.Message, "has not sent its address range") {
			t.Errorf("status of %s = %+v", uid, s)
		}
	}
	n.awaitPhase("u4", rikv1alpha1.InstanceRunning)
	n.stop("u3", -1)
	n.end()
	// A waiting instance survives a restart.
	n.start()
	n.await("u1", "waiting", func(s rikv1alpha1.InstanceStatus) bool { return s.Reason == reasonNetwork })
	if err := n.network.now.Configure(t.Context(), n.network.settings); err != nil {
		t.Fatal(err)
	}
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	n.awaitPhase("u2", rikv1alpha1.InstanceCompleted)
}

// brokenNetwork cannot attach while broken is set.
type brokenNetwork struct {
	instance.Network
	broken atomic.Bool
}

func (b *brokenNetwork) Attach(ctx context.Context, uid string, pid int) (instance.Attachment, error) {
	a, err := b.Network.Attach(ctx, uid, pid)
	if b.broken.Load() {
		return instance.Attachment{}, errors.Join(err, errors.New("the cable is broken"))
	}
	return a, err
}

func TestPrivilegedFailedAttachmentIsUndone(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	d := n.open()
	broken := &brokenNetwork{Network: n.network.now}
	broken.broken.Store(true)
	d.cfg.Network = broken
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	n.end = func() {
		cancel()
		<-done
		_, _ = d.Close(), n.images.Close()
		n.end = nil
	}
	n.ensure(podOf("u1", rikv1alpha1.RestartNever, sh("main", "true")))
	if s := n.awaitPhase("u1", rikv1alpha1.InstanceFailed); s.Reason != reasonPrepare || !strings.Contains(s.Message, "the cable is broken") {
		t.Errorf("status = %+v", s)
	}
	if left := n.network.leftOf("u1"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	n.ensure(podOf("u2", rikv1alpha1.RestartAlways, sh("main", forever)))
	n.await("u2", "failing", func(s rikv1alpha1.InstanceStatus) bool { return s.Reason == reasonPrepare })
	broken.broken.Store(false)
	n.awaitPhase("u2", rikv1alpha1.InstanceRunning)
	n.stop("u2", 0)
	n.stop("u1", 0)
}

func TestPrivilegedSupervisorLostMovesTheInstance(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, sh("main", "echo run; "+forever)))
	before := n.awaitPhase("u1", rikv1alpha1.InstanceRunning).Address
	m := n.driver.machine("u1")
	pid, _ := m.engineRunning().Namespaces()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s := n.await("u1", "running again", func(s rikv1alpha1.InstanceStatus) bool {
		return s.Containers[0].RestartCount == 1 && s.Containers[0].State == rikv1alpha1.ContainerRunning && s.Address != ""
	})
	if got := inside(n, "u1"); !strings.Contains(got, "inet "+s.Address+"/32") || s.Address == before {
		t.Errorf("address = %s, was %s; inside: %s", s.Address, before, got)
	}
	n.stop("u1", 0)
}

// inside returns the output of ip(8) about the instance's addresses.
func inside(n *node, uid string) string {
	n.Helper()
	var out bytes.Buffer
	if code, err := n.driver.Exec(n.Context(), uid, "", instance.ExecOptions{Command: []string{"ip", "-4", "addr"}, Stdout: &out}); err != nil || code != 0 {
		n.Fatal(code, err)
	}
	return out.String()
}

func TestPrivilegedConnectionsSurviveTheAgent(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	n.start()
	serve := sh("main", "echo hello > /tmp/index.html; exec httpd -f -p 8080 -h /tmp")
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, serve))
	n.ensure(podOf("u2", rikv1alpha1.RestartAlways, sh("main", forever)))
	first := n.awaitPhase("u1", rikv1alpha1.InstanceRunning).Address
	second := n.awaitPhase("u2", rikv1alpha1.InstanceRunning).Address
	n.end()
	// An earlier riklet that was killed could have left these.
	n.network.run("ip", "link", "add", bridge.Device("gone"), "type", "veth", "peer", "name", "x")
	n.network.run("ip", "link", "set", bridge.Device("gone"), "alias", "rik0 gone 10.62.7.77")
	n.start()
	if a, b := n.status("u1").Address, n.status("u2").Address; a != first || b != second {
		t.Errorf("addresses = %s and %s, were %s and %s", a, b, first, second)
	}
	if left := n.network.leftOf("gone"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	eventually(t, func() string {
		var out bytes.Buffer
		_, err := n.driver.Exec(t.Context(), "u2", "", instance.ExecOptions{Command: []string{"wget", "-q", "-O", "-", "http://" + first + ":8080/"}, Stdout: &out})
		if err != nil || out.String() != "hello\n" {
			return fmt.Sprintf("answer = %q, %v", out.String(), err)
		}
		return ""
	})
	n.ensure(podOf("u3", rikv1alpha1.RestartAlways, sh("main", forever)))
	if third := n.awaitPhase("u3", rikv1alpha1.InstanceRunning).Address; third == first || third == second {
		t.Errorf("%s was given out twice", third)
	}
	for _, uid := range []string{"u1", "u2", "u3"} {
		n.stop(uid, 0)
	}
}

func TestPrivilegedServingInstancesAreDrained(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	n.cfg.DrainDelay = time.Hour
	n.start()
	const polite = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 1000 & wait $!; done"
	c := sh("main", polite)
	c.Ports = []rikv1alpha1.Port{{Port: 8080}}
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, c))
	n.ensure(podOf("u2", rikv1alpha1.RestartAlways, sh("main", polite)))
	for _, uid := range []string{"u1", "u2"} {
		n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
		eventually(t, func() string { return cmp.Diff("up\n", n.log(uid, "")) })
	}
	n.driver.Stop("u1", 10*time.Hour)
	n.driver.Stop("u2", 10*time.Hour)
	s := n.awaitPhase("u1", rikv1alpha1.InstanceDestroying)
	if s.Ready || s.Address == "" {
		t.Errorf("status = %+v, want not ready, with its address", s)
	}
	// The instance without ports received its signal at once. By then the other one would have
	// received its signal too, if there were no delay.
	n.awaitPhase("u2", rikv1alpha1.InstanceTerminated)
	if got := n.log("u1", ""); got != "up\n" {
		t.Errorf("log = %q, want no signal while it is drained", got)
	}
	n.driver.Stop("u1", 30*time.Millisecond)
	n.awaitPhase("u1", rikv1alpha1.InstanceTerminated)
	n.stop("u1", 0)
	n.stop("u2", 0)

	// After the delay, the signal arrives.
	n.end()
	n.cfg.DrainDelay = 10 * time.Millisecond
	n.start()
	dir := t.TempDir()
	c.Command[2] = "trap 'echo bye > /h/bye; exit 0' TERM; echo up; while :; do sleep 1000 & wait $!; done"
	c.VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "h", MountPath: "/h"}}
	in := podOf("u3", rikv1alpha1.RestartAlways, c)
	in.Template.Volumes = []rikv1alpha1.Volume{{Name: "h", HostPath: &rikv1alpha1.HostPathVolume{Path: dir}}}
	n.ensure(in)
	n.awaitPhase("u3", rikv1alpha1.InstanceRunning)
	eventually(t, func() string { return cmp.Diff("up\n", n.log("u3", "")) })
	n.stop("u3", 10*time.Hour)
	if got, err := readFile(dir + "/bye"); got != "bye\n" {
		t.Errorf("last words = %q, %v", got, err)
	}
}

func TestPrivilegedNodeWithoutNetworkGetsOne(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	with := n.network
	n.network = nil
	n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, sh("main", forever)))
	if s := n.awaitPhase("u1", rikv1alpha1.InstanceRunning); s.Address != "" {
		t.Errorf("address = %q", s.Address)
	}
	n.end()
	n.network = with
	n.start()
	n.ensure(podOf("u2", rikv1alpha1.RestartAlways, sh("main", forever)))
	n.awaitPhase("u2", rikv1alpha1.InstanceRunning)
	if s := n.status("u1"); s.Phase != rikv1alpha1.InstanceRunning || s.Containers[0].RestartCount != 0 || s.Address != "" {
		t.Errorf("status of one that ran before = %+v", s)
	}
	n.stop("u1", 0)
	n.stop("u2", 0)
	if _, err := os.Stat(n.driver.paths.NetworkFile("u2")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("network file: %v", err)
	}
}
