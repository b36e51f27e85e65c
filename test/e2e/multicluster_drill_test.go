package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

const (
	// drillKills is how many times a program is killed in make test, and drillLongKills with
	// RIK_E2E_LONG=1. Each kill requires a complete restart of a program.
	drillKills     = 16
	drillLongKills = 50
	// drillOutage is how long a cluster is unreachable.
	drillOutage = time.Minute
	// drillNames is the number of names of each type for objects that are created and deleted.
	drillNames = 30
	// drillPace is the interval of changes to objects.
	drillPace = 50 * time.Millisecond
	// drillSeed is an environment variable that repeats the choices of a run.
	drillSeed = "RIK_DRILL_SEED"
)

// drilled lists the types of the objects.
var drilled = []schema.GroupVersionResource{
	{Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "secrets"},
}

// TestPrivilegedMulticlusterDrills runs a kcp with its controllers in separate processes, and
// three clusters on one Kubernetes. The cluster controller syncs to the first one, and syncers
// to the others. The third has its own connection. While objects are created, changed, moved and
// deleted, the programs are killed, and the connection to the third cluster is cut.
func TestPrivilegedMulticlusterDrills(t *testing.T) {
	privileged.Require(t)
	t.Parallel()
	d := startDrill(t)
	t.Run("killed again and again", func(t *testing.T) { killedAgainAndAgain(t, d) })
	t.Run("cut off for a minute", func(t *testing.T) { cutOffForAMinute(t, d) })
}

// drill is the common part of both drills.
type drill struct {
	*kcp
	upstream *rest.Config
	objects  dynamic.Interface
	near     *kube.Cluster // of east and west
	far      *kube.Cluster // of south, or the way to it
	east     *victim       // the cluster controller, which syncs to east
	west     *victim       // the syncer of west
}

func startDrill(t *testing.T) *drill {
	t.Helper()
	// Only the way to south is cut, so south needs no separate Kubernetes.
	near := kube.Start(t, kube.Options{})
	d := newDrill(t, "6445", near, near.Way(t))
	d.east = newVictim(t, "cluster-controller", "--kubeconfig", d.kubeconfig(), "--push-mode", "--discovery-poll-interval", "10s")
	d.east.start()
	d.register("east", d.near, "--mode=push")
	d.register("west", d.near, "--mode=none")
	d.register("south", d.far, "--mode=none")
	for _, name := range []string{"east", "west", "south"} {
		d.awaitCarried(t, name, "configmaps", "secrets")
	}
	d.west = d.newSyncer(t, "west", d.near)
	d.west.start()
	d.newSyncer(t, "south", d.far).start()
	return d
}

// newDrill starts a kcp without controllers, for clusters on the Kubernetes near and far.
func newDrill(t *testing.T, port string, near, far *kube.Cluster) *drill {
	t.Helper()
	d := &drill{near: near, far: far}
	d.kcp = runKCP(t, port, "--run-controllers=false")
	var err error
	if d.upstream, err = clientcmd.BuildConfigFromFlags("", d.kubeconfig()); err != nil {
		t.Fatal(err)
	}
	d.upstream.QPS, d.upstream.WarningHandler = -1, rest.NoWarnings{}
	d.objects = dynamic.NewForConfigOrDie(d.upstream)
	return d
}

// startKubernetes starts two in parallel, because each takes seconds.
func startKubernetes(t *testing.T, options kube.Options) (near, far *kube.Cluster) {
	t.Helper()
	var group errgroup.Group
	for _, c := range []**kube.Cluster{&near, &far} {
		dir := t.TempDir()
		group.Go(func() (err error) {
			*c, err = kube.Run(t.Context(), dir, options)
			return err
		})
	}
	err := group.Wait()
	for _, c := range []*kube.Cluster{near, far} {
		if c != nil {
			t.Cleanup(func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if err != nil {
		t.Fatalf("starting Kubernetes: %v", err)
	}
	return near, far
}

func (d *drill) newSyncer(t *testing.T, cluster string, physical *kube.Cluster) *victim {
	t.Helper()
	file := filepath.Join(t.TempDir(), cluster+".kubeconfig")
	if err := os.WriteFile(file, physical.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	// The number of allowed deletions grows with time after the start, and the syncer must
	// delete before it is killed.
	return newVictim(t, "syncer", "--cluster", cluster, "--from-kubeconfig", d.kubeconfig(), "--to-kubeconfig", file, "--max-deletes", "1000000")
}

// cluster reads a Cluster.
func (d *drill) cluster(ctx context.Context, name string) (*workloadv1alpha1.Cluster, error) {
	found, err := d.objects.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	c := &workloadv1alpha1.Cluster{}
	return c, runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, c)
}

// awaitCarried waits until types are synced to a cluster.
func (d *drill) awaitCarried(t *testing.T, cluster string, resources ...string) {
	t.Helper()
	rikcluster.Eventually(t, rikcluster.Timeout, func() error {
		c, err := d.cluster(t.Context(), cluster)
		if err != nil {
			return err
		}
		for _, r := range resources {
			if !slices.Contains(c.Status.SyncedResources, r) {
				return fmt.Errorf("%s is sent %v", cluster, c.Status.SyncedResources)
			}
		}
		return nil
	})
}

// victim is a program that the test kills and restarts.
type victim struct {
	tb      testing.TB
	program string
	args    []string
	dir     string
	cmd     *exec.Cmd
	logs    []string
}

func newVictim(t *testing.T, program string, args ...string) *victim {
	t.Helper()
	v := &victim{tb: t, program: program, args: args, dir: t.TempDir()}
	t.Cleanup(func() {
		v.kill()
		if t.Failed() && len(v.logs) > 0 {
			t.Logf("the last log of %s:\n%s", v.program, v.log())
		}
	})
	return v
}

func (v *victim) start() {
	v.tb.Helper()
	v.logs = append(v.logs, filepath.Join(v.dir, fmt.Sprintf("%d.log", len(v.logs))))
	file, err := os.Create(v.logs[len(v.logs)-1])
	if err != nil {
		v.tb.Fatal(err)
	}
	defer file.Close()
	v.cmd = exec.Command(filepath.Join(rikcluster.Bin(v.tb), v.program), v.args...)
	v.cmd.Stdout, v.cmd.Stderr = file, file
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := v.cmd.Start(); err != nil {
		v.tb.Fatalf("starting %s: %v", v.program, err)
	}
}

// kill sends SIGKILL. If the program has ended by itself, the test fails.
func (v *victim) kill() {
	if v.cmd == nil {
		return
	}
	_ = v.cmd.Process.Signal(syscall.SIGKILL)
	_ = v.cmd.Wait()
	if status, ok := v.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		v.tb.Errorf("%s ended by itself: %s\n%s", v.program, v.cmd.ProcessState, v.log())
	}
	v.cmd = nil
}

func (v *victim) log() string {
	raw, err := os.ReadFile(v.logs[len(v.logs)-1])
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// said returns how often all runs together logged a message.
func (v *victim) said(message string) int {
	n := 0
	for _, log := range v.logs {
		if raw, err := os.ReadFile(log); err == nil {
			n += strings.Count(string(raw), message)
		}
	}
	return n
}

// carries reports whether this run has started to sync objects.
func (v *victim) carries() bool {
	log := v.log()
	for _, r := range drilled {
		if !strings.Contains(log, `msg="copying a type"`) || !strings.Contains(log, "type="+r.Resource+" ") {
			return false
		}
	}
	return true
}

// killedAgainAndAgain kills one of the two programs at a time, some time after it has started to
// sync.
func killedAgainAndAgain(t *testing.T, d *drill) {
	t.Parallel()
	c := d.newChurn(t, "killing", "east", "west")
	staying := c.makeStaying(3)
	c.rest()
	before := c.identities(staying)
	watching := watchBelow(t, c, d.near)
	ticker := time.NewTicker(drillPace)
	defer ticker.Stop()
	victims, kills := []*victim{d.east, d.west}, map[string]int{}
	total := drillKills
	if privileged.Long() {
		total = drillLongKills
	}
	for range total {
		v := victims[c.rand.IntN(len(victims))]
		for more := c.rand.IntN(12); more > 0 || !v.carries(); more-- {
			<-ticker.C
			c.step()
		}
		v.kill()
		kills[v.program]++
		for range c.rand.IntN(3) {
			c.step()
		}
		v.start()
	}
	c.rest()
	t.Logf("killed %v; %d changes: %v; %d finalizers of dead syncers taken off", kills, c.steps, c.counts, d.east.said("released an object that the former syncer held"))
	c.keeps(before)
	watching.accountedFor(t, c)
}

// cutOffForAMinute changes objects while their cluster is unreachable.
func cutOffForAMinute(t *testing.T, d *drill) {
	t.Parallel()
	c := d.newChurn(t, "cutting", "south")
	staying := c.makeStaying(3)
	for range 4 * drillNames {
		c.step()
	}
	c.rest()
	sent, before := maps.Clone(c.wanted), c.identities(staying)

	d.far.Cut()
	end := time.NewTimer(drillOutage)
	defer end.Stop()
	ticker := time.NewTicker(10 * drillPace)
	defer ticker.Stop()
	for cut := true; cut; {
		select {
		case <-end.C:
			cut = false
		case <-ticker.C:
			c.step()
		}
	}
	d.awaitReason(t, "south", workloadv1alpha1.ReasonClusterUnreachable)
	c.stillHeld(sent)
	d.far.Mend(t)

	c.rest()
	t.Logf("%d changes: %v", c.steps, c.counts)
	c.keeps(before)
}

// awaitReason waits until a Cluster is not ready for a reason.
func (d *drill) awaitReason(t *testing.T, cluster, reason string) {
	t.Helper()
	rikcluster.Eventually(t, rikcluster.Timeout, func() error {
		c, err := d.cluster(t.Context(), cluster)
		if err != nil {
			return err
		}
		ready := meta.FindStatusCondition(c.Status.Conditions, workloadv1alpha1.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != reason {
			return fmt.Errorf("ready is %+v, want it false for %s", ready, reason)
		}
		return nil
	})
}

// thing is the type and name of an object.
type thing struct{ resource, name string }

// place is an upstream object in a cluster.
type place struct {
	cluster string
	uid     types.UID
}

// state is the wanted state of an object in a cluster.
type state struct {
	place
	version string
}

// churn creates, changes, moves and deletes objects, and records the expected result.
type churn struct {
	t         *testing.T
	d         *drill
	namespace string
	targets   []string
	below     map[string]string // its namespace in each cluster
	rand      *rand.Rand

	// wanted is the upstream state of each object that has a target.
	wanted map[thing]state
	// came and left are how many times an object was sent to a cluster and removed from it.
	came, left map[place]int
	steps      int
	counts     map[string]int
}

func (d *drill) newChurn(t *testing.T, namespace string, targets ...string) *churn {
	t.Helper()
	c := &churn{
		t: t, d: d, namespace: namespace, targets: targets, below: map[string]string{},
		rand:   drillRand(t),
		wanted: map[thing]state{}, came: map[place]int{}, left: map[place]int{}, counts: map[string]int{},
	}
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}}
	if _, err := d.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// drillRand returns the source of a drill's choices, which can be repeated.
func drillRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(drillSeed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the seed is %d (set %s to repeat it)", seed, drillSeed)
	return rand.New(rand.NewPCG(seed, 0))
}

func (c *churn) upstream(resource string) dynamic.ResourceInterface {
	return c.d.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(c.namespace)
}

// makeStaying creates objects of each type for each cluster. The test does not delete or move
// them.
func (c *churn) makeStaying(each int) []thing {
	var stays []thing
	for _, r := range drilled {
		for _, target := range c.targets {
			for i := range each {
				x := thing{r.Resource, fmt.Sprintf("stays-%s-%d", target, i)}
				c.create(x, target)
				stays = append(stays, x)
			}
		}
	}
	return stays
}

// step changes one object at random. It does not change an object that is being deleted.
func (c *churn) step() {
	c.t.Helper()
	c.steps++
	x := thing{drilled[c.rand.IntN(len(drilled))].Resource, fmt.Sprintf("x%02d", c.rand.IntN(drillNames))}
	target, choice := c.targets[c.rand.IntN(len(c.targets))], c.rand.IntN(6)
	switch present := c.read(x); {
	case present == nil:
		c.create(x, target)
	case present.GetDeletionTimestamp() != nil:
		c.counts["waited"]++
	case choice == 0:
		c.delete(x, present.GetUID())
	case choice == 1:
		c.send(x, present.GetUID(), "")
	default:
		c.send(x, present.GetUID(), target)
	}
}

func (c *churn) insist(what string, x thing, request func() error) {
	c.t.Helper()
	insist(c.t, fmt.Sprintf("%s %v", what, x), request)
}

// insist repeats a request until it succeeds. On two shared cores a server may let one time out,
// which is not an error of the tested programs.
func insist(t *testing.T, what string, request func() error) {
	t.Helper()
	rikcluster.Eventually(t, rikcluster.Timeout, func() error {
		if err := request(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

// read returns an upstream object, or nil if it does not exist.
func (c *churn) read(x thing) (found *unstructured.Unstructured) {
	c.t.Helper()
	c.insist("reading", x, func() (err error) {
		if found, err = c.upstream(x.resource).Get(c.t.Context(), x.name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			found, err = nil, nil
		}
		return err
	})
	return found
}

func (c *churn) create(x thing, target string) {
	c.t.Helper()
	version := fmt.Sprint(c.steps)
	o := &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{"v": encoded(x.resource, version)}}}
	o.SetAPIVersion("v1")
	o.SetKind(map[string]string{"configmaps": "ConfigMap", "secrets": "Secret"}[x.resource])
	o.SetName(x.name)
	o.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: target})
	var made *unstructured.Unstructured
	c.insist("making", x, func() (err error) {
		made, err = c.upstream(x.resource).Create(c.t.Context(), o, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // an earlier attempt whose answer was an error
			made, err = c.upstream(x.resource).Get(c.t.Context(), x.name, metav1.GetOptions{})
		}
		return err
	})
	c.wanted[x] = state{place{target, made.GetUID()}, version}
	c.came[c.wanted[x].place]++
	c.counts["made"]++
}

// send changes an object, and sets its target to a cluster or to none.
func (c *churn) send(x thing, uid types.UID, target string) {
	c.t.Helper()
	before, was := c.wanted[x]
	version := fmt.Sprint(c.steps)
	labels := map[string]any{workloadv1alpha1.ClusterLabel: nil}
	if target != "" {
		labels[workloadv1alpha1.ClusterLabel] = target
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": labels, "uid": uid}, "data": map[string]any{"v": encoded(x.resource, version)},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.insist("changing", x, func() error {
		_, err := c.upstream(x.resource).Patch(c.t.Context(), x.name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if moved := before.cluster != target; was && moved {
		c.left[before.place]++
		c.counts["taken away"]++
	}
	if before.cluster != target && target != "" {
		c.came[place{target, uid}]++
		c.counts["sent"]++
	}
	delete(c.wanted, x)
	if target != "" {
		c.wanted[x] = state{place{target, uid}, version}
		c.counts["changed"]++
	}
}

func (c *churn) delete(x thing, uid types.UID) {
	c.t.Helper()
	if before, was := c.wanted[x]; was {
		c.left[before.place]++
		delete(c.wanted, x)
	}
	c.insist("deleting", x, func() error {
		err := c.upstream(x.resource).Delete(c.t.Context(), x.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	c.counts["deleted"]++
}

func encoded(resource, value string) string {
	if resource == "secrets" {
		return base64.StdEncoding.EncodeToString([]byte(value))
	}
	return value
}

// rest waits until the clusters have exactly the objects that upstream wants there, and no
// upstream object has the finalizer of a cluster that is not its target.
func (c *churn) rest() {
	c.t.Helper()
	for _, cluster := range c.targets {
		if c.below[cluster] == "" {
			c.below[cluster] = c.d.in(c.t).awaitBelow(c.d.physical(cluster), cluster, c.namespace)
		}
	}
	rikcluster.Eventually(c.t, rikcluster.Timeout, func() error {
		return errors.Join(c.compareBelow(), c.compareHeld())
	})
}

func (d *drill) physical(cluster string) *kube.Cluster {
	if cluster == "south" {
		return d.far
	}
	return d.near
}

func (c *churn) compareBelow() error {
	got := map[thing]state{}
	for _, cluster := range c.targets {
		client := dynamic.NewForConfigOrDie(c.d.physical(cluster).Rest())
		for _, r := range drilled {
			list, err := client.Resource(r).Namespace(c.below[cluster]).List(c.t.Context(), metav1.ListOptions{LabelSelector: workloadv1alpha1.ClusterLabel})
			if err != nil {
				return err
			}
			for _, o := range list.Items {
				x := thing{r.Resource, o.GetName()}
				if twin, twice := got[x]; twice {
					return fmt.Errorf("%v is in %s and in %s", x, twin.cluster, cluster)
				}
				got[x] = stateOf(&o, r.Resource, cluster)
			}
		}
	}
	if diff := cmp.Diff(c.wanted, got, cmp.AllowUnexported(state{}, place{}, thing{})); diff != "" {
		return fmt.Errorf("in the clusters (-want +got):\n%s", diff)
	}
	return nil
}

func stateOf(below *unstructured.Unstructured, resource, cluster string) state {
	version, _, _ := unstructured.NestedString(below.Object, "data", "v")
	if raw, err := base64.StdEncoding.DecodeString(version); err == nil && resource == "secrets" {
		version = string(raw)
	}
	return state{place{cluster, types.UID(below.GetAnnotations()[workloadv1alpha1.UpstreamUIDAnnotation])}, version}
}

func (c *churn) compareHeld() error {
	var problems []error
	for _, r := range drilled {
		list, err := c.upstream(r.Resource).List(c.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			var want []string
			if wanted, ok := c.wanted[thing{r.Resource, o.GetName()}]; ok {
				want = []string{workloadv1alpha1.FinalizerPrefix + wanted.cluster}
			}
			if got := o.GetFinalizers(); !slices.Equal(got, want) || o.GetDeletionTimestamp() != nil {
				problems = append(problems, fmt.Errorf("%s %s has the finalizers %v, want %v, and was deleted at %v", r.Resource, o.GetName(), got, want, o.GetDeletionTimestamp()))
			}
		}
	}
	return errors.Join(problems...)
}

// identities returns the UIDs of objects in their clusters.
func (c *churn) identities(things []thing) map[thing]types.UID {
	c.t.Helper()
	found := map[thing]types.UID{}
	for _, x := range things {
		cluster := c.wanted[x].cluster
		client := dynamic.NewForConfigOrDie(c.d.physical(cluster).Rest())
		o, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: x.resource}).Namespace(c.below[cluster]).Get(c.t.Context(), x.name, metav1.GetOptions{})
		if err != nil {
			c.t.Fatalf("reading %v in %s: %v", x, cluster, err)
		}
		found[x] = o.GetUID()
	}
	return found
}

// keeps checks that untouched objects are still the same in their clusters.
func (c *churn) keeps(before map[thing]types.UID) {
	c.t.Helper()
	if diff := cmp.Diff(before, c.identities(slices.Collect(maps.Keys(before))), cmp.AllowUnexported(thing{})); diff != "" {
		c.t.Errorf("objects that nobody deleted are others now (-before +after):\n%s", diff)
	}
}

// stillHeld checks every object that was in a cluster before the cut and was deleted or
// retargeted since. It must still exist upstream with its finalizer, because its removal below
// is not confirmed.
func (c *churn) stillHeld(before map[thing]state) {
	c.t.Helper()
	n := 0
	for x, was := range before {
		if now, ok := c.wanted[x]; ok && now.place == was.place {
			continue
		}
		n++
		o, err := c.upstream(x.resource).Get(c.t.Context(), x.name, metav1.GetOptions{})
		if err != nil || o.GetUID() != was.uid || !slices.Contains(o.GetFinalizers(), workloadv1alpha1.FinalizerPrefix+was.cluster) {
			c.t.Errorf("%v, which was in %s when it was cut off, is %v with %v, want it held for the cluster", x, was.cluster, o, err)
		}
	}
	if n == 0 {
		c.t.Error("nothing was deleted or taken away while the cluster was cut off")
	}
}

// watching counts the creations and deletions in a Kubernetes.
type watching struct {
	cancel context.CancelFunc
	group  errgroup.Group

	mu         sync.Mutex
	came, gone map[place]int
}

// watchBelow starts at the present objects.
func watchBelow(t *testing.T, c *churn, physical *kube.Cluster) *watching {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watching{cancel: cancel, came: map[place]int{}, gone: map[place]int{}}
	t.Cleanup(func() {
		cancel()
		_ = w.group.Wait() // its error is checked earlier, where it matters
	})
	client := dynamic.NewForConfigOrDie(physical.Rest())
	for _, r := range drilled {
		for _, cluster := range c.targets {
			resource := client.Resource(r).Namespace(c.below[cluster])
			list, err := resource.List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range list.Items {
				w.note(watch.Added, &o, cluster)
			}
			changes, err := resource.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
			if err != nil {
				t.Fatal(err)
			}
			w.group.Go(func() error { return w.follow(ctx, changes, cluster) })
		}
	}
	return w
}

func (w *watching) follow(ctx context.Context, changes watch.Interface, cluster string) error {
	defer changes.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case change, open := <-changes.ResultChan():
			o, ok := change.Object.(*unstructured.Unstructured)
			if !open || !ok {
				return fmt.Errorf("the watch of %s ended: %v", cluster, change.Object)
			}
			w.note(change.Type, o, cluster)
		}
	}
}

func (w *watching) note(change watch.EventType, o *unstructured.Unstructured, cluster string) {
	p := place{cluster, types.UID(o.GetAnnotations()[workloadv1alpha1.UpstreamUIDAnnotation])}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch change {
	case watch.Added:
		w.came[p]++
	case watch.Deleted:
		w.gone[p]++
	default:
	}
}

// accountedFor checks that no object was created in a cluster more often than it was sent there,
// and none was deleted more often than it was removed or deleted upstream.
func (w *watching) accountedFor(t *testing.T, c *churn) {
	t.Helper()
	w.cancel()
	if err := w.group.Wait(); err != nil {
		t.Fatal(err)
	}
	came, gone := 0, 0
	for p, n := range w.came {
		if came += n; n > c.came[p] {
			t.Errorf("%v came %d times and was sent %d times: it was brought back", p, n, c.came[p])
		}
	}
	for p, n := range w.gone {
		if gone += n; n > c.left[p] {
			t.Errorf("%v went %d times and was taken away %d times: it was deleted", p, n, c.left[p])
		}
	}
	if came == 0 || gone == 0 {
		t.Errorf("%d objects came and %d went: the drill shows nothing", came, gone)
	}
}
