package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/cluster"
	"rik.dev/rik/internal/multicluster/syncer"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// TestFinalizersOfADeadSyncerAreReleased tests a syncer that is killed after its last action in the
// cluster. It leaves its finalizer on objects that no other syncer finds. They are released when
// the cluster has confirmed that it does not have them, and not before.
func TestFinalizersOfADeadSyncerAreReleased(t *testing.T) {
	t.Parallel()
	physical := kube.Shared(t).Way(t)
	s := newSite(t, func(c *cluster.Config) {
		c.Mode = workloadv1alpha1.SyncNone
		// The test waits for about twelve sweeps, which come ten times less often on a busy
		// machine.
		c.PollInterval = 250 * time.Millisecond
	})
	s.create(t, secret(physical.Kubeconfig()))
	s.create(t, bySecret("east"))
	s.beat(t, "east")
	registered := s.awaitReady(t, "east", metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)

	moved := s.held(t, "moved", "west")
	unsent := s.held(t, "unsent", "")
	deleted := s.held(t, "deleted", "")
	if err := s.upstream.Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	s.awaitFinalizers(t, moved)
	// No other component reports that the Cluster west does not exist.
	note := func(want string) {
		t.Helper()
		poll.Until(t, kube.Timeout, fmt.Sprintf("the problem says %q", want), func(ctx context.Context) error {
			now := &corev1.ConfigMap{}
			if err := s.upstream.Get(ctx, client.ObjectKeyFromObject(moved), now); err != nil {
				return err
			}
			said := now.Annotations[workloadv1alpha1.ProblemAnnotationPrefix+"west"]
			if !strings.HasPrefix(said, want) || want == "" && said != "" {
				return fmt.Errorf("it says %q", said)
			}
			return nil
		})
	}
	note("NoSuchCluster: the Cluster west does not exist")
	sentNowhere := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"workloads.kcp.dev/cluster":null}}}`))
	if err := s.upstream.Patch(t.Context(), moved.DeepCopy(), sentNowhere); err != nil {
		t.Fatal(err)
	}
	note("")
	s.awaitFinalizers(t, unsent)
	s.gone(t, deleted)

	// An object that is sent to the cluster, or exists there, is left to the syncer.
	sent, present := s.held(t, "sent", "east"), s.held(t, "present", "west")
	there := s.downNamespace(t, physical, registered)
	counterpart := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: there, Name: "present", Annotations: map[string]string{workloadv1alpha1.UpstreamUIDAnnotation: string(present.UID)},
	}}
	if _, err := physical.Client().CoreV1().ConfigMaps(there).Create(t.Context(), counterpart, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.sweeps(t)
	s.isHeld(t, sent)
	s.isHeld(t, present)

	// Nothing counts as gone from a cluster that cannot be reached.
	physical.Cut()
	s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonClusterUnreachable)
	unknown := s.held(t, "unknown", "")
	s.sweeps(t)
	s.isHeld(t, unknown)
	physical.Mend(t)
	s.awaitFinalizers(t, unknown)
	s.isHeld(t, present)
}

// held creates a ConfigMap with the finalizer of east's syncer that is sent to a cluster or to
// none. The finalizer comes first, so that no sweep sees it sent elsewhere by mistake.
func (s *site) held(t *testing.T, name, target string) *corev1.ConfigMap {
	t.Helper()
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: name, Finalizers: []string{workloadv1alpha1.FinalizerPrefix + "east"},
	}}
	if target != "" {
		held.Labels = map[string]string{workloadv1alpha1.ClusterLabel: target}
	}
	s.create(t, held)
	return held
}

// awaitFinalizers waits until an object has exactly these finalizers.
func (s *site) awaitFinalizers(t *testing.T, object client.Object, want ...string) {
	t.Helper()
	poll.Until(t, kube.Timeout, fmt.Sprintf("%s has the finalizers %v", object.GetName(), want), func(ctx context.Context) error {
		if err := s.upstream.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		if got := object.GetFinalizers(); !slices.Equal(got, want) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
}

func (s *site) isHeld(t *testing.T, object client.Object) {
	t.Helper()
	if err := s.upstream.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	if got, want := object.GetFinalizers(), workloadv1alpha1.FinalizerPrefix+"east"; !slices.Contains(got, want) {
		t.Errorf("%s has the finalizers %v, want %s among them", object.GetName(), got, want)
	}
}

// sweeps waits until every object was checked four times, because an orphan counts only at the
// second check. Each check is visible because a sweep releases the finalizer of a Cluster that
// does not exist.
func (s *site) sweeps(t *testing.T) {
	t.Helper()
	for i := range 4 {
		mark := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, GenerateName: fmt.Sprintf("mark%d-", i),
			Finalizers: []string{workloadv1alpha1.FinalizerPrefix + "nowhere"},
		}}
		s.create(t, mark)
		s.awaitFinalizers(t, mark)
	}
}

// downNamespace creates the downstream namespace of default in the cluster.
func (s *site) downNamespace(t *testing.T, physical *kube.Cluster, registered *workloadv1alpha1.Cluster) string {
	t.Helper()
	system := &corev1.Namespace{}
	if err := s.upstream.Get(t.Context(), types.NamespacedName{Name: metav1.NamespaceSystem}, system); err != nil {
		t.Fatal(err)
	}
	identity := syncer.Identity{Upstream: system.UID, Cluster: registered.Name, ClusterUID: registered.UID}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: identity.Namespace(metav1.NamespaceDefault)}}
	if _, err := physical.Client().CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}
