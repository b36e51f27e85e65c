package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/cluster"
	"rik.dev/rik/internal/multicluster/cluster/pull"
	"rik.dev/rik/internal/multicluster/kubeconfig"
	"rik.dev/rik/internal/multicluster/syncer"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/served"
)

// TestAnotherAgentContinuesAfterAStop tests that a stopped agent is detected. Another one with the
// same credentials continues its work, and copies the changes that were made in between.
func TestAnotherAgentContinuesAfterAStop(t *testing.T) {
	t.Parallel()
	physical := kube.Shared(t)
	var s *site
	s = newSite(t, func(c *cluster.Config) {
		c.SyncerImage, c.HeartbeatTimeout = "registry.example/syncer:1", beatTimeout
		c.Credentials = func(_ context.Context, name string, uid types.UID) ([]byte, error) {
			config, err := s.kcp.ConfigFor(pki.User(workloadv1alpha1.SyncerUserPrefix+name, string(uid)))
			if err != nil {
				return nil, err
			}
			return served.Kubeconfig(config)
		}
	})
	s.create(t, secret(physical.Kubeconfig()))
	registered := bySecret("east")
	registered.Spec.SyncMode = workloadv1alpha1.SyncPull
	s.create(t, registered)
	s.agree(t, "configmaps.east.v1.core")
	home := pull.Namespace(registered.UID)
	awaitAgent(t, physical, home)
	upstream, downstream := podCredentials(t, physical, home)
	s.restarts(t, physical, workloadv1alpha1.ReasonNoHeartbeat, func() (stop func()) { return runSyncer(t, upstream, downstream) })
}

// TestAUserRunsTheSyncer tests mode none: a user runs the syncer, with any identity that has the
// needed permissions.
func TestAUserRunsTheSyncer(t *testing.T) {
	t.Parallel()
	physical := kube.Shared(t)
	s := newSite(t, func(c *cluster.Config) { c.HeartbeatTimeout = beatTimeout })
	s.create(t, secret(physical.Kubeconfig()))
	registered := bySecret("east")
	registered.Spec.SyncMode = workloadv1alpha1.SyncNone
	s.create(t, registered)
	s.agree(t, "configmaps.east.v1.core")
	as := []*rest.Config{s.kcp.Config, kcptest.AsSyncer(t, s.kcp, "east")}
	s.restarts(t, physical, workloadv1alpha1.ReasonNoSyncer, func() (stop func()) {
		upstream := as[0]
		as = as[1:]
		return runSyncer(t, upstream, physical.Rest())
	})
}

// beatTimeout is ten heartbeats of runSyncer.
const beatTimeout = 2 * time.Second

// restarts runs, stops and runs a syncer again.
func (s *site) restarts(t *testing.T, physical *kube.Cluster, before string, start func() (stop func())) {
	t.Helper()
	// Tests share the physical cluster, so the names contain the test.
	of := strings.ToLower(t.Name())
	nameKept, nameDeleted := "kept-"+of, "deleted-"+of
	s.awaitReady(t, "east", metav1.ConditionFalse, before)
	stop := start()
	s.awaitReady(t, "east", metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)
	s.carries(t, physical, nameKept)
	s.carries(t, physical, nameDeleted)
	stop()
	s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonHeartbeatMissed)

	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: nameKept}}
	if err := s.upstream.Patch(t.Context(), kept, client.RawPatch(types.MergePatchType, []byte(`{"data":{"said":"meanwhile"}}`))); err != nil {
		t.Fatal(err)
	}
	deleted := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: nameDeleted}}
	if err := s.upstream.Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{nameKept, nameDeleted} {
		if err := findDownstream(t.Context(), physical, name); err != nil {
			t.Errorf("while no syncer runs: %v", err)
		}
	}
	start()
	s.awaitReady(t, "east", metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)
	s.gone(t, deleted)
	if err := findDownstream(t.Context(), physical, nameDeleted); err == nil {
		t.Error("an object that was deleted while no syncer ran is still in the cluster")
	}
	poll.Until(t, kube.Timeout, "the change of the meantime is carried", func(ctx context.Context) error {
		list, err := physical.Client().CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + nameKept})
		if err != nil || len(list.Items) != 1 || list.Items[0].Data["said"] != "meanwhile" {
			return fmt.Errorf("in the cluster are %v (%w)", list.Items, err)
		}
		return nil
	})
	s.carries(t, physical, "third-"+of)
}

// podCredentials returns the credentials of the agent's container: its mounted Secret, and a
// token of its account.
func podCredentials(t *testing.T, physical *kube.Cluster, home string) (upstream, downstream *rest.Config) {
	t.Helper()
	mounted, err := physical.Client().CoreV1().Secrets(home).Get(t.Context(), pull.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if upstream, err = kubeconfig.Parse(mounted.Data[pull.UpstreamKey]); err != nil {
		t.Fatal(err)
	}
	return upstream, asAccountConfig(t, physical, home)
}

// runSyncer runs the syncer of east as its program does, until the test ends or stop is called.
func runSyncer(t *testing.T, upstream, downstream *rest.Config) (stop func()) {
	t.Helper()
	agent, err := syncer.New(syncer.Config{
		Upstream: upstream, Downstream: downstream, Cluster: "east", HeartbeatInterval: beatTimeout / 10, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, syncer.ErrClusterGone) {
			t.Errorf("the syncer ended with %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}
