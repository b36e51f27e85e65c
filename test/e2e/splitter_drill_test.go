package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/privileged"
)

const (
	// splitKills is the number of kills in make test, and splitLongKills with RIK_E2E_LONG=1.
	splitKills     = 16
	splitLongKills = 500
	// splitRound is the number of kills after which the drill waits until nothing changes and
	// checks everything; splitLongRound with 500 kills.
	splitRound     = 8
	splitLongRound = 20
	// splitPace is the interval of changes. splitLife is the longest time between two kills, in
	// changes; splitLongLife with 500 kills.
	splitPace     = 150 * time.Millisecond
	splitLife     = 6
	splitLongLife = 12
	// splitVolumes is the number of volumes for claims in each Kubernetes.
	splitVolumes = 12

	splitNamespace = "splitting"
)

// TestPrivilegedSplitterDrill runs a kcp with its controllers in separate processes, and three
// clusters with real Deployments and pods. East and west are on one Kubernetes, where one watch
// sees all pods in the order in which they are created and deleted. South is on another one,
// which is unreachable for long periods. Roots are created, changed and deleted, clusters are
// cordoned, tainted and evicted, and leaves are deleted and changed by hand. Meanwhile the
// splitter and the syncers are killed at random times.
func TestPrivilegedSplitterDrill(t *testing.T) {
	privileged.Require(t)
	t.Parallel()
	kills, perRound, life := splitKills, splitRound, splitLife
	if privileged.Long() {
		kills, perRound, life = splitLongKills, splitLongRound, splitLongLife
	}
	d := startSplitDrill(t)
	d.life = life
	began := time.Now()
	rounds := (kills + perRound - 1) / perRound
	for round := range rounds {
		// South is unreachable in the first half of a round, in all of the next one, and not at
		// all in the third.
		d.round(round, min(perRound, kills-round*perRound))
	}
	t.Logf("%d kills in %s: %v; %d changes: %v", kills, time.Since(began).Round(time.Second), d.killed, d.churn.steps, d.churn.counts)
	d.below.conclude()
}

// splitDrill is the state of the splitter's drill.
type splitDrill struct {
	*drill
	t       *testing.T
	rand    *rand.Rand
	victims map[string]*victim
	names   []string // of the victims, in a fixed order
	killed  map[string]int
	life    int // the longest, in changes
	churn   *splitChurn
	below   *splitWatch
	up      kubernetes.Interface
	// nearAside and farAside reach the clusters even while they are cut.
	nearAside, farAside kubernetes.Interface
}

func startSplitDrill(t *testing.T) *splitDrill {
	t.Helper()
	near, far := startKubernetes(t, kube.Options{ControllerManager: true, Kubelet: true})
	d := &splitDrill{
		drill: newDrill(t, "6446", near, far),
		t:     t, rand: drillRand(t), victims: map[string]*victim{}, killed: map[string]int{},
	}
	d.up = kubernetes.NewForConfigOrDie(d.upstream)
	d.nearAside, d.farAside = kubernetes.NewForConfigOrDie(d.near.Aside()), kubernetes.NewForConfigOrDie(d.far.Aside())
	newVictim(t, "cluster-controller", "--kubeconfig", d.kubeconfig(), "--auto-publish-apis", "--split-types", "none").start()
	for _, name := range d.clusters() {
		d.register(name, d.physical(name), "--mode=none")
		d.victims[name] = d.newSyncer(t, name, d.physical(name))
		d.victims[name].start()
	}
	d.victims["splitter"] = newVictim(t, "deployment-splitter", "--kubeconfig", d.kubeconfig())
	d.victims["splitter"].start()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: splitNamespace}}
	if _, err := d.up.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d.names = append([]string{"splitter"}, d.clusters()...)
	d.makeVolumes()
	for _, name := range d.clusters() {
		d.awaitCarried(t, name, "deployments.apps", "configmaps", "secrets", "persistentvolumeclaims")
	}
	d.below = watchSplit(d)
	d.churn = newSplitChurn(d)
	return d
}

func (d *splitDrill) clusters() []string { return []string{"east", "west", "south"} }

// aside returns the client for checks of a cluster.
func (d *splitDrill) aside(cluster string) kubernetes.Interface {
	if cluster == "south" {
		return d.farAside
	}
	return d.nearAside
}

// makeVolumes creates volumes for claims, as a storage driver would.
func (d *splitDrill) makeVolumes() {
	d.t.Helper()
	for _, client := range []kubernetes.Interface{d.nearAside, d.farAside} {
		for i := range splitVolumes {
			_, err := client.CoreV1().PersistentVolumes().Create(d.t.Context(), &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("disk-%02d", i)},
				Spec: corev1.PersistentVolumeSpec{
					Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
					AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
				},
			}, metav1.CreateOptions{})
			if err != nil {
				d.t.Fatal(err)
			}
		}
	}
}

// round makes some kills while objects change, waits until nothing changes, and checks
// everything.
func (d *splitDrill) round(round, kills int) {
	d.t.Helper()
	cutAt, mendAt := d.cutRange(round, kills)
	ticker := time.NewTicker(splitPace)
	defer ticker.Stop()
	for i := range kills {
		if i == cutAt {
			d.below.isCut()
			d.far.Cut()
		}
		if i == mendAt {
			d.endStretch()
		}
		for range d.rand.IntN(d.life) {
			<-ticker.C
			d.churn.step()
		}
		name := d.names[d.rand.IntN(len(d.names))]
		d.victims[name].kill()
		d.killed[name]++
		for range d.rand.IntN(3) {
			d.churn.step()
		}
		d.victims[name].start()
	}
	if mendAt == kills {
		d.endStretch()
	}
	d.rest(round)
}

// cutRange returns the kills of a round between which south is cut.
func (d *splitDrill) cutRange(round, kills int) (cutAt, mendAt int) {
	switch round % 3 {
	case 0:
		return 1, kills / 2
	case 1:
		return 0, kills
	default:
		return -1, -1
	}
}

// endStretch mends the way to south, once the cut had its effect. By then the cluster is not
// ready, and a root with a grace period of 3 s has its parts elsewhere.
func (d *splitDrill) endStretch() {
	d.t.Helper()
	// Let the other clusters accept what leaves.
	d.churn.set("east", "")
	d.churn.set("west", "")
	d.awaitReason(d.t, "south", workloadv1alpha1.ReasonClusterUnreachable)
	insist(d.t, "waiting for what leaves south", func() error { return d.leftSouth(d.t.Context()) })
	d.far.Mend(d.t)
}

// leftSouth returns an error unless the root that may leave south has no part there.
func (d *splitDrill) leftSouth(ctx context.Context) error {
	name := leaving.name
	parts, err := d.parts(ctx, name)
	if err != nil {
		return err
	}
	if parts["south"] > 0 || parts["east"]+parts["west"] != int64(leaving.whole) {
		return fmt.Errorf("%s has the parts %v, want %d, and none in south", name, parts, leaving.whole)
	}
	return nil
}

// parts returns the replicas of a root's leaves.
func (d *splitDrill) parts(ctx context.Context, root string) (map[string]int64, error) {
	leaves, err := d.up.AppsV1().Deployments(splitNamespace).List(ctx, metav1.ListOptions{LabelSelector: workloadv1alpha1.OwnedByLabel + "=" + root})
	if err != nil {
		return nil, err
	}
	parts := map[string]int64{}
	for _, leaf := range leaves.Items {
		parts[leaf.Labels[workloadv1alpha1.ClusterLabel]] += int64(*leaf.Spec.Replicas)
	}
	return parts, nil
}

// rest waits until everything is in the correct state for no more changes.
func (d *splitDrill) rest(round int) {
	d.t.Helper()
	began := time.Now()
	for _, cluster := range d.clusters() {
		d.below.namespaceOf(cluster) // waits for it
	}
	var seen splitState
	insist(d.t, fmt.Sprintf("round %d, coming to rest", round), func() error {
		var err error
		if seen, err = d.look(d.t.Context()); err != nil {
			return err
		}
		return errors.Join(seen.check(d.churn)...)
	})
	d.t.Logf("round %d: at rest after %s: %s", round, time.Since(began).Round(time.Second), seen)
	d.churn.lowerCeilings()
	d.below.complain()
}

// look reads everything: the kcp, and the clusters directly.
func (d *splitDrill) look(ctx context.Context) (splitState, error) {
	s := splitState{below: map[string]*clusterState{}}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		s.upstream, err = d.up.AppsV1().Deployments(splitNamespace).List(ctx, metav1.ListOptions{})
		return err
	})
	for _, cluster := range d.clusters() {
		b := &clusterState{}
		s.below[cluster] = b
		namespace := d.below.namespaceOf(cluster)
		group.Go(func() error { return b.read(ctx, d.aside(cluster), namespace) })
	}
	return s, group.Wait()
}

// firstLines shortens the list of problems of a state that is not at rest.
func firstLines(problems []error, n int) []error {
	if len(problems) <= n {
		return problems
	}
	return append(problems[:n:n], fmt.Errorf("and %d more", len(problems)-n))
}
