package runner

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/image/unpack"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/microvm"
	"rik.dev/rik/internal/riklet/shim/logfile"
	"rik.dev/rik/internal/testkit/interrupt"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/program"
)

// TestMain also makes this test binary the child process that unpacks images, and the process
// that hosts a driver to be killed.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "unpack":
		if err := unpack.Unpack(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case os.Getenv(envHost) != "":
		os.Exit(host())
	}
	// The tests wait most of the time: for processes to end, for back-offs and for guests to
	// boot.
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.NumCPU())); err != nil {
		panic(err)
	}
	code := m.Run()
	if tools.dir != "" {
		_ = os.RemoveAll(tools.dir)
	}
	os.Exit(code)
}

// tools are files that all tests share and no test changes.
var tools struct {
	once  sync.Once
	err   error
	dir   string
	shim  string
	vmm   string // the program of the fake VMM
	image string // a reference
}

func prepareTools() error {
	tools.once.Do(func() {
		if tools.dir, tools.err = os.MkdirTemp("/tmp", "rikpod"); tools.err != nil {
			return
		}
		tools.shim, tools.vmm = shimIn(tools.dir), doubleIn(tools.dir)
		build := exec.Command("go", "build", "-buildvcs=false", "-o", tools.dir+"/", "rik.dev/rik/cmd/rik-shim", "rik.dev/rik/internal/riklet/vmm/vmmfake/double")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			tools.err = fmt.Errorf("building rik-shim and the double: %w: %s", err, out)
			return
		}
		tools.image, tools.err = ociimage.Busybox(filepath.Join(tools.dir, "busybox"))
	})
	return tools.err
}

func shimIn(dir string) string   { return filepath.Join(dir, "rik-shim") }
func doubleIn(dir string) string { return filepath.Join(dir, "double") }

// runcPath returns the path of the runc that make built, or of the machine's runc.
func runcPath() string {
	if dir, err := program.Dir(); err == nil {
		built := filepath.Join(dir, "runc")
		if _, err := os.Stat(built); err == nil {
			return built
		}
	}
	return "runc"
}

// objects are ConfigMaps and Secrets that a test can change.
type objects struct {
	mu         sync.Mutex
	configMaps map[string]map[string][]byte
	secrets    map[string]map[string][]byte
}

func (o *objects) ConfigMap(_ context.Context, _, name string) (instance.Entries, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	data, ok := o.configMaps[name]
	return instance.Entries{Found: ok, Data: data}, nil
}

func (o *objects) Secret(_ context.Context, _, name string) (instance.Entries, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	data, ok := o.secrets[name]
	return instance.Entries{Found: ok, Data: data}, nil
}

func (o *objects) setConfigMap(name string, data map[string][]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.configMaps[name] = data
}

// node is a separate node for one test: directories, cgroups and images.
type node struct {
	testing.TB
	dir     string
	cfg     Config
	objects *objects
	images  *image.Store
	network *network        // nil: none
	vm      *microvm.Config // without its disks, which are opened with the images; nil: none
	driver  *Driver
	end     func()
	// closeStores closes the stores with which the driver was opened.
	closeStores func() error
}

// settings returns the configuration of a node at dir. It is the same in every process.
func settings(dir string, o *objects) Config {
	return Config{
		Root: filepath.Join(dir, "root"), Run: filepath.Join(dir, "run"), Runc: runcPath(), Shim: tools.shim,
		Objects: o, Node: NodeIdentity{Name: "node-1", Address: "192.0.2.7"}, CgroupParent: "/riktest-" + filepath.Base(dir),
		LogLimits: logfile.Limits{Bytes: 64 << 10},
	}
}

func openImages(dir string) (*image.Store, error) {
	return image.Open(image.Config{Root: filepath.Join(dir, "images"), Unpacker: []string{"/proc/self/exe", "unpack"}})
}

func newNode(t testing.TB) *node {
	t.Helper()
	privileged.Require(t)
	if err := prepareTools(); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "rik")
	if err != nil {
		t.Fatal(err)
	}
	if err := linkStore(dir, "images", madeImages); err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(dir)))
	}
	n := &node{TB: t, dir: dir, objects: &objects{configMaps: map[string]map[string][]byte{}, secrets: map[string]map[string][]byte{}}}
	n.cfg = settings(dir, n.objects)
	if testing.Verbose() {
		n.cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	t.Cleanup(n.purge)
	return n
}

// start opens a driver, recovers and runs it.
func (n *node) start() *Driver {
	n.Helper()
	d := n.open()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	n.end = func() {
		cancel()
		if err := errors.Join(<-done, d.Close(), n.closeStores()); err != nil {
			n.Errorf("ending the driver: %v", err)
		}
		n.driver, n.end = nil, nil
	}
	return d
}

func (n *node) open() *Driver {
	n.Helper()
	var err error
	if n.images, err = openImages(n.dir); err != nil {
		n.Fatal(err)
	}
	n.cfg.Images = n.images
	closeDisks := func() error { return nil }
	if n.vm != nil {
		disks, err := n.openDisks()
		if err != nil {
			n.Fatal(errors.Join(err, n.images.Close()))
		}
		vm := *n.vm
		vm.Disks, closeDisks = disks, disks.Close
		n.cfg.VM = &vm
	}
	n.closeStores = func() error { return errors.Join(closeDisks(), n.images.Close()) }
	if n.network != nil {
		n.cfg.Network, n.cfg.Dial = n.network.open(), dialerIn(n.network.pid)
	}
	if n.driver, err = New(n.cfg); err != nil {
		n.Fatal(errors.Join(err, n.closeStores()))
	}
	if err := n.driver.Recover(context.Background()); err != nil {
		d := n.driver
		n.driver = nil
		n.Fatal(errors.Join(err, d.Close(), n.closeStores()))
	}
	return n.driver
}

// purge removes everything that the test created, and reports what the driver left.
func (n *node) purge() {
	if n.end != nil {
		n.end()
	}
	d := n.open()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := errors.Join(d.Purge(ctx), d.Close(), n.closeStores()); err != nil {
		n.Errorf("purging: %v", err)
	}
	if left := traces(n.dir, n.cfg.CgroupParent); len(left) > 0 {
		n.Errorf("left after purging: %v", left)
	}
	if err := os.RemoveAll(n.dir); err != nil {
		n.Error(err)
	}
}

// traces lists what is left on the node, without the driver's help.
func traces(dir, parent string) []string {
	var left []string
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir+"/") {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	if layout, err := cgroup.Detect(); err == nil && layout.Exists(parent) {
		left = append(left, "cgroup "+parent)
	}
	for _, p := range processesOf(dir) {
		left = append(left, "process "+p)
	}
	return left
}

// processesOf lists the processes whose command line contains the directory or whose working
// directory is below it, such as VMMs.
func processesOf(dir string) []string {
	var found []string
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if work, _ := os.Readlink(filepath.Join("/proc", e.Name(), "cwd")); strings.HasPrefix(work, dir+"/") {
			found = append(found, e.Name()+" in "+work)
			continue
		}
		if err == nil && bytes.Contains(line, []byte(dir+"/")) || bytes.Contains(line, []byte("riktest-"+filepath.Base(dir)+"/")) {
			found = append(found, e.Name()+" "+string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// leftOf lists what is left of an instance on the node, without the driver's help.
func (n *node) leftOf(uid string) []string {
	var left []string
	for _, dir := range []string{filepath.Join(n.cfg.Root, "pods", uid), filepath.Join(n.cfg.Run, "pods", uid)} {
		if _, err := os.Lstat(dir); err == nil {
			left = append(left, dir)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, n.dir+"/") && mentions(line, uid) { // other tests use the UID too
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	if layout, err := cgroup.Detect(); err == nil && layout.Exists(n.cfg.CgroupParent+"/"+uid) {
		left = append(left, "cgroup of "+uid)
	}
	out, err := exec.Command(n.cfg.Runc, "--root", filepath.Join(n.cfg.Run, "runtimes", "runc"), "list", "-q").Output()
	if err != nil || mentions(string(out), uid) {
		left = append(left, fmt.Sprintf("runc list: %s %v", out, err))
	}
	ids, _ := os.ReadDir(filepath.Join(n.dir, "images", "mounts"))
	for _, e := range ids {
		if mentions(e.Name(), uid) {
			left = append(left, "root "+e.Name())
		}
	}
	if n.network != nil {
		left = append(left, n.network.leftOf(uid)...)
	}
	return left
}

// mentions distinguishes u1 from u17: a UID ends at a separator.
func mentions(text, uid string) bool {
	return strings.Contains(text, "/"+uid+"/") || strings.Contains(text, "."+uid+".")
}

const timeout = 3 * time.Minute

// eventually polls until check returns an empty string. It polls often at first and then less
// often, because many checks look at every process on the machine. It fails when the tests are
// interrupted, except in a cleanup.
func eventually(t testing.TB, check func() string) {
	t.Helper()
	stop := interrupt.Done()
	if t.Context().Err() != nil { // in a cleanup
		stop = nil
	}
	last, pause := "", 5*time.Millisecond
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		if last = check(); last == "" {
			return
		}
		select {
		case <-stop:
			t.Fatalf("%v; not so yet: %s", interrupt.Cause(), last)
		case <-time.After(pause):
		}
		pause = min(2*pause, 160*time.Millisecond)
	}
	t.Fatalf("after %s: %s", timeout, last)
}

// status returns the last status of an instance.
func (n *node) status(uid string) rikv1alpha1.InstanceStatus {
	for _, o := range n.driver.Observations() {
		if o.UID == uid {
			return o.Status
		}
	}
	return rikv1alpha1.InstanceStatus{}
}

// await polls until want accepts the instance's status.
func (n *node) await(uid, what string, want func(rikv1alpha1.InstanceStatus) bool) rikv1alpha1.InstanceStatus {
	n.Helper()
	var s rikv1alpha1.InstanceStatus
	eventually(n, func() string {
		if s = n.status(uid); want(s) {
			return ""
		}
		return fmt.Sprintf("instance %s is not %s: %+v", uid, what, s)
	})
	return s
}

func (n *node) awaitPhase(uid string, phase rikv1alpha1.InstancePhase) rikv1alpha1.InstanceStatus {
	n.Helper()
	return n.await(uid, string(phase), func(s rikv1alpha1.InstanceStatus) bool {
		if s.Phase != phase && (s.Phase == rikv1alpha1.InstanceFailed || s.Phase == rikv1alpha1.InstanceCompleted) && phase != rikv1alpha1.InstanceTerminated {
			n.Fatalf("instance %s is %s, want %s: %+v", uid, s.Phase, phase, s)
		}
		return s.Phase == phase
	})
}

// stop stops an instance and checks that nothing is left of it.
func (n *node) stop(uid string, grace time.Duration) {
	n.Helper()
	n.driver.Stop(uid, grace)
	n.awaitPhase(uid, rikv1alpha1.InstanceTerminated)
	if left := n.leftOf(uid); len(left) > 0 {
		n.Errorf("Terminated was reported, and these remain: %q", left)
	}
	n.driver.Forget(uid)
	eventually(n, func() string {
		if n.driver.machine(uid) != nil {
			return "not forgotten: " + uid
		}
		return ""
	})
}

func (n *node) ensure(in instance.Instance) {
	n.Helper()
	if err := n.driver.Ensure(in); err != nil {
		n.Fatal(err)
	}
}

func (n *node) log(uid, container string) string {
	n.Helper()
	var out bytes.Buffer
	if err := n.driver.Logs(context.Background(), uid, container, instance.LogOptions{}, &out); err != nil {
		n.Fatal(err)
	}
	return out.String()
}

// sh returns a container that runs a shell script.
func sh(name, script string) rikv1alpha1.Container {
	return rikv1alpha1.Container{Name: name, Image: tools.image, Command: []string{"/bin/sh", "-c", script}}
}

// forever is a script that does nothing until it receives SIGTERM.
const forever = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"

// upForever is forever, but it prints "up" once it handles signals.
const upForever = "trap 'exit 0' TERM; echo up; while :; do sleep 1000 & wait $!; done"

func podOf(uid string, policy rikv1alpha1.RestartPolicy, containers ...rikv1alpha1.Container) instance.Instance {
	return instance.Instance{
		UID: uid, Namespace: "default", Name: "name-of-" + uid,
		Template: rikv1alpha1.InstanceTemplate{RestartPolicy: policy, Containers: containers},
	}
}
