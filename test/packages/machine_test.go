package packages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bootTimeout is for a machine that many tests share.
const bootTimeout = 3 * time.Minute

// controllers are the cgroup hierarchies of which a machine gets a part.
var controllers = []string{"unified", "systemd", "memory", "cpu", "cpuacct", "cpuset", "blkio", "devices", "freezer", "pids", "net_cls", "perf_event"}

// machine is a Debian with systemd as its first process, in namespaces of its own.
type machine struct {
	testing.TB
	// name is the machine's host name.
	name   string
	root   string
	group  string
	nspawn *exec.Cmd
	init   int
}

// The base systems, as variables with their directories.
const (
	plain   = "RIK_DEBIAN_ROOT"
	engines = "RIK_ENGINES_ROOT" // with Docker, Podman and their composes, which do not start by themselves
)

// newMachine copies the plain base system and boots it.
func newMachine(t testing.TB) *machine {
	t.Helper()
	return newMachineFrom(t, plain, "test")
}

// newNamed is newMachine with a host name, for tests with two machines.
func newNamed(t testing.TB, name string) *machine {
	t.Helper()
	return newMachineFrom(t, plain, name)
}

// newMachineFrom copies a base system and boots it with a host name.
func newMachineFrom(t testing.TB, base, name string) *machine {
	t.Helper()
	base = environment(t, base)
	// Not t.TempDir: with mounts left in it, its cleanup would remove what is mounted.
	dir, err := os.MkdirTemp("", "machine-")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{TB: t, name: name, root: filepath.Join(dir, "root"), group: "test-" + filepath.Base(dir)}
	t.Cleanup(func() {
		m.off()
		if err := errors.Join(m.removeGroups(), remove(dir)); err != nil {
			t.Errorf("removing the machine: %v", err)
		}
	})
	m.host("cp", "-a", "--reflink=auto", base, m.root)
	if err := os.WriteFile(filepath.Join(m.root, "etc/hostname"), []byte(name+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(m.root, "test"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"snapshot.sh", "keep.sh", "hello.yaml", "spread.yaml"} {
		m.host("cp", filepath.Join("testdata", name), filepath.Join(m.root, "test", name))
	}
	m.boot()
	return m
}

// remove removes the directory of a machine. The mounts of the machine ended with its namespace; if
// one is left on this machine, nothing may be removed through it.
func remove(dir string) error {
	mounted, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	if strings.Contains(string(mounted), " "+dir+"/") {
		return fmt.Errorf("%s is not removed: something is mounted below it", dir)
	}
	return os.RemoveAll(dir)
}

// link connects two machines by a cable, with the addresses 10.0.0.1 and 10.0.0.2. The cable ends with
// one of the machines, also with its restart.
func link(one, other *machine) {
	one.Helper()
	one.host("ip", "link", "add", "name", "eth0", "netns", strconv.Itoa(one.init), "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(other.init))
	for i, m := range []*machine{one, other} {
		m.run(fmt.Sprintf("ip addr add 10.0.0.%d/24 dev eth0 && ip link set eth0 up && ip route add default via 10.0.0.%d", i+1, 2-i))
	}
}

// debian installs packages of Debian with what they need. hack/installs.sh fetched them.
func (m *machine) debian(name string) {
	m.Helper()
	found, err := filepath.Glob(filepath.Join(environment(m, "RIK_DEBIAN_PACKAGES"), name, "*.deb"))
	if err != nil || len(found) == 0 {
		m.Fatalf("there are no packages for %s: %v", name, err)
	}
	to := filepath.Join(m.root, "test", "debian", name)
	m.host("mkdir", "-p", to)
	m.host("cp", append([]string{"-t", to}, found...)...)
	// Without the lists of packages, apt does not try to fetch them again.
	m.run("mkdir -p /test/lists/partial && apt-get -o Dir::State::Lists=/test/lists install -qq -y --no-install-recommends /test/debian/" + name + "/*.deb")
}

// host runs a command of this machine.
func (m *machine) host(name string, args ...string) string {
	m.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		m.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// boot starts the machine and waits until systemd has started all units.
func (m *machine) boot() {
	m.Helper()
	// systemd-nspawn needs a terminal. It joins cgroups of its own first, so that the cgroup
	// namespace of the machine begins there and rik does not meet other tests.
	script := `for c in ` + strings.Join(controllers, " ") + `; do
  [ -d /sys/fs/cgroup/$c ] || continue
  mkdir -p /sys/fs/cgroup/$c/$1
  if [ $c = cpuset ]; then for f in cpus mems; do cat /sys/fs/cgroup/cpuset/cpuset.$f >/sys/fs/cgroup/cpuset/$1/cpuset.$f; done; fi
  echo $$ >/sys/fs/cgroup/$c/$1/cgroup.procs
done
exec script -qfec "exec systemd-nspawn --register=no --keep-unit --private-network --capability=all --system-call-filter='@keyring bpf @mount @module' --machine=$4 -b -D $2" $3`
	m.nspawn = exec.Command("bash", "-c", script, "-", m.group, m.root, m.console(), m.name)
	m.nspawn.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := m.nspawn.Start(); err != nil {
		m.Fatal(err)
	}
	m.init = 0
	m.await("has a first process", func() bool {
		m.init = firstProcess(m.nspawn.Process.Pid)
		return m.init > 0
	})
	// The machine may not change kernel settings and cgroups, because systemd-nspawn mounts them
	// read-only. Those of its own namespaces are its own.
	var last string
	defer func() {
		if m.Failed() {
			m.Logf("systemctl is-system-running: %s", last)
		}
	}()
	m.await("has started", func() bool {
		out, err := m.try("systemctl", "is-system-running")
		last = fmt.Sprint(out, err)
		return err == nil && strings.TrimSpace(out) == "running"
	})
	m.run(`for dir in /sys/fs/cgroup /sys/fs/cgroup/* /proc/sys /sys; do mount -o remount,bind,rw $dir 2>/dev/null || true; done; touch /sys/fs/cgroup/pids/cgroup.procs`)
}

func (m *machine) console() string { return filepath.Join(filepath.Dir(m.root), "console") }

// firstProcess returns the process below pid, at any depth, that is the first one of a PID namespace.
func firstProcess(pid int) int {
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range children {
		text, _ := os.ReadFile(file)
		for _, field := range strings.Fields(string(text)) {
			child, _ := strconv.Atoi(field)
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", child))
			for line := range strings.Lines(string(status)) {
				if ids, found := strings.CutPrefix(line, "NSpid:"); found {
					if ns := strings.Fields(ids); len(ns) > 1 && ns[len(ns)-1] == "1" {
						return child
					}
				}
			}
			if found := firstProcess(child); found > 0 {
				return found
			}
		}
	}
	return 0
}

// await polls until a condition holds.
func (m *machine) await(what string, is func() bool) {
	m.Helper()
	for end := time.Now().Add(bootTimeout); ; time.Sleep(100 * time.Millisecond) {
		if is() {
			return
		}
		if time.Now().After(end) {
			console, _ := os.ReadFile(m.console())
			m.Fatalf("the machine never %s. Its console:\n%s", what, console[max(0, len(console)-3000):])
		}
	}
}

// try runs a program on the machine and returns its output and errors together.
func (m *machine) try(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	args := append([]string{"-t", strconv.Itoa(m.init), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--",
		"env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}, argv...)
	var out bytes.Buffer
	c := exec.CommandContext(ctx, "nsenter", args...)
	c.Stdout, c.Stderr = &out, &out
	// A script that sends a signal to its process group must not reach the test.
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err := c.Run()
	return out.String(), err
}

// run runs a shell script on the machine, and fails the test if it fails.
func (m *machine) run(script string) string {
	m.Helper()
	out, err := m.try("bash", "-euo", "pipefail", "-c", script)
	if err != nil {
		log, _ := m.try("journalctl", "-n", "30", "--no-pager", "-u", "rik", "-u", "riklet")
		m.Fatalf("on the machine: %s\n%v\n%s\nIts journal:\n%s", script, err, out, log)
	}
	return out
}

// eventually polls until a script on the machine succeeds and prints want.
func (m *machine) eventually(script, want string) {
	m.Helper()
	last := ""
	for end := time.Now().Add(bootTimeout); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		out, err := m.try("bash", "-euo", "pipefail", "-c", script)
		if last = fmt.Sprintf("%v: %s", err, out); err == nil && strings.Contains(out, want) {
			return
		}
	}
	m.Fatalf("on the machine: %s\nnever printed %q. Last:\n%s", script, want, last)
}

// put copies files of this machine to /test.
func (m *machine) put(paths ...string) {
	m.Helper()
	m.host("cp", append([]string{"-r", "-t", filepath.Join(m.root, "test")}, paths...)...)
}

// off shuts the machine down, or ends it.
func (m *machine) off() {
	if m.nspawn == nil {
		return
	}
	ended := make(chan error, 1)
	go func(c *exec.Cmd) { ended <- c.Wait() }(m.nspawn)
	if m.init > 0 {
		_, _ = m.try("systemctl", "poweroff", "--no-block")
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		m.Logf("the machine did not shut down, and is ended")
		if m.init > 0 {
			_ = syscall.Kill(m.init, syscall.SIGKILL)
		}
		_ = syscall.Kill(-m.nspawn.Process.Pid, syscall.SIGKILL)
		<-ended
	}
	m.nspawn = nil
}

func (m *machine) reboot() {
	m.Helper()
	m.off()
	m.boot()
}

// removeGroups removes the machine's cgroups. The kernel ends the last processes in the background.
func (m *machine) removeGroups() error {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if err := m.tryRemoveGroups(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

func (m *machine) tryRemoveGroups() error {
	var problems []error
	for _, c := range controllers {
		top := filepath.Join("/sys/fs/cgroup", c, m.group)
		var dirs []string
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		slices.Reverse(dirs)
		for _, dir := range dirs {
			problems = append(problems, syscall.Rmdir(dir))
		}
	}
	return errors.Join(problems...)
}

// snapshot returns the state of the machine, a line for each file, mount, link, rule, cgroup and
// process.
func (m *machine) snapshot() []string {
	m.Helper()
	return strings.Split(strings.TrimSpace(m.run("bash /test/snapshot.sh")), "\n")
}
