package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

const (
	// fenceStretches is how often a cluster is disconnected, one after the other in turn. Each
	// stays disconnected until all its parts run elsewhere and then for fenceAfterwards.
	fenceStretches  = 4
	fenceAfterwards = 20 * time.Second
	// fencePace is the interval of checks, each with perhaps one change and one kill.
	fencePace = 250 * time.Millisecond
)

var (
	fencedType   = rikv1alpha1.SchemeGroupVersion.WithResource("workloads")
	instanceType = rikv1alpha1.SchemeGroupVersion.WithResource("instances")
)

// TestPrivilegedSplitterFenceDrill runs a kcp and two rik clusters in their own networks, with
// simulated nodes, which use the real protocol and run nothing. Roots with a fence are scaled,
// splitter and syncers are killed at random times, and one cluster after the other is
// disconnected until all its parts run in the other. At no time may more than the total and the
// surge run in both clusters together. It takes a quarter of an hour, so it runs only with
// RIK_E2E_LONG=1.
func TestPrivilegedSplitterFenceDrill(t *testing.T) {
	privileged.Require(t)
	if !privileged.Long() {
		t.Skipf("%s is not 1", privileged.EnvLong)
	}
	if !rikcluster.Alone(t) {
		return
	}
	d := startFenceDrill(t)
	d.rest()
	for stretch := range fenceStretches {
		d.stretch(d.sites[stretch%len(d.sites)])
	}
	t.Logf("killed %v; roots were scaled %d times; %d looks at %d instances at most, %d of them at as many as may be",
		d.killed, d.scaled, d.looks, d.mostSeen, d.atCeiling)
	if d.atCeiling == 0 || len(d.killed) < len(d.names) {
		t.Error("the drill shows nothing")
	}
}

// fenceDrill is the state of the drill of fenced roots.
type fenceDrill struct {
	*kcp
	t       *testing.T
	rand    *rand.Rand
	up      dynamic.Interface
	sites   []*fenceSite
	roots   []*fencedRoot
	victims map[string]*victim
	names   []string
	killed  map[string]int

	scaled, looks, mostSeen, atCeiling int
}

// fenceSite is a rik cluster in its own place.
type fenceSite struct {
	name    string
	place   *rikcluster.Place
	cluster *rikcluster.Cluster
	// aside reaches the cluster even if its cable is disconnected.
	aside dynamic.Interface
	cut   bool
}

type fencedRoot struct {
	name         string
	whole, surge int64
	// ceiling is the maximum of total plus surge since the last rest.
	ceiling int64
	steady  bool
}

func startFenceDrill(t *testing.T) *fenceDrill {
	t.Helper()
	d := &fenceDrill{t: t, rand: drillRand(t), victims: map[string]*victim{}, killed: map[string]int{}}
	rikcluster.MakeLan(t)
	for i, name := range []string{"east", "west"} {
		d.sites = append(d.sites, startFenceSite(t, name, i+1))
	}
	d.kcp = startKCPAlone(t, "6443")
	d.up = d.dynamic(d.kubeconfig(), nil)
	newVictim(t, "cluster-controller", "--kubeconfig", d.kubeconfig(), "--auto-publish-apis", "--resources-to-sync", "workloads.rik.dev", "--split-types", "none").start()
	for _, s := range d.sites {
		file := filepath.Join(s.cluster.DataDir(), "admin.kubeconfig")
		d.do("rikctl", "cluster", "register", s.name, "--kubeconfig", file, "--mode=none")
		d.victims[s.name] = newVictim(t, "syncer", "--cluster", s.name, "--from-kubeconfig", d.kubeconfig(), "--to-kubeconfig", file, "--max-deletes", "1000000")
		d.victims[s.name].start()
	}
	d.victims["splitter"] = newVictim(t, "deployment-splitter", "--kubeconfig", d.kubeconfig())
	d.victims["splitter"].start()
	d.names = []string{"splitter", "east", "west"}
	for _, s := range d.sites {
		d.awaitFencing(s)
	}
	for _, r := range []*fencedRoot{
		{name: "steady-0", whole: 6, surge: 2, steady: true}, {name: "steady-1", whole: 5, surge: 0, steady: true},
		{name: "scaled-0", whole: 4, surge: 1}, {name: "scaled-1", whole: 3, surge: 0},
	} {
		d.create(r)
	}
	return d
}

// startKCPAlone starts a kcp whose controllers run in separate processes.
func startKCPAlone(t *testing.T, port string) *kcp {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	return runKCP(t, port, "--run-controllers=false")
}

func startFenceSite(t *testing.T, name string, n int) *fenceSite {
	t.Helper()
	network := fmt.Sprintf("rik-fence-%d-%s", os.Getpid(), name)
	s := &fenceSite{name: name, place: rikcluster.NewPlace(t, network, n)}
	s.cluster = rikcluster.Start(t, rikcluster.Options{Place: s.place, NoAgent: true})
	simulate := exec.Command("nsenter", "--net=/run/netns/"+network, "--", filepath.Join(s.cluster.Bin, "rik"), "simulate",
		"--data-dir", s.cluster.DataDir(), "--nodes", "2", "--scheduler", net.JoinHostPort(s.place.Address, "4995"))
	simulate.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := simulate.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = simulate.Process.Signal(syscall.SIGTERM)
		_ = simulate.Wait() // the test has stopped it
	})
	s.cluster.AwaitNodes(2)
	s.aside = (&fenceDrill{t: t}).dynamic(filepath.Join(s.cluster.DataDir(), "admin.kubeconfig"), dialFrom("/run/netns/"+network))
	return s
}

// dynamic connects with a kubeconfig, through dial if that is set.
func (d *fenceDrill) dynamic(file string, dial func(context.Context, string, string) (net.Conn, error)) dynamic.Interface {
	d.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		d.t.Fatal(err)
	}
	config.QPS, config.Dial = -1, dial
	return dynamic.NewForConfigOrDie(config)
}

// dialFrom connects from inside a network namespace, which needs no cable to it.
func dialFrom(path string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		runtime.LockOSThread()
		own, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			return nil, err
		}
		defer own.Close()
		there, err := netns.GetFromPath(path)
		if err != nil {
			runtime.UnlockOSThread()
			return nil, err
		}
		defer there.Close()
		if err := netns.Set(there); err != nil {
			runtime.UnlockOSThread()
			return nil, err
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		// A thread that cannot return stays locked, and ends with its goroutine.
		if back := netns.Set(own); back != nil {
			return nil, errors.Join(err, back)
		}
		runtime.UnlockOSThread()
		return conn, err
	}
}

// awaitFencing waits until a cluster is ready, receives Workloads, and can fence.
func (d *fenceDrill) awaitFencing(s *fenceSite) {
	d.t.Helper()
	d.eventually(func() error {
		found, err := d.up.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")).Get(d.t.Context(), s.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		c := &workloadv1alpha1.Cluster{}
		if err := kruntime.DefaultUnstructuredConverter.FromUnstructured(found.Object, c); err != nil {
			return err
		}
		for _, condition := range []string{workloadv1alpha1.ConditionReady, workloadv1alpha1.ConditionFencing} {
			if !meta.IsStatusConditionTrue(c.Status.Conditions, condition) {
				return fmt.Errorf("%s is not %s: %+v", s.name, condition, c.Status.Conditions)
			}
		}
		if !slices.Contains(c.Status.SyncedResources, "workloads.rik.dev") {
			return fmt.Errorf("%s is sent %v", s.name, c.Status.SyncedResources)
		}
		return nil
	})
}

func (d *fenceDrill) create(r *fencedRoot) {
	d.t.Helper()
	r.ceiling = r.whole + r.surge
	o := &unstructured.Unstructured{}
	manifest := fmt.Appendf(nil, `
apiVersion: rik.dev/v1alpha1
kind: Workload
metadata:
  name: %s
  namespace: default
  annotations: {workloads.kcp.dev/fence-after: 20s, placement.workloads.kcp.dev/grace-period: 1s, placement.workloads.kcp.dev/max-surge: "%d"}
spec:
  deploy: Automatic
  replicas: %d
  terminationGracePeriodSeconds: 2
  containers:
    - {name: main, image: "oci:/nowhere"}
`, r.name, r.surge, r.whole)
	if err := yaml.Unmarshal(manifest, &o.Object); err != nil {
		d.t.Fatal(err)
	}
	insist(d.t, "making "+r.name, func() error {
		_, err := d.up.Resource(fencedType).Namespace("default").Create(d.t.Context(), o, metav1.CreateOptions{})
		return err
	})
	d.roots = append(d.roots, r)
}

// stretch disconnects a cluster until all its parts run elsewhere, and for some more time.
func (d *fenceDrill) stretch(s *fenceSite) {
	d.t.Helper()
	began := time.Now()
	s.place.Unplug()
	s.cut = true
	ticker := time.NewTicker(fencePace)
	defer ticker.Stop()
	var left time.Duration
	var end time.Time
	for ; end.IsZero() || time.Now().Before(end); <-ticker.C {
		d.step()
		if end.IsZero() && d.hasLeft(s) {
			left, end = time.Since(began), time.Now().Add(fenceAfterwards)
		}
		if time.Since(began) > 2*rikcluster.Timeout {
			d.t.Fatalf("the parts of %s have not left it: %v", s.name, d.look())
		}
	}
	s.place.Plug()
	for range 40 { // it comes back while programs are killed
		<-ticker.C
		d.step()
	}
	s.cut = false
	d.rest()
	d.t.Logf("%s was cut off; its parts ran elsewhere after %s; all was at rest after %s", s.name, left.Round(time.Second), time.Since(began).Round(time.Second))
}

// step checks, and may scale a root and kill a program.
func (d *fenceDrill) step() {
	d.t.Helper()
	r, whole := d.roots[d.rand.IntN(len(d.roots))], int64(d.rand.IntN(7))
	if scale := d.rand.IntN(8) == 0; scale && !r.steady {
		r.whole = whole
		r.ceiling = max(r.ceiling, r.whole+r.surge)
		insist(d.t, "scaling "+r.name, func() error {
			patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, r.whole)
			_, err := d.up.Resource(fencedType).Namespace("default").Patch(d.t.Context(), r.name, types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		})
		d.scaled++
	}
	name, kill := d.names[d.rand.IntN(len(d.names))], d.rand.IntN(12) == 0
	if kill {
		d.victims[name].kill()
		d.killed[name]++
	}
	d.look()
	if kill {
		d.victims[name].start()
	}
}

// running returns the instances of the roots in a site that run or may run. While the site is
// disconnected this includes instances that are being stopped, because their end is not
// confirmed.
func (s *fenceSite) running(ctx context.Context) (map[string][]types.UID, error) {
	list, err := s.aside.Resource(instanceType).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	found := map[string][]types.UID{}
	for i := range list.Items {
		o := &list.Items[i]
		workload, _, _ := unstructured.NestedString(o.Object, "spec", "workload")
		phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
		going := o.GetDeletionTimestamp() != nil && !s.cut
		switch rikv1alpha1.InstancePhase(phase) {
		case rikv1alpha1.InstanceCreating, rikv1alpha1.InstanceRunning, rikv1alpha1.InstanceDestroying, rikv1alpha1.InstanceUnknown:
			if root, _, ok := strings.Cut(workload, "--"); ok && !going {
				found[root] = append(found[root], o.GetUID())
			}
		default:
		}
	}
	return found, nil
}

// look counts the running instances at one time: instances that the first cluster has before and
// after the request to the other one also existed during it.
func (d *fenceDrill) look() map[string]int64 {
	d.t.Helper()
	ctx := d.t.Context()
	var lists [3]map[string][]types.UID
	for i, s := range []*fenceSite{d.sites[0], d.sites[1], d.sites[0]} {
		insist(d.t, "looking at "+s.name, func() (err error) { lists[i], err = s.running(ctx); return err })
	}
	d.looks++
	all, counts := 0, map[string]int64{}
	for _, r := range d.roots {
		n := int64(len(lists[1][r.name]))
		for _, uid := range lists[0][r.name] {
			if slices.Contains(lists[2][r.name], uid) {
				n++
			}
		}
		counts[r.name] = n
		all += int(n)
		if n > r.ceiling {
			d.t.Errorf("%d of %s run in both clusters, and %d may; %s is cut off: %t, %s: %t", n, r.name, r.ceiling, d.sites[0].name, d.sites[0].cut, d.sites[1].name, d.sites[1].cut)
		}
		if n == r.ceiling {
			d.atCeiling++
		}
	}
	d.mostSeen = max(d.mostSeen, all)
	return counts
}

// hasLeft reports whether all wanted replicas run outside a site.
func (d *fenceDrill) hasLeft(gone *fenceSite) bool {
	d.t.Helper()
	for _, s := range d.sites {
		if s == gone {
			continue
		}
		found, err := s.running(d.t.Context())
		if err != nil {
			return false
		}
		for _, r := range d.roots {
			if int64(len(found[r.name])) != r.whole {
				return false
			}
		}
	}
	return true
}

// rest waits until the parts add up to the total, and run.
func (d *fenceDrill) rest() {
	d.t.Helper()
	insist(d.t, "coming to rest", func() error {
		d.look()
		var ran [2]map[string][]types.UID
		for i, s := range d.sites {
			var err error
			if ran[i], err = s.running(d.t.Context()); err != nil {
				return err
			}
		}
		list, err := d.up.Resource(fencedType).Namespace("default").List(d.t.Context(), metav1.ListOptions{LabelSelector: workloadv1alpha1.OwnedByLabel})
		if err != nil {
			return err
		}
		parts := map[string]int64{}
		for i := range list.Items {
			o := &list.Items[i]
			n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
			root, cluster, _ := strings.Cut(o.GetName(), "--")
			at := slices.IndexFunc(d.sites, func(s *fenceSite) bool { return s.name == cluster })
			if at < 0 || int64(len(ran[at][root])) != n {
				return fmt.Errorf("%s has %d replicas, and %v run", o.GetName(), n, ran)
			}
			parts[root] += n
		}
		for _, r := range d.roots {
			if parts[r.name] != r.whole {
				return fmt.Errorf("the parts of %s are %d, want %d", r.name, parts[r.name], r.whole)
			}
		}
		return nil
	})
	for _, r := range d.roots {
		r.ceiling = r.whole + r.surge
	}
}
