package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// composeName is the name of the demo's project, and part of the names of all that it creates.
const composeName = "rik-e2e-compose"

// engineName is the name of the engines' own files and cgroups.
const engineName = "rik-e2e-engine"

// pluginProgram is docker compose of the second generation, as hack/compose-plugin.sh builds it.
const pluginProgram = "docker-compose-plugin"

// TestPrivilegedCompose runs make demo-compose with each container engine and each compose that
// this machine has. The engines run only for the test, in its network namespace. By default it tests
// one of them, because each takes about half a minute.
func TestPrivilegedCompose(t *testing.T) {
	privileged.Require(t)
	beginOutside(t)
	if !rikcluster.Alone(t) {
		return
	}
	plugin := filepath.Join(rikcluster.Bin(t), pluginProgram)
	ran := 0
	for _, tc := range []struct {
		name, compose string
		start         func(t *testing.T, dir string) engine
	}{
		{"docker-compose 1.29", "docker-compose", startDocker},
		{"docker compose", plugin, startDocker},
		{"podman-compose", "podman-compose", startPodman},
		{"docker compose with Podman", plugin, startPodmanService},
	} {
		if ran > 0 && !privileged.Long() {
			break
		}
		ok := t.Run(tc.name, func(t *testing.T) {
			if _, err := exec.LookPath(tc.compose); err != nil {
				t.Skipf("not run: %v", err)
			}
			dir, err := os.MkdirTemp("/var/tmp", engineName+"-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			runCompose(t, tc.start(t, dir), tc.compose)
			ran++
		})
		if !ok {
			break
		}
	}
	if ran == 0 && !t.Failed() {
		t.Skip("not run: this machine has no container engine and compose that start")
	}
}

// engine is a running container engine.
type engine struct {
	program string
	env     []string
	// top are the arguments with which its command top prints process IDs and command lines.
	top []string
	// dir has all files of the engine. cgroup is the parent of its containers' groups.
	dir, cgroup string
	// own is part of the engine's own rules, which it never removes.
	own string
}

// command returns a command with the engine's environment.
func (e engine) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), e.env...)
	return cmd
}

// run runs the engine's command line.
func (e engine) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := e.command(t.Context(), e.program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", e.program, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func runCompose(t *testing.T, e engine, compose string) {
	t.Helper()
	demo := func(what string) string {
		t.Helper()
		// The demo needs its cleanup also when the test is canceled.
		cmd := e.command(context.WithoutCancel(t.Context()), "hack/demo-compose.sh", what)
		cmd.Env = append(cmd.Env, "RIK_BIN="+rikcluster.Bin(t), "RIK_DEMO_NAME="+composeName, "RIK_DEMO_COMPOSE="+compose)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("demo-compose.sh %s: %v\n%s", what, err, out)
		}
		return string(out)
	}
	before := e.traces(t)
	t.Cleanup(func() {
		demo("down")
	})
	out := demo("up")
	for want, times := range map[string]int{"Running": 2, "\nhello from hello-": 1, "make demo-compose-down": 1} {
		if n := strings.Count(out, want); n != times {
			t.Errorf("the demo says %q %d times, want %d:\n%s", want, n, times, out)
		}
	}
	if again := demo("up"); !strings.Contains(again, "already runs") {
		t.Errorf("a second demo says:\n%s", again)
	}
	e.requireBoth(t)

	container := func(service string) string {
		return e.run(t, "container", "ls", "--all", "--quiet", "--filter", "label=com.docker.compose.project="+composeName, "--filter", "label=com.docker.compose.service="+service)
	}
	e.run(t, "kill", container("server"))
	e.requireBoth(t)
	e.run(t, "start", container("server"))
	// The node then starts its instance again, as after a restart of a machine.
	e.run(t, "restart", container("node-2"))
	e.requireBoth(t)
	// The instance of a node survives the node's agent.
	e.requireRiklet(t, container("node-1"))

	for _, which := range []string{"the end", "a second end"} {
		if out := demo("down"); !strings.Contains(out, "nothing is left") {
			t.Errorf("%s of the demo says:\n%s", which, out)
		}
	}
	// Engines remove some of their files in the background.
	poll.Until(t, 20*time.Second, "the machine is as before", func(context.Context) error {
		if diff := cmp.Diff(before, e.traces(t)); diff != "" {
			return fmt.Errorf("it differs (-before +after):\n%s", diff)
		}
		return nil
	})
}

// requireBoth waits until both instances answer at the published port.
func (e engine) requireBoth(t *testing.T) {
	t.Helper()
	seen := map[string]bool{}
	poll.Until(t, time.Minute, "both instances answer", func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, filepath.Join("/var/lib", composeName, "hello"), "-get", "http://127.0.0.1:8080").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		seen[strings.TrimSpace(string(out))] = true
		if len(seen) < 2 {
			return fmt.Errorf("only %v answer", slices.Collect(maps.Keys(seen)))
		}
		return nil
	})
}

// requireRiklet kills the riklet in a container. It must start again, and its instance must not.
func (e engine) requireRiklet(t *testing.T, container string) {
	t.Helper()
	riklet := func(ctx context.Context) (string, string, error) {
		out, err := e.command(ctx, e.program, append([]string{"top", container}, e.top...)...).CombinedOutput()
		if err != nil {
			return "", "", fmt.Errorf("%w: %s", err, out)
		}
		var agent, instance string
		for line := range strings.Lines(string(out)) {
			pid, args, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch args = strings.TrimSpace(args); {
			case strings.HasPrefix(args, "/usr/lib/rik/riklet --server"):
				agent = pid
			case strings.HasPrefix(args, "/hello"):
				instance = pid
			}
		}
		if agent == "" || instance == "" {
			return "", "", fmt.Errorf("no riklet or no instance runs:\n%s", out)
		}
		return agent, instance, nil
	}
	agent, instance, err := riklet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "kill", "-9", agent).CombinedOutput(); err != nil {
		t.Fatalf("killing the riklet: %v: %s", err, out)
	}
	poll.Until(t, 30*time.Second, "the riklet runs again", func(ctx context.Context) error {
		now, same, err := riklet(ctx)
		switch {
		case err != nil:
			return err
		case now == agent:
			return errors.New("the killed riklet is still there")
		case same != instance:
			t.Fatalf("the instance was process %s, and is now %s", instance, same)
		}
		return nil
	})
}

// traces returns what containers leave on a machine: files of the engine, mounts, processes,
// cgroups, links and firewall rules.
func (e engine) traces(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{"mounts": rikcluster.Mounts(e.dir), "processes": nil}
	for _, line := range rikcluster.Processes(e.dir) {
		program, _, _ := strings.Cut(line, " ")
		all["processes"] = append(all["processes"], program)
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		// Podman keeps a group for its monitors.
		if err == nil && d.IsDir() && strings.Contains(path, e.cgroup+"/") && d.Name() != "conmon" {
			all["cgroups"] = append(all["cgroups"], path)
		}
		return nil
	})
	_ = filepath.WalkDir(e.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && left(path, d) {
			all["files"] = append(all["files"], path)
		}
		return nil
	})
	for name, args := range map[string][]string{
		"links": {"ip", "-brief", "link"}, "rules": {"iptables-save"}, "old rules": {"iptables-legacy-save"}, "routes": {"ip", "route"},
	} {
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).Output()
		if err != nil {
			t.Fatalf("%s: %v", args[0], err)
		}
		for line := range strings.Lines(string(out)) {
			// The counters of chains change.
			line, _, _ = strings.Cut(strings.TrimSpace(line), " [")
			if name == "routes" || name == "links" || e.isRule(line) {
				all[name] = append(all[name], line)
			}
		}
	}
	for _, lines := range all {
		slices.Sort(lines)
	}
	return all
}

// isRule reports whether a line of iptables-save is a rule or a chain. The engine's own ones and the
// kernel's empty chains do not count.
func (e engine) isRule(line string) bool {
	builtin := strings.HasPrefix(line, ":") && strings.HasSuffix(line, " ACCEPT")
	return strings.ContainsAny(line, " ") && !builtin && !strings.HasPrefix(line, "#") && (e.own == "" || !strings.Contains(line, e.own))
}

// left reports whether a file of an engine can be what a container, a volume or an image left.
// Engines also write logs and lock files. They create directories when they first need them, and
// remove the empty files of network namespaces only after a minute.
func left(path string, d fs.DirEntry) bool {
	if slices.Contains([]string{".log", ".lock", ".lck"}, filepath.Ext(path)) {
		return false
	}
	if slices.Contains([]string{"containers.json", "images.json", "layers.json", "mountpoints.json", "backingFsBlockDev"}, filepath.Base(path)) {
		return false // lists of Podman
	}
	for _, dir := range []string{"volumes", "containers", "overlay", "overlay2", "overlay-containers"} {
		if strings.Contains(path, "/data/"+dir+"/") {
			return true
		}
	}
	info, err := d.Info()
	return err == nil && info.Mode().IsRegular() && info.Size() > 0
}

// startDocker starts a Docker Engine in the test's network namespace.
func startDocker(t *testing.T, dir string) engine {
	t.Helper()
	if _, err := exec.LookPath("dockerd"); err != nil {
		t.Skipf("not run: %v", err)
	}
	// The paths of its sockets must be short.
	socket := filepath.Join(dir, "docker.sock")
	e := engine{program: "docker", top: []string{"-eo", "pid,args"}, dir: dir, cgroup: "/" + engineName, env: []string{"DOCKER_HOST=unix://" + socket, "DOCKER_CONFIG=" + filepath.Join(dir, "config")}}
	log, err := os.Create(filepath.Join(dir, "dockerd.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("dockerd", "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--host", "unix://"+socket, "--pidfile", filepath.Join(dir, "docker.pid"), "--cgroup-parent", e.cgroup)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := errors.Join(cmd.Start(), log.Close()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			t.Error("dockerd did not end within a minute")
		}
		removeCgroups(t, engineName)
	})
	for end := time.Now().Add(time.Minute); e.command(t.Context(), "docker", "info").Run() != nil; time.Sleep(200 * time.Millisecond) {
		select {
		case err := <-ended:
			ended <- err
			words, _ := os.ReadFile(log.Name())
			t.Skipf("not run: dockerd does not start on this machine: %v\n%s", err, words)
		default:
		}
		if time.Now().After(end) {
			t.Fatal("dockerd does not answer within a minute")
		}
	}
	return e
}

// startPodman prepares Podman with its own files. It needs a name server for its containers, which
// Debian's Podman recommends and does not require.
func startPodman(t *testing.T, dir string) engine {
	t.Helper()
	if _, err := exec.LookPath("podman"); err != nil {
		t.Skipf("not run: %v", err)
	}
	helpers := "/usr/lib/podman"
	if _, err := os.Stat(helpers + "/aardvark-dns"); err != nil {
		helpers = fetchHelpers(t, dir)
	}
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	e := engine{program: "podman", top: []string{"hpid", "args"}, dir: dir, cgroup: "/libpod_parent", own: "NETAVARK"}
	e.env = []string{
		// The limits of Debian's default are higher than this process may set.
		"CONTAINERS_CONF=" + write("containers.conf", fmt.Sprintf(`[containers]
default_ulimits = []
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
helper_binaries_dir = [%q, "/usr/lib/podman"]
tmp_dir = %q
runtime = "runc"
[network]
network_backend = "netavark"
network_config_dir = %q
`, helpers, filepath.Join(dir, "tmp"), filepath.Join(dir, "net"))),
		"CONTAINERS_STORAGE_CONF=" + write("storage.conf", fmt.Sprintf("[storage]\ndriver = \"overlay\"\ngraphroot = %q\nrunroot = %q\n",
			filepath.Join(dir, "data"), filepath.Join(dir, "run"))),
	}
	// Podman of root has these at fixed places too.
	for _, shared := range []string{"/var/lib/containers", "/run/containers", "/run/libpod", "/run/runc"} {
		if _, err := os.Stat(shared); errors.Is(err, fs.ErrNotExist) {
			t.Cleanup(func() {
				if err := os.RemoveAll(shared); err != nil {
					t.Error(err)
				}
			})
		}
	}
	t.Cleanup(func() {
		for _, mount := range slices.Backward(rikcluster.Mounts(dir)) {
			if err := syscall.Unmount(mount, 0); err != nil {
				t.Errorf("unmounting %s: %v", mount, err)
			}
		}
		removeCgroups(t, "libpod_parent")
	})
	if out, err := e.command(t.Context(), "podman", "info").CombinedOutput(); err != nil {
		t.Skipf("not run: podman does not work on this machine: %v\n%s", err, out)
	}
	return e
}

// startPodmanService is startPodman with Podman's server, which has the API of Docker's one.
func startPodmanService(t *testing.T, dir string) engine {
	t.Helper()
	if _, err := exec.LookPath("docker"); err != nil {
		t.Skipf("not run: %v", err)
	}
	e := startPodman(t, dir)
	socket := "unix://" + filepath.Join(dir, "podman.sock")
	e.env = append(e.env, "DOCKER_HOST="+socket, "DOCKER_CONFIG="+filepath.Join(dir, "config"))
	log, err := os.Create(filepath.Join(dir, "service.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := e.command(context.WithoutCancel(t.Context()), "podman", "system", "service", "--time=0", socket)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := errors.Join(cmd.Start(), log.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		// It keeps a process for each "docker exec" for five minutes after its end.
		out, _ := exec.CommandContext(context.WithoutCancel(t.Context()), "pgrep", "-f", "conmon .*"+dir).Output()
		for id := range strings.FieldsSeq(string(out)) {
			if pid, err := strconv.Atoi(id); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if t.Failed() {
			words, _ := os.ReadFile(log.Name())
			t.Logf("podman system service:\n%s", words)
		}
	})
	poll.Until(t, time.Minute, "Podman's server answers", func(ctx context.Context) error {
		return e.command(ctx, "docker", "info").Run()
	})
	return e
}

// machineNetwork names the network namespace of the machine: that of the program that started the
// tests. The tests themselves are in another one.
const machineNetwork = "RIK_E2E_MACHINE_NETNS"

// beginOutside names that namespace for the process that Alone starts, and fetches the packages of the images.
func beginOutside(t *testing.T) {
	t.Helper()
	if os.Getenv(machineNetwork) != "" {
		return
	}
	// A parallel test cannot call t.Setenv.
	if err := os.Setenv(machineNetwork, fmt.Sprintf("/proc/%d/ns/net", os.Getppid())); err != nil { //nolint:usetesting // see above
		t.Fatal(err)
	}
	fetchPackages(t)
}

// onMachine returns a command in the network namespace of the machine, which can reach Debian.
func onMachine(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=" + os.Getenv(machineNetwork), "--"}, args...)...)
	cmd.Dir = "../.."
	return cmd
}

// fetchPackages fetches the packages of the images once.
func fetchPackages(t *testing.T) {
	t.Helper()
	if out, err := onMachine(t, "hack/images-packages.sh", runtime.GOARCH).CombinedOutput(); err != nil {
		t.Skipf("not run: the packages of the images cannot be fetched: %v\n%s", err, out)
	}
}

// fetchHelpers fetches the programs of Podman's networks from Debian, without installing them.
func fetchHelpers(t *testing.T, dir string) string {
	t.Helper()
	packages := filepath.Join(dir, "packages")
	script := `mkdir -m 0755 "$0" && chmod 0755 "$(dirname "$0")" && cd "$0" && { chown _apt . || true; } &&
apt-get download netavark aardvark-dns && for file in *.deb; do dpkg-deb -x "$file" . || exit; done`
	if out, err := onMachine(t, "sh", "-c", script, packages).CombinedOutput(); err != nil {
		t.Skipf("not run: podman has no aardvark-dns, and it cannot be fetched: %v\n%s", err, out)
	}
	return filepath.Join(packages, "usr/lib/podman")
}

// removeCgroups removes the empty groups of an engine's parent, which the engine leaves.
func removeCgroups(t *testing.T, name string) {
	t.Helper()
	for _, path := range rikcluster.Cgroups(name) {
		var dirs []string
		_ = filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	}
}
