package facts

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/portowner"
	"rik.dev/rik/internal/testkit/netnstest"
	"rik.dev/rik/internal/testkit/privileged"
)

// envHold makes a process of this test binary listen on the port, and envReissue makes it issue the
// certificate of a server in the directory, as a server does when it starts.
const (
	envHold    = "RIK_TEST_HOLD"
	envReissue = "RIK_TEST_REISSUE"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(envHold); address != "" {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("listening")
		_, _ = listener.Accept()
		os.Exit(0)
	}
	if dir := os.Getenv(envReissue); dir != "" {
		if err := issue(context.Background(), dir, time.Hour); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// issue creates the authority in a directory if necessary, and issues the certificate of a server.
func issue(ctx context.Context, dir string, validity time.Duration) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	authority, err := pki.LoadOrCreate(dir)
	if err != nil {
		return err
	}
	_, err = pki.NewLeaf(ctx, pki.LeafConfig{
		CertFile: filepath.Join(dir, "server.crt"), KeyFile: filepath.Join(dir, "server.key"),
		Issue: func(context.Context) ([]byte, []byte, error) {
			return authority.IssueServer([]string{"localhost"}, validity)
		},
	})
	return err
}

// look returns the finding with an ID that is not OK, if there is one. object may be empty.
func look(t *testing.T, cfg Config, id, object string) (doctor.Finding, bool) {
	t.Helper()
	report, err := doctor.Check(Gather(t.Context(), cfg), []string{id})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Findings) == 0 {
		t.Fatalf("the check %s returned nothing", id)
	}
	i := slices.IndexFunc(report.Findings, func(f doctor.Finding) bool {
		return f.Severity != doctor.OK && (object == "" || f.Object == object)
	})
	if i < 0 {
		return doctor.Finding{}, false
	}
	return report.Findings[i], true
}

// requireFixed requires a finding that says something, runs its command as it is printed, and requires
// that the finding is gone.
func requireFixed(t *testing.T, cfg Config, id, object string, severity doctor.Severity, says ...string) {
	t.Helper()
	f, found := look(t, cfg, id, object)
	if !found {
		t.Fatalf("no finding %s", id)
	}
	for _, s := range says {
		if !strings.Contains(f.Message, s) {
			t.Errorf("%s says %q, want %q", id, f.Message, s)
		}
	}
	if f.Severity != severity || f.Fix == "" || f.Affects == "" {
		t.Fatalf("finding %+v, want a command and the severity %s", f, severity)
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", f.Fix).CombinedOutput(); err != nil {
		t.Fatalf("running %q: %v\n%s", f.Fix, err, out)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		left, found := look(t, cfg, id, object)
		if !found {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %q there is still %+v", f.Fix, left)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
}

// inMounts runs the test in a mount namespace of its own, so that nothing that is mounted stays.
func inMounts(t *testing.T) bool {
	t.Helper()
	const env = "RIK_TEST_MOUNTS"
	if os.Getenv(env) == t.Name() {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		return true
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	c.Env = append(os.Environ(), env+"="+t.Name())
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("in a mount namespace of its own: %v\n%s", err, out)
	}
	return false
}

// mount mounts a file system until the test ends.
func mount(t *testing.T, kind, at string, flags uintptr, options string) {
	t.Helper()
	if err := unix.Mount(kind, at, kind, flags, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func run(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}

// TestPrivilegedADroppingForwardPolicy has the policy that Docker sets, in the variant of iptables that
// rik does not use.
func TestPrivilegedADroppingForwardPolicy(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	cfg := config(t)
	if f, found := look(t, cfg, "firewall-forward", ""); found {
		t.Fatalf("a namespace without rules has %+v", f)
	}
	// Another program's rule decides which variant rik uses.
	run(t, "iptables-nft", "-A", "INPUT", "-p", "tcp", "--dport", "22", "-j", "ACCEPT")
	run(t, "iptables-legacy", "-P", "FORWARD", "DROP")
	run(t, "iptables-legacy", "-N", "DOCKER-USER")
	run(t, "iptables-legacy", "-A", "FORWARD", "-j", "DOCKER-USER")
	requireFixed(t, cfg, "firewall-forward", "iptables-legacy", doctor.Error, "iptables-legacy drops forwarded packets", "which Docker sets", "they do not help")
	out, err := exec.CommandContext(t.Context(), "iptables-legacy", "-S", "DOCKER-USER").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "-A DOCKER-USER -s 10.62.0.0/16 -j ACCEPT") {
		t.Errorf("rules of DOCKER-USER: %v\n%s", err, out)
	}
	if _, found := look(t, cfg, "firewall-mixed", ""); !found {
		t.Error("rules in both variants are not reported")
	}
}

// TestPrivilegedAPolicyBeforeTheNode has the policy in the variant that rik uses: its own rules will
// come first.
func TestPrivilegedAPolicyBeforeTheNode(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	cfg := config(t)
	run(t, "iptables-nft", "-P", "FORWARD", "DROP")
	run(t, "iptables-nft", "-A", "FORWARD", "-i", "docker0", "-j", "ACCEPT")
	f, found := look(t, cfg, "firewall-forward", "")
	if !found || f.Severity != doctor.Info || !strings.Contains(f.Message, "rik puts its own rules first") {
		t.Errorf("finding %+v, want that rik's rules come first", f)
	}
}

// TestPrivilegedAForeignTable has a chain of nftables that no rule of iptables overrules.
func TestPrivilegedAForeignTable(t *testing.T) {
	privileged.Require(t)
	ns := netnstest.New(t)
	ns.Firewall("guards", netnstest.Forward)
	ns.Do(func() {
		f, found := look(t, config(t), "firewall-forward", "")
		if !found || f.Severity != doctor.Error || f.Object != "inet guards guard" || !strings.Contains(f.Fix, "nft insert rule inet guards guard ip saddr 10.62.0.0/16 accept") {
			t.Errorf("finding %+v, want the foreign chain and the command", f)
		}
	})
	ns.NoFirewall("guards")
	ns.Do(func() {
		if f, found := look(t, config(t), "firewall-forward", ""); found {
			t.Errorf("without the table there is %+v", f)
		}
	})
}

func TestPrivilegedATakenPort(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	const port = 5000
	cfg := config(t)
	cfg.Ports = []doctor.Port{{ID: "port-api", Number: port, Protocol: portowner.TCP, Purpose: "the API", Flag: "--port"}}
	if f, found := look(t, cfg, "port-api", ""); found {
		t.Fatalf("a free port has %+v", f)
	}
	holder := exec.CommandContext(t.Context(), os.Args[0])
	holder.Env = append(os.Environ(), fmt.Sprintf("%s=127.0.0.1:%d", envHold, port))
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	// A signal at the death of its parent would come too early: the threads that try features end.
	t.Cleanup(func() { _ = holder.Process.Kill() })
	done := make(chan error, 1)
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	go func() { done <- holder.Wait() }()
	// Run the command only if it cannot stop anything else.
	if f, _ := look(t, cfg, "port-api", ""); f.Fix != fmt.Sprintf("kill %d", holder.Process.Pid) {
		t.Fatalf("finding %+v, want that it kills process %d", f, holder.Process.Pid)
	}
	requireFixed(t, cfg, "port-api", "5000/tcp", doctor.Error, fmt.Sprintf("process %d (", holder.Process.Pid), "--port")
	<-done
}

func TestPrivilegedAFullTmpfs(t *testing.T) {
	privileged.Require(t)
	if !inMounts(t) {
		return
	}
	cfg := config(t)
	if err := os.MkdirAll(cfg.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, "tmpfs", cfg.RunDir, 0, "size=4m,nr_inodes=100")
	if f, found := look(t, cfg, "disk-space", cfg.RunDir); found {
		t.Fatalf("an empty tmpfs has %+v", f)
	}
	if err := os.WriteFile(filepath.Join(cfg.RunDir, "big"), make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	requireFixed(t, cfg, "disk-space", cfg.RunDir, doctor.Error, cfg.RunDir, "0.0 KiB free of 4.0 MiB (100% used)")
	for i := range 97 {
		if err := os.WriteFile(filepath.Join(cfg.RunDir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	requireFixed(t, cfg, "disk-inodes", cfg.RunDir, doctor.Error, "free inodes of 100")
}

func TestPrivilegedAMountWithNoexec(t *testing.T) {
	privileged.Require(t)
	if !inMounts(t) {
		return
	}
	cfg := config(t)
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	mount(t, "tmpfs", cfg.StateDir, unix.MS_NOEXEC|unix.MS_NODEV|unix.MS_NOSUID, "size=64m")
	requireFixed(t, cfg, "disk-options", cfg.StateDir, doctor.Error, "mounted with noexec, nodev, nosuid")
}

// TestPrivilegedStateOnOverlay has the state directory on an overlay, as in a container.
func TestPrivilegedStateOnOverlay(t *testing.T) {
	privileged.Require(t)
	if !inMounts(t) {
		return
	}
	cfg := config(t)
	base := t.TempDir()
	mount(t, "tmpfs", base, 0, "size=64m")
	for _, dir := range []string{"lower", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", base)
	mount(t, "overlay", cfg.StateDir, 0, options)
	f, found := look(t, cfg, "disk-filesystem", cfg.StateDir)
	if !found || f.Severity != doctor.Error || !strings.Contains(f.Message, "is on overlay, which cannot hold the files that containers write") {
		t.Errorf("finding %+v", f)
	}
	entries, err := os.ReadDir(cfg.StateDir)
	if err != nil || len(entries) != 0 {
		t.Errorf("the check has left %v, %v", entries, err)
	}
}

// TestPrivilegedAnExpiredCertificate restarts the unit of the server, as the finding says. In the place
// of systemd, the start of a server issues its certificate again, with the same code.
func TestPrivilegedAnExpiredCertificate(t *testing.T) {
	privileged.Require(t)
	cfg := config(t)
	dir := filepath.Join(cfg.DataDir, pkiDir)
	if err := issue(t.Context(), dir, time.Hour); err != nil {
		t.Fatal(err)
	}
	if f, found := look(t, cfg, "certificate-validity", ""); found {
		t.Fatalf("a fresh certificate has %+v", f)
	}
	expire(t, dir)
	programs := t.TempDir()
	systemctl := fmt.Sprintf("#!/bin/sh\n[ \"$*\" = 'restart rik' ] || exit 1\n%s=%s exec %s\n", envReissue, dir, os.Args[0])
	if err := os.WriteFile(filepath.Join(programs, "systemctl"), []byte(systemctl), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	requireFixed(t, cfg, "certificate-validity", filepath.Join(dir, "server.crt"), doctor.Error, "server's certificate", "expired on")

	key := filepath.Join(dir, "server.key")
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	requireFixed(t, cfg, "certificate-permissions", key, doctor.Error, "accessible to other users")
}

// expire replaces the certificate of the server with one that has expired.
func expire(t *testing.T, dir string) {
	t.Helper()
	authority, err := pki.LoadOrCreate(dir)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := authority.IssueServer([]string{"localhost"}, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"server.crt": certificate, "server.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPrivilegedLeftovers has a bridge of a node whose directories were deleted.
func TestPrivilegedLeftovers(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	cfg := config(t)
	if f, found := look(t, cfg, "state-leftover", ""); found {
		t.Fatalf("a clean machine has %+v", f)
	}
	run(t, "ip", "link", "add", "rik0", "type", "bridge")
	run(t, "iptables", "-N", "RIKLET-FORWARD")
	run(t, "iptables", "-A", "FORWARD", "-j", "RIKLET-FORWARD")
	f, found := look(t, cfg, "state-leftover", "")
	if !found || f.Severity != doctor.Warning || !strings.Contains(f.Message, "the network devices rik0; rules in iptables") || !strings.Contains(f.Fix, "riklet purge --state-dir "+cfg.StateDir) {
		t.Errorf("finding %+v", f)
	}
}

// TestPrivilegedProbesLeaveNothing compares the machine before and after all checks.
func TestPrivilegedProbesLeaveNothing(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	state := func() string {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "ip link; iptables-save | grep -v '^#'; iptables-legacy-save | grep -v '^#'; cat /proc/self/mountinfo | wc -l; find /sys/fs/cgroup -name 'rik-doctor-test*'; find /tmp -maxdepth 1 -name 'probe*'").CombinedOutput()
		if err != nil && len(out) == 0 {
			t.Fatal(err)
		}
		return string(out)
	}
	cfg := config(t)
	Gather(t.Context(), cfg) // the kernel may create empty tables when they are read
	before := state()
	m := Gather(t.Context(), cfg)
	if after := state(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	for feature, p := range m.Kernel.Probes {
		if !p.Tried {
			t.Errorf("the feature %s was not tried", feature)
		}
	}
}
