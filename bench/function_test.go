package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/testkit/rikcluster"
)

const (
	// boots is how often each side starts a microVM, one after the other.
	boots = 5
	// inARow is how many microVMs are started and kept.
	inARow = 50
	// firstLine is the first output of the process in the guest.
	firstLine = "the-first-line"
)

// sayScript is the script of the process in the guest.
const sayScript = "echo " + firstLine + "; " + script

// BenchmarkFunction measures the time from the request that creates an instance in a microVM to
// the first line of its process in the node's log. In turn with it, it measures a raw start: the
// same QEMU with the same arguments, kernel, initramfs and disks, started and controlled by the
// benchmark. Then it starts many, keeps them, and measures the memory that rik uses in addition
// to each VMM.
func BenchmarkFunction(b *testing.B) {
	begin(b)
	c := rikcluster.Start(b, rikcluster.Options{Split: true, MicroVMs: true})
	s := newBooter(b, c)
	raw := s.copyOf("template")
	var rik, bare []time.Duration
	b.ResetTimer()
	for range b.N {
		for i := range boots {
			rik = append(rik, s.boot(fmt.Sprintf("boot-%d", i)))
			bare = append(bare, raw.boot(b))
		}
	}
	b.StopTimer()
	b.Logf("rik: %v", rik)
	b.Logf("raw: %v", bare)
	b.ReportMetric(milliseconds(percentile(rik, 50)), "rik-p50-ms")
	b.ReportMetric(milliseconds(percentile(bare, 50)), "raw-p50-ms")
	b.ReportMetric(float64(percentile(rik, 50))/float64(percentile(bare, 50)), "rik-over-raw")
	s.many(setting(b, "RIK_BENCH_VMS", inARow))
	b.Logf("load at the end: %s", load())
}

// booter starts instances of one workload in microVMs.
type booter struct {
	*submitter
}

func newBooter(b *testing.B, c *rikcluster.Cluster) booter {
	b.Helper()
	s := &submitter{b: b, c: c, api: dial(b, c)}
	w := workload("submitted", c.Busybox(), sayScript, nil)
	w.Spec.Isolation = rikv1alpha1.IsolationMicroVM
	if err := s.api.Create(b.Context(), w); err != nil {
		b.Fatal(err)
	}
	s.watch = follow(b, s.api, fields.Everything())
	s.submit("first") // creates the image's disk
	return booter{s}
}

// boot starts an instance, waits for its line and deletes it.
func (s booter) boot(name string) time.Duration {
	s.b.Helper()
	logs := s.logs()
	began := time.Now()
	if err := create(s.b.Context(), s.api, "submitted", name); err != nil {
		s.b.Fatal(err)
	}
	said := poll(s.b, soon, "the first line of "+name, func() bool {
		for _, path := range s.logs() {
			if text, err := os.ReadFile(path); err == nil && !slices.Contains(logs, path) && bytes.Contains(text, []byte(firstLine)) {
				return true
			}
		}
		return false
	})
	s.watch.await(name+" to run", func(_ watch.EventType, in *rikv1alpha1.Instance) bool {
		return in.Name == name && in.Status.Phase == rikv1alpha1.InstanceRunning
	})
	s.remove(name)
	return said.Sub(began)
}

// soon is the polling interval: a boot takes a thousand times as long.
const soon = 2 * time.Millisecond

// logs returns the log files of all instances' processes.
func (s booter) logs() []string {
	paths, _ := filepath.Glob(filepath.Join(s.c.StateDir(), "pods", "pods", "*", "logs", "main", "*.log"))
	return paths
}

// vmms returns the QEMU processes with a working directory below the cluster's directory.
func (s booter) vmms() []int {
	var found []int
	works, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range works {
		if dir, err := os.Readlink(link); err == nil && strings.HasPrefix(dir, s.c.RunDir()+"/vm/") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			found = append(found, pid)
		}
	}
	return found
}

// rawVM is a microVM that rik does not manage.
type rawVM struct {
	argv   []string
	dir    string
	config guest.Config
	root   guest.Disk
}

// copyOf copies the files and the command line of one of rik's microVMs.
func (s booter) copyOf(name string) rawVM {
	s.b.Helper()
	s.start(name)
	defer s.remove(name)
	vmms := s.vmms()
	if len(vmms) != 1 {
		s.b.Fatalf("VMMs of one microVM: %v", vmms)
	}
	proc := filepath.Join("/proc", strconv.Itoa(vmms[0]))
	line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err != nil {
		s.b.Fatal(err)
	}
	r := rawVM{dir: filepath.Join(s.c.Dir, "raw"), root: guest.Disk{ID: "image-1", Index: 1}}
	work := filepath.Join(proc, "cwd")
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		s.b.Fatal(err)
	}
	files, err := os.ReadDir(work + "/")
	if err != nil {
		s.b.Fatal(err)
	}
	for _, f := range files {
		if f.Type().IsRegular() {
			mustRun(s.b, "cp", "--sparse=always", filepath.Join(work, f.Name()), filepath.Join(r.dir, f.Name()))
		}
	}
	// Use a clean disk, because the copied one was in use.
	scratch := filepath.Join(r.dir, "disk-scratch")
	mustRun(s.b, "mke2fs", "-q", "-F", "-t", "ext4", scratch)
	mustRun(s.b, "cp", "--sparse=always", scratch, scratch+".clean")
	mustRun(s.b, "ip", "tuntap", "add", "tapraw", "mode", "tap", "vnet_hdr")
	s.b.Cleanup(func() { _ = exec.Command("ip", "link", "del", "tapraw").Run() })
	for _, arg := range strings.Split(strings.TrimRight(string(line), "\x00"), "\x00") {
		if arg != "-S" { // start at once
			r.argv = append(r.argv, strings.ReplaceAll(arg, `"ifname":"tap0"`, `"ifname":"tapraw"`))
		}
	}
	r.config = guest.Config{Hostname: "raw", Scratch: "scratch", Hosts: "127.0.0.1 localhost\n", Entropy: make([]byte, 64)}
	return r
}

// boot starts it, waits for the first line and stops it.
func (r rawVM) boot(b *testing.B) time.Duration {
	b.Helper()
	scratch := filepath.Join(r.dir, "disk-scratch")
	mustRun(b, "cp", "--sparse=always", scratch+".clean", scratch)
	for _, socket := range []string{"guest", "qmp"} {
		_ = os.Remove(filepath.Join(r.dir, socket))
	}
	console, err := os.Create(filepath.Join(r.dir, "console"))
	if err != nil {
		b.Fatal(err)
	}
	defer console.Close()
	cmd := exec.Command(r.argv[0], r.argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.dir, console, console
	began := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	if err := r.say(ctx); err != nil {
		said, _ := os.ReadFile(console.Name())
		b.Fatalf("the raw microVM: %v\n%s", err, said)
	}
	return time.Since(began)
}

// say runs the script in the guest until it prints its line.
func (r rawVM) say(ctx context.Context) error {
	session, err := guest.Connect(ctx, guest.Channel{Socket: filepath.Join(r.dir, "guest")})
	if err != nil {
		return err
	}
	defer session.Close()
	g := guest.New(session.Open)
	config := r.config
	config.Time = time.Now()
	if err := g.Configure(ctx, config); err != nil {
		return err
	}
	said := make(line, 1)
	if _, err := g.Run(ctx, guest.Process{
		Container: "main", Argv: []string{"/bin/sh", "-c", sayScript}, Env: []string{"PATH=/bin"}, Root: r.root,
	}, guest.Streams{Stdout: said}); err != nil {
		return err
	}
	select {
	case <-said:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// line is a writer that signals the first write.
type line chan struct{}

func (l line) Write(p []byte) (int, error) {
	select {
	case l <- struct{}{}:
	default:
	}
	return len(p), nil
}

// many starts microVMs one after another, measures their memory, and deletes them.
func (s booter) many(count int) {
	s.b.Helper()
	idle := read(s.b, s.c.Process("riklet").PID())
	began := time.Now()
	for i := range count {
		s.start(fmt.Sprintf("kept-%d", i))
	}
	s.b.ReportMetric(time.Since(began).Seconds(), fmt.Sprintf("%d-in-a-row-s", count))
	settle(time.Second)
	var shims, vmms process
	for _, pid := range supervisors(s.c) {
		add(&shims, read(s.b, pid))
	}
	running := s.vmms()
	for _, pid := range running {
		add(&vmms, read(s.b, pid))
	}
	if len(running) != count {
		s.b.Errorf("%d VMMs run for %d microVMs", len(running), count)
	}
	agent := read(s.b, s.c.Process("riklet").PID())
	each := float64(count)
	s.b.ReportMetric(shims.resident/each, "shim-per-vm-rss-MiB")
	s.b.ReportMetric(shims.proportional/each, "shim-per-vm-pss-MiB")
	s.b.ReportMetric((agent.resident-idle.resident)/each, "riklet-per-vm-rss-MiB")
	s.b.ReportMetric(vmms.proportional/each, "vmm-per-vm-pss-MiB")
	s.b.Logf("riklet: %.1f MiB before, %.1f MiB with %d microVMs", idle.resident, agent.resident, count)
	for i := range count {
		s.remove(fmt.Sprintf("kept-%d", i))
	}
	if left := append(s.vmms(), supervisors(s.c)...); len(left) > 0 {
		s.b.Errorf("processes left: %v", left)
	}
	if left, _ := filepath.Glob(filepath.Join(s.c.RunDir(), "vm", "*")); len(left) > 0 {
		s.b.Errorf("files left: %v", left)
	}
}

func add(sum *process, p process) {
	sum.resident += p.resident
	sum.proportional += p.proportional
}
