package riklet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/imagesession"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/instance/instancefake"
	"rik.dev/rik/internal/riklet/monitor"
	"rik.dev/rik/internal/riklet/session"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// store is an image store whose list the test changes.
type store struct {
	mu      sync.Mutex
	images  []string
	refused string // of the archives
}

func (s *store) References() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.images)
}

func (s *store) Collect(context.Context, bool) (int64, error) { return 0, nil }

func (s *store) Load(context.Context) string { return s.refused }

func (s *store) Sessions(users func() []imagesession.User) session.Images { return userLister(users) }

// userLister answers every request about images with the instances that need some.
type userLister func() []imagesession.User

func (u userLister) Serve(_ context.Context, _ *nodev1.ImagesSession, in io.ReadCloser, out io.Writer) error {
	_ = in.Close()
	_, err := fmt.Fprint(out, u())
	return err
}

// bench is a whole node with its cluster in memory, in a bubble.
type bench struct {
	t          *testing.T
	dir        string
	host       *instancefake.Host
	images     *store
	cluster    *cluster
	scheduler  *endpoint
	controller *endpoint
	authority  string // of the cluster

	riklet  *Riklet
	objects instance.Objects
	stop    func()

	lookedAgain atomic.Int32 // how often the driver was notified of changed objects
}

// mountingDriver is a driver that counts the notifications of changed ConfigMaps and Secrets.
type mountingDriver struct {
	instance.Driver
	reported *atomic.Int32
}

func (d mountingDriver) ObjectsChanged() { d.reported.Add(1) }

func newBench(t *testing.T) *bench {
	c := newCluster()
	return &bench{
		t: t, dir: t.TempDir(), host: instancefake.NewHost(), images: &store{images: []string{"b", "a"}}, cluster: c,
		scheduler:  &endpoint{register: func(s *grpc.Server) { schedulerv1.RegisterWorkerServer(s, workerEnd{cluster: c}) }},
		controller: &endpoint{register: func(s *grpc.Server) { nodev1.RegisterNodeServer(s, nodeEnd{cluster: c}) }},
	}
}

func (b *bench) config() Config {
	return Config{
		NodeName: "n1", StateDir: filepath.Join(b.dir, "state"), RunDir: filepath.Join(b.dir, "run"),
		DialScheduler: b.scheduler.dial, DialController: b.controller.dial, Authority: b.authority,
		Labels: map[string]string{"zone": "a"}, Taints: []rikv1alpha1.Taint{{Key: "k", Effect: rikv1alpha1.TaintNoSchedule}},
		Images: b.images, Unprivileged: true, Version: "v1",
		Driver: Drives{Kinds: []rikv1alpha1.WorkloadKind{rikv1alpha1.KindPod}, Make: func(h Host) (instance.Driver, error) {
			b.objects = h.Objects
			return mountingDriver{b.host.Driver(instancefake.Config{Changed: h.Changed}), &b.lookedAgain}, nil
		}},
	}
}

// boot starts the riklet. b.stop ends it and leaves the machine as it is.
func (b *bench) boot() {
	b.t.Helper()
	r, err := New(b.config())
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	b.riklet = r
	b.stop = func() {
		b.t.Helper()
		cancel()
		if err := errors.Join(<-done, r.Close()); err != nil {
			b.t.Errorf("Run() = %v", err)
		}
	}
}

func (b *bench) wantPhase(uid string, want rikv1alpha1.InstancePhase) {
	b.t.Helper()
	synctest.Wait()
	if got := b.cluster.phase(uid); got != string(want) {
		b.t.Errorf("the last status of %s is %q, want %q", uid, got, want)
	}
}

func TestNodeInACluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.scheduler.up()
		b.controller.up()
		b.boot()
		<-b.riklet.Ready()
		b.cluster.run("a")
		b.wantPhase("a", rikv1alpha1.InstanceRunning)

		b.cluster.locked(func() {
			r := b.cluster.registers[0]
			status := &rikv1alpha1.NodeStatus{}
			if err := status.Unmarshal(r.GetStatus()); err != nil || status.Info.MachineID == "" || status.Info.AgentVersion != "v1" ||
				!slices.Equal(status.Info.Kinds, []rikv1alpha1.WorkloadKind{rikv1alpha1.KindPod}) || status.Capacity.MilliCPU() == 0 {
				t.Errorf("registered with status %+v, %v", status, err)
			}
			if !r.GetNoNetwork() {
				t.Error("registered without the word that it has no network")
			}
			if r.GetNodeName() != "n1" || r.GetLabels()["zone"] != "a" || string(r.GetTaints()) != `[{"key":"k","effect":"NoSchedule"}]` {
				t.Errorf("registered as %v", r)
			}
			if diff := cmp.Diff([]string{"a", "b"}, b.cluster.images); diff != "" {
				t.Errorf("images (-want +got):\n%s", diff)
			}
		})
		b.images.mu.Lock()
		b.images.images = nil
		b.images.mu.Unlock()
		time.Sleep(monitor.DefaultInterval + time.Second)
		synctest.Wait()
		b.cluster.locked(func() {
			if u := b.cluster.usages; len(u) != 2 || u[0].GetMachine().GetCpus() == 0 || u[1].GetUid() != "a" || u[1].GetCpuMillis() != 1000 {
				t.Errorf("usages %v, want those of the node and of a", u)
			}
			if len(b.cluster.images) != 0 {
				t.Errorf("images %v after the last one went", b.cluster.images)
			}
		})
		b.cluster.stop("a")
		b.wantPhase("a", rikv1alpha1.InstanceTerminated)
		if len(b.host.Running()) != 0 {
			t.Errorf("still running: %v", b.host.Running())
		}
		b.stop()
		b.scheduler.down()
		b.controller.down()
	})
}

func TestSessionsAndObjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.scheduler.up()
		b.controller.up()
		b.boot()
		<-b.riklet.Ready()
		b.cluster.run("a")
		b.wantPhase("a", rikv1alpha1.InstanceRunning)
		b.host.Print("a", "hello")

		out, last := b.cluster.session(t, &nodev1.OpenSession{Session: 1, Uid: "a", Kind: &nodev1.OpenSession_Log{Log: &nodev1.LogSession{}}})
		if out != "hello\n" || last == nil || last.GetError() != "" {
			t.Errorf("log %q, ended %v", out, last)
		}
		out, last = b.cluster.session(t, &nodev1.OpenSession{Session: 2, Uid: "a", Container: "main", Kind: &nodev1.OpenSession_Exec{
			Exec: &nodev1.ExecSession{Command: []string{"echo", "hi"}}}})
		if out != "hi\n" || last.GetExitCode() != 0 || last == nil {
			t.Errorf("exec %q, ended %v", out, last)
		}
		_, last = b.cluster.session(t, &nodev1.OpenSession{Session: 3, Uid: "b", Kind: &nodev1.OpenSession_Port{Port: &nodev1.PortSession{Port: 7}}})
		if !strings.Contains(last.GetError(), instance.ErrUnknown.Error()) {
			t.Errorf("a port of an unknown instance ended with %v", last)
		}
		images := &nodev1.OpenSession{Session: 4, Kind: &nodev1.OpenSession_Images{Images: &nodev1.ImagesSession{}}}
		if out, last = b.cluster.session(t, images); out != "[{shop/web-a [oci:/images/web:v1]}]" || last.GetError() != "" {
			t.Errorf("the users of images are %q, ended %v", out, last)
		}
		b.cluster.stop("a")
		b.wantPhase("a", rikv1alpha1.InstanceTerminated)
		images.Session = 5
		if out, last = b.cluster.session(t, images); out != "[]" {
			t.Errorf("after the end of the instance the users of images are %q, ended %v", out, last)
		}
		if e, err := b.objects.Secret(t.Context(), "shop", "password"); err != nil || string(e.Data["key"]) != "value of password" {
			t.Errorf("Secret() = %+v, %v", e, err)
		}
		b.cluster.change(t, "password", "a new value")
		if got := b.lookedAgain.Load(); got != 1 {
			t.Errorf("the driver was notified %d times of changed objects, want once", got)
		}
		if e, err := b.objects.Secret(t.Context(), "shop", "password"); err != nil || string(e.Data["key"]) != "a new value" {
			t.Errorf("Secret() after the change = %+v, %v", e, err)
		}
		b.stop()
		b.scheduler.down()
		b.controller.down()
	})
}

// The cluster learns of image archives that the node refused.
func TestRefusedArchivesAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.images.refused = "a.tar: image refused"
		b.scheduler.up()
		b.controller.up()
		b.boot()
		<-b.riklet.Ready()
		time.Sleep(time.Minute)
		synctest.Wait()
		if all := b.cluster.lastTroubles(); len(all) != 1 || all[0].GetKind() != string(nodestate.TroubleImages) || all[0].GetMessage() != b.images.refused {
			t.Errorf("the node reports %v, want the archive", all)
		}
		b.stop()
		b.scheduler.down()
		b.controller.down()
	})
}

// The cluster learns from the scheduler that the controller refuses the node.
func TestARefusalOfTheControllerIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.cluster.refuses = status.Error(codes.FailedPrecondition, "install rik v2 on the node")
		b.scheduler.up()
		b.controller.up()
		b.boot()
		<-b.riklet.Ready()
		time.Sleep(time.Minute)
		synctest.Wait()
		if all := b.cluster.lastTroubles(); len(all) != 1 || all[0].GetKind() != string(nodestate.TroubleController) || all[0].GetMessage() != "install rik v2 on the node" {
			t.Errorf("the node reports %v, want the refusal", all)
		}
		b.cluster.locked(func() { b.cluster.refuses = nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		if all := b.cluster.lastTroubles(); len(all) > 0 {
			t.Errorf("a node that the controller accepts reports %v", all)
		}
		b.stop()
		b.scheduler.down()
		b.controller.down()
	})
}

// Neither the end of the riklet nor the loss of its peers affects running instances. A riklet
// without a controller continues from what is on its disk.
func TestFault07InstancesSurviveTheRiklet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.scheduler.up()
		b.controller.up()
		b.boot()
		b.cluster.run("a")
		b.wantPhase("a", rikv1alpha1.InstanceRunning)
		b.controller.down()
		b.scheduler.down()
		time.Sleep(time.Hour)
		synctest.Wait()
		b.stop()
		if got := b.host.Running(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("after the riklet ended run %v, want a", got)
		}
		// Orders during the absence arrive with the next Allowed.
		b.cluster.locked(func() { b.cluster.order = nil })
		b.cluster.run("b")
		b.scheduler.up()
		b.boot()
		<-b.riklet.Ready()
		b.wantPhase("a", rikv1alpha1.InstanceRunning)
		b.wantPhase("b", rikv1alpha1.InstanceRunning)
		b.cluster.locked(func() {
			last := b.cluster.registers[len(b.cluster.registers)-1]
			if !slices.Equal(last.GetRunning(), []string{"a"}) || last.GetHighestTerm() != 1 {
				t.Errorf("registered again with %v running, term %d", last.GetRunning(), last.GetHighestTerm())
			}
		})
		if b.host.Starts("a") != 1 {
			t.Errorf("a was started %d times", b.host.Starts("a"))
		}
		b.stop()
		b.scheduler.down()
	})
}

// TestRecreatedCluster keeps the node's state and loses the cluster's. The first term of the new
// cluster is lower than the last term of the old one, and the node still obeys it.
func TestRecreatedCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.authority = "old"
		b.cluster.term = 7
		b.scheduler.up()
		b.controller.up()
		b.boot()
		<-b.riklet.Ready()
		b.cluster.run("a")
		b.wantPhase("a", rikv1alpha1.InstanceRunning)
		b.stop()
		b.scheduler.down()
		b.controller.down()

		next := newBench(t)
		next.dir, next.host, next.authority = b.dir, b.host, "new"
		next.scheduler.up()
		next.controller.up()
		next.boot()
		synctest.Wait()
		next.cluster.run("b")
		next.wantPhase("b", rikv1alpha1.InstanceRunning)
		next.wantPhase("a", rikv1alpha1.InstanceTerminated)
		next.cluster.locked(func() {
			if got := next.cluster.registers[0].GetHighestTerm(); got != 0 {
				t.Errorf("registered with the old cluster's term %d", got)
			}
		})
		next.stop()
		next.scheduler.down()
		next.controller.down()
	})
}

func TestStateIsPrivate(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r, err := New(b.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	for _, dir := range []string{"state", "run", "state/revisions"} {
		if info, err := os.Stat(filepath.Join(b.dir, dir)); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v, want mode 0700", dir, info, err)
		}
	}
}

func TestDriverCannotBeCreated(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := b.config()
	cfg.Driver = Drives{
		Kinds: []rikv1alpha1.WorkloadKind{rikv1alpha1.KindFunction},
		Make:  func(Host) (instance.Driver, error) { return nil, errors.New("no KVM") },
	}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "[Function]: no KVM") {
		t.Errorf("New() = %v, want it to name the kind and the cause", err)
	}
	// The failed New has released the state directory.
	r, err := New(b.config())
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
}

func TestValidateNamesEveryProblem(t *testing.T) {
	t.Parallel()
	cfg := Config{
		NodeName: "No_Name", StateDir: "relative", SchedulerAddr: "host", ControllerAddr: "host:1",
		Token: jointoken.Token{ID: "x"}, Labels: map[string]string{"-bad-": "v", "ok": "bad value"},
		Taints:          []rikv1alpha1.Taint{{Key: "k", Value: "b c", Effect: "Sometimes"}},
		Reserved:        rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("-1")},
		InternalAddress: "nowhere", MaxInstances: -1,
	}
	err := cfg.Validate()
	if err == nil {
		t.Fatal("Validate() = nil")
	}
	for _, want := range []string{"No_Name", "relative", `"host"`, "join token", "-bad-", `label "ok"`, "Sometimes", "reserved cpu", "nowhere", "no driver", "number of instances", `value of taint "k=b c:Sometimes"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() does not name %q:\n%v", want, err)
		}
	}
	half := newBench(t).config()
	half.DialController = nil
	half.ControllerAddr = "host:4997"
	if err := half.Validate(); err == nil || !strings.Contains(err.Error(), "both peers") {
		t.Errorf("Validate() of one peer in the process = %v", err)
	}
}

func TestRequireRoot(t *testing.T) {
	t.Parallel()
	if err := requireRoot(0); err != nil {
		t.Errorf("requireRoot(0) = %v", err)
	}
	if err := requireRoot(1000); !errors.Is(err, ErrNotRoot) || !strings.Contains(err.Error(), "1000") {
		t.Errorf("requireRoot(1000) = %v, want ErrNotRoot with the user", err)
	}
}

func TestReopenAfterClose(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for range 2 {
		r, err := New(b.config())
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Resources(); got.ID != "n1" || got.CPU == 0 {
			t.Errorf("Resources() = %+v", got)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
