package runner

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/archive"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
)

// trees supplies the files of Apps without downloads, which the tests of package archive cover.
type trees struct {
	dir    string
	digest string
	mu     sync.Mutex
	users  map[string]bool
}

func (s *trees) Get(_ context.Context, user string, r archive.Request) (*archive.Tree, error) {
	if r.Repo != "https://files.example/app.tar.gz" {
		return nil, archive.ErrRefused
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[user] = true
	return &archive.Tree{Dir: s.dir, Digest: s.digest}, nil
}

func (s *trees) Release(user string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.users, user)
	return nil
}

func (s *trees) Users() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for u := range s.users {
		list = append(list, u)
	}
	return list, nil
}

func (s *trees) Collect(context.Context, time.Duration) error { return nil }

// newAppNode returns a node whose Apps have one file.
func newAppNode(t *testing.T) (*node, *trees) {
	t.Helper()
	return newNode(t).withApps(t)
}

func (n *node) withApps(t *testing.T) (*node, *trees) {
	t.Helper()
	s := &trees{dir: filepath.Join(n.dir, "tree"), digest: "sha256:1", users: map[string]bool{}}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "say"), []byte("#!/bin/sh\necho said by $(id -u) in $PWD\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	// An App runs as another user, which needs to pass through the parent directories.
	if err := os.Chmod(n.dir, 0o711); err != nil {
		t.Fatal(err)
	}
	n.cfg.Archives = s
	return n, s
}

func appOf(uid string, policy rikv1alpha1.RestartPolicy, command ...string) instance.Instance {
	in := podOf(uid, policy)
	in.Template.Kind = rikv1alpha1.KindApp
	in.Template.App = &rikv1alpha1.App{Repo: "https://files.example/app.tar.gz", Command: command}
	return in
}

func TestPrivilegedAppRunsToCompletion(t *testing.T) {
	t.Parallel()
	n, s := newAppNode(t)
	n.start()
	in := appOf("u1", rikv1alpha1.RestartNever, "/bin/sh", "-c",
		`./say; echo "home $HOME"; echo mine > written && cat written; ls -A "$HOME/.."; grep '^CapEff' /proc/self/status; cat /etc/hosts; ls /sys/class/net; exit 3`)
	in.Template.App.Env = []rikv1alpha1.EnvVar{{Name: "A", Value: "b"}}
	n.ensure(in)
	status := n.awaitPhase2("u1", rikv1alpha1.InstanceFailed)
	if c := status.Containers[0]; c.Name != rikv1alpha1.AppContainer || c.ExitCode == nil || *c.ExitCode != 3 || c.ImageDigest != "sha256:1" {
		t.Errorf("container = %+v", c)
	}
	log := n.log("u1", "")
	seen := filepath.Join(n.cfg.Run, "app")
	for _, want := range []string{"in " + seen, "home " + seen, "mine\n", "\napp\n", "CapEff:\t0000000000000000", "name-of-u1", "\nlo\n"} {
		if !strings.Contains(log, want) {
			t.Errorf("no %q in the log:\n%s", want, log)
		}
	}
	if strings.Contains(log, "said by 0 ") {
		t.Errorf("it runs as root:\n%s", log)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "written")); err == nil {
		t.Error("it wrote into the files of all its instances")
	}
	n.stop("u1", -1)
	if users, _ := s.Users(); len(users) > 0 {
		t.Errorf("files are still pinned for %v", users)
	}
}

// The App's user owns all files of the App, at every depth. The files of other instances are
// unchanged. Links are not followed.
func TestPrivilegedAppOwnsItsFiles(t *testing.T) {
	t.Parallel()
	n, s := newAppNode(t)
	outside := filepath.Join(n.dir, "outside")
	for path, mode := range map[string]os.FileMode{"logs": os.ModeDir | 0o755, "conf/deep": os.ModeDir | 0o755, "conf/deep/app.conf": 0o644, "conf/fixed": 0o444} {
		full := filepath.Join(s.dir, path)
		var err error
		if mode.IsDir() {
			err = os.MkdirAll(full, mode.Perm())
		} else {
			err = errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.WriteFile(full, []byte("packaged\n"), mode))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(os.WriteFile(outside, []byte("node's\n"), 0o600), os.Symlink(outside, filepath.Join(s.dir, "conf", "link")))
	if err != nil {
		t.Fatal(err)
	}
	n.start()
	n.ensure(appOf("u1", rikv1alpha1.RestartNever, "/bin/sh", "-c",
		`echo line > logs/out && cat logs/out; echo more >> conf/deep/app.conf && cat conf/deep/app.conf; cat say > /dev/null && echo new > conf/new && cat conf/new
		 (echo no > conf/fixed) 2>/dev/null || echo as packaged; mkdir conf/deep/dir && rm -r conf/deep && ls conf`))
	n.awaitPhase2("u1", rikv1alpha1.InstanceCompleted)
	if got, want := n.log("u1", ""), "line\npackaged\nmore\nnew\nas packaged\nfixed\nlink\nnew\n"; got != want {
		t.Errorf("the log is %q, want %q", got, want)
	}
	if text, err := readFile(filepath.Join(s.dir, "conf", "deep", "app.conf")); err != nil || text != "packaged\n" {
		t.Errorf("the files of all instances are changed: %q, %v", text, err)
	}
	info, err := os.Stat(outside)
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("a file of the node was given away: %+v, %v", info, err)
	}
	n.stop("u1", -1)
}

// awaitPhase2 is awaitPhase for an expected end.
func (n *node) awaitPhase2(uid string, phase rikv1alpha1.InstancePhase) rikv1alpha1.InstanceStatus {
	n.Helper()
	return n.await(uid, string(phase), func(s rikv1alpha1.InstanceStatus) bool { return s.Phase == phase })
}

func TestPrivilegedAppSurvivesARestart(t *testing.T) {
	t.Parallel()
	n, _ := newAppNode(t)
	d := n.start()
	in := appOf("u1", rikv1alpha1.RestartAlways, "/bin/sh", "-c", "echo up $SECRET; "+forever)
	n.objects.setConfigMap("c", map[string][]byte{"SECRET": []byte("word")})
	in.Template.App.EnvFrom = []rikv1alpha1.EnvFromSource{{ConfigMap: "c"}}
	in.Template.App.Resources.Limits = rikv1alpha1.ResourceList{rikv1alpha1.ResourceMemory: quantity("64Mi")}
	n.ensure(in)
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	exec := func(command ...string) (int, string) {
		t.Helper()
		var out bytes.Buffer
		code, err := d.Exec(t.Context(), "u1", "", instance.ExecOptions{Command: command, Stdout: &out, Stderr: &out})
		if err != nil {
			t.Fatal(err)
		}
		return code, out.String()
	}
	if code, out := exec("/bin/sh", "-c", "./say; id -u; hostname; echo $SECRET; exit 9"); code != 9 || !strings.Contains(out, "said by 18") ||
		!strings.Contains(out, "name-of-u1\nword\n") {
		t.Errorf("exec = %d, %q", code, out)
	}
	if code, out := exec("no-such-program"); code != 127 || !strings.Contains(out, "no-such-program") {
		t.Errorf("exec of a missing program = %d, %q", code, out)
	}
	if code, _ := exec("/etc/passwd"); code != 126 {
		t.Errorf("exec of a file that is no program = %d", code)
	}
	if usage, err := d.Usage("u1"); err != nil || usage.MemoryBytes == 0 {
		t.Errorf("Usage() = %+v, %v", usage, err)
	}
	n.end() // the riklet ends, the App does not
	started := time.Now()
	d = n.start()
	if s := n.awaitPhase("u1", rikv1alpha1.InstanceRunning); s.Containers[0].StartedAt.After(started) || s.Containers[0].RestartCount != 0 {
		t.Errorf("it did not live on: %+v", s)
	}
	if code, out := exec("tail", "/dev/zero"); code != 128+9 {
		t.Errorf("a command that uses much memory = %d, %q", code, out)
	}
	n.stop("u1", time.Second)
}

func TestPrivilegedAppsThatAreRefused(t *testing.T) {
	t.Parallel()
	n, _ := newAppNode(t)
	n.start()
	for uid, change := range map[string]func(*rikv1alpha1.App){
		"root":    func(a *rikv1alpha1.App) { a.User = "root" },
		"nobody":  func(a *rikv1alpha1.App) { a.User = "no-such-user" },
		"foreign": func(a *rikv1alpha1.App) { a.Repo = "https://elsewhere.example/" },
	} {
		in := appOf(uid, rikv1alpha1.RestartAlways, "/bin/true")
		change(in.Template.App)
		n.ensure(in)
		s := n.awaitPhase2(uid, rikv1alpha1.InstanceFailed)
		if s.Message == "" {
			t.Errorf("%s: %+v", uid, s)
		}
		n.stop(uid, -1)
	}
}

func TestPrivilegedSuspendAndResume(t *testing.T) {
	t.Parallel()
	n, _ := newAppNode(t)
	d := n.start()
	ticking := "trap 'exit 0' TERM; while :; do echo tick; sleep 0.05; done"
	n.ensure(appOf("app", rikv1alpha1.RestartAlways, "/bin/sh", "-c", ticking))
	n.ensure(podOf("pod", rikv1alpha1.RestartAlways, sh("main", ticking)))
	for _, uid := range []string{"app", "pod"} {
		t.Run(uid, func(t *testing.T) {
			n.Helper()
			n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
			for range 2 {
				if err := d.Suspend(t.Context(), uid, instance.InMemory); err != nil {
					t.Fatal(err)
				}
			}
			if s := n.status(uid); !s.Suspended || s.Ready || s.Phase != rikv1alpha1.InstanceRunning || s.Reason != reasonSuspended {
				t.Errorf("suspended: %+v", s)
			}
			before := n.log(uid, "")
			if _, err := d.Exec(t.Context(), uid, "", instance.ExecOptions{Command: []string{"true"}}); err == nil {
				t.Error("a command ran in a suspended instance")
			}
			n.end()
			d = n.start() // it stays so after a restart of the riklet
			if s := n.status(uid); !s.Suspended {
				t.Errorf("after a restart: %+v", s)
			}
			if after := n.log(uid, ""); len(after) > len(before)+len("tick\n") { // one may have been on its way
				t.Errorf("it went on: %d bytes of log, then %d", len(before), len(after))
			}
			for range 2 {
				if err := d.Resume(t.Context(), uid); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, func() string {
				if len(n.log(uid, "")) > len(before)+100 && n.status(uid).Ready {
					return ""
				}
				return "it does not go on"
			})
			if err := d.Suspend(t.Context(), uid, instance.InMemory); err != nil {
				t.Fatal(err)
			}
			n.stop(uid, time.Minute) // a suspended instance receives its signal, too
		})
	}
	if err := d.Suspend(t.Context(), "no", instance.InMemory); err == nil {
		t.Error("Suspend() of a missing instance = nil")
	}
}

// A command of a suspended instance does not die of a signal. Its caller can stop waiting all the
// same, and the riklet can end.
func TestPrivilegedCommandsInASuspendedInstance(t *testing.T) {
	t.Parallel()
	n, _ := newAppNode(t)
	d := n.start()
	n.ensure(appOf("app", rikv1alpha1.RestartAlways, "/bin/sh", "-c", "sleep 1000"))
	n.ensure(podOf("pod", rikv1alpha1.RestartAlways, sh("main", "sleep 1000")))
	for _, uid := range []string{"app", "pod"} {
		n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, w := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			_, err := d.Exec(ctx, uid, "", instance.ExecOptions{Command: []string{"/bin/sh", "-c", "echo up; sleep 1000"}, Stdout: w})
			ended <- err
		}()
		if _, err := r.Read(make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, r) }()
		if err := d.Suspend(t.Context(), uid, instance.InMemory); err != nil {
			t.Fatal(err)
		}
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: the command ended with %v, want %v", uid, err, context.Canceled)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: the caller of the command cannot leave it", uid)
		}
		if err := d.Resume(t.Context(), uid); err != nil {
			t.Fatal(err)
		}
	}
}

// After a failed attempt, only some of the containers may be paused.
func TestPrivilegedInterruptedSuspendContinues(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, sh("first", forever), sh("second", forever)))
	n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
	first := engine.ContainerID("u1", "first")
	if err := errors.Join(n.runc("pause", first), d.Suspend(t.Context(), "u1", instance.InMemory)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "second"} {
		if status := n.runcStatus(engine.ContainerID("u1", name)); status != "paused" {
			t.Errorf("%s is %s", name, status)
		}
	}
	if err := errors.Join(n.runc("resume", first), d.Resume(t.Context(), "u1")); err != nil {
		t.Fatal(err)
	}
	if s := n.status("u1"); s.Suspended || n.runcStatus(engine.ContainerID("u1", "second")) != "running" {
		t.Errorf("it does not continue: %+v", s)
	}
	n.stop("u1", 0)
}
