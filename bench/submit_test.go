package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// script is the script of the containers of both sides: it ends at once on SIGTERM.
const script = "trap 'exit 0' TERM; sleep 3600 & wait"

// submissions is how often each side starts, one after the other.
const submissions = 50

// BenchmarkSubmitToRunning measures the time from the request that creates an instance, with a
// cached image, to the event that it runs. In turn with it, it measures how long plain runc
// takes to start the same command with the same files, without and with rik's seccomp profile.
func BenchmarkSubmitToRunning(b *testing.B) {
	begin(b)
	c := rikcluster.Start(b, rikcluster.Options{})
	s := newSubmitter(b, c)
	plain := newBundle(b, c, "plain", nil)
	confined := newBundle(b, c, "confined", s.seccomp())
	var rik, bare, profiled []time.Duration
	b.ResetTimer()
	for range b.N {
		for i := range submissions {
			rik = append(rik, s.submit(fmt.Sprintf("bench-%d-%d", b.N, i)))
			bare = append(bare, plain.run(i))
			profiled = append(profiled, confined.run(i))
		}
	}
	b.StopTimer()
	for _, m := range []struct {
		name string
		all  []time.Duration
	}{{"rik", rik}, {"runc", bare}, {"runc-seccomp", profiled}} {
		b.ReportMetric(milliseconds(percentile(m.all, 50)), m.name+"-p50-ms")
		b.ReportMetric(milliseconds(percentile(m.all, 99)), m.name+"-p99-ms")
	}
	b.ReportMetric(milliseconds(percentile(rik, 50)-percentile(bare, 50)), "over-runc-p50-ms")
	b.ReportMetric(milliseconds(percentile(rik, 50)-percentile(profiled, 50)), "over-runc-seccomp-p50-ms")
	b.Logf("load at the end: %s", load())
}

// submitter starts instances of one workload.
type submitter struct {
	b     *testing.B
	c     *rikcluster.Cluster
	api   client.WithWatch
	watch *follower
}

// newSubmitter runs one instance, so that the image is cached.
func newSubmitter(b *testing.B, c *rikcluster.Cluster) *submitter {
	b.Helper()
	s := &submitter{b: b, c: c, api: dial(b, c)}
	if err := s.api.Create(b.Context(), workload("submitted", c.Busybox(), script, nil)); err != nil {
		b.Fatal(err)
	}
	s.watch = follow(b, s.api, fields.Everything())
	for i := range 3 {
		s.submit(fmt.Sprintf("first-%d", i))
	}
	return s
}

// submit starts an instance, and deletes it once it runs.
func (s *submitter) submit(name string) time.Duration {
	s.b.Helper()
	began := time.Now()
	running := s.start(name)
	s.remove(name)
	return running.Sub(began)
}

func (s *submitter) start(name string) time.Time {
	s.b.Helper()
	if err := create(s.b.Context(), s.api, "submitted", name); err != nil {
		s.b.Fatal(err)
	}
	return s.watch.await(name+" to run", func(_ watch.EventType, in *rikv1alpha1.Instance) bool {
		if in.Status.Phase == rikv1alpha1.InstanceFailed {
			s.b.Fatalf("%s: %s: %s", in.Name, in.Status.Reason, in.Status.Message)
		}
		return in.Name == name && in.Status.Phase == rikv1alpha1.InstanceRunning
	})
}

func (s *submitter) remove(name string) {
	s.b.Helper()
	if err := s.api.Delete(s.b.Context(), &rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}); err != nil {
		s.b.Fatal(err)
	}
	s.watch.await(name+" to be gone", func(event watch.EventType, in *rikv1alpha1.Instance) bool {
		return in.Name == name && event == watch.Deleted
	})
}

// seccomp returns the profile that rik sets for a container, from the configuration of a running
// one.
func (s *submitter) seccomp() any {
	s.b.Helper()
	s.start("profile")
	defer s.remove("profile")
	found := ""
	for _, dir := range []string{s.c.StateDir(), s.c.RunDir()} {
		_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err == nil && filepath.Base(path) == "config.json" {
				found = path
			}
			return nil
		})
	}
	raw, err := os.ReadFile(found)
	if err != nil {
		s.b.Fatalf("looking for the configuration of a container: %v", err)
	}
	var config struct {
		Linux struct {
			Seccomp any `json:"seccomp"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(raw, &config); err != nil || config.Linux.Seccomp == nil {
		s.b.Fatalf("%s has no seccomp profile (%v)", found, err)
	}
	return config.Linux.Seccomp
}

// bundle is a container for plain runc.
type bundle struct {
	b               *testing.B
	runc, root, dir string
	name            string
}

func newBundle(b *testing.B, c *rikcluster.Cluster, name string, seccomp any) bundle {
	b.Helper()
	u := bundle{b: b, runc: filepath.Join(c.Bin, "runc"), root: filepath.Join(c.Dir, "runc"), dir: filepath.Join(c.Dir, name), name: filepath.Base(c.Dir) + "-" + name}
	unpack(b, filepath.Join(u.dir, "rootfs"))
	mustRun(b, u.runc, "spec", "--bundle", u.dir)
	file := filepath.Join(u.dir, "config.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		b.Fatal(err)
	}
	process := config["process"].(map[string]any)
	process["terminal"], process["args"] = false, []string{"/bin/sh", "-c", script}
	linux := config["linux"].(map[string]any)
	linux["cgroupsPath"] = "/" + filepath.Base(c.Dir) + "/" + name
	if seccomp != nil {
		linux["seccomp"] = seccomp
	}
	if raw, err = json.Marshal(config); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		b.Fatal(err)
	}
	return u
}

// unpack creates a root file system with the content of the instances' image.
func unpack(b *testing.B, root string) {
	b.Helper()
	spec, err := ociimage.BusyboxSpec()
	if err != nil {
		b.Fatal(err)
	}
	for path, file := range spec.Files {
		path = filepath.Join(root, path)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch {
		case err != nil:
		case file.Dir:
			err = os.MkdirAll(path, 0o755)
		case file.Link != "":
			err = os.Symlink(file.Link, path)
		case file.Source != "":
			if file.Content, err = os.ReadFile(file.Source); err == nil {
				err = os.WriteFile(path, file.Content, 0o755)
			}
		default:
			err = os.WriteFile(path, file.Content, 0o644)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// run starts the container, and deletes it once it runs.
func (u bundle) run(turn int) time.Duration {
	u.b.Helper()
	id := fmt.Sprintf("%s-%d", u.name, turn)
	began := time.Now()
	// Without pipes, because the container would hold them open and the call would wait.
	err := exec.Command(u.runc, "--root", u.root, "run", "--detach", "--bundle", u.dir, id).Run()
	took := time.Since(began)
	if err != nil {
		u.b.Fatalf("runc run: %v", err)
	}
	mustRun(u.b, u.runc, "--root", u.root, "delete", "--force", id)
	return took
}
