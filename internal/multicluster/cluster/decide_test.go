package cluster

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// noon is the time at which these tests run.
var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// healthy returns the facts of a cluster without problems.
func healthy() facts {
	heartbeat := metav1.NewTime(noon.Add(-5 * time.Second))
	return facts{
		cluster: &workloadv1alpha1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: "east", Generation: 3},
			Status:     workloadv1alpha1.ClusterStatus{LastHeartbeatTime: &heartbeat},
		},
		mode: workloadv1alpha1.SyncPush,
		observed: observation{
			location: "192.0.2.1:6443", pinned: "uid-1",
			probe:    probe{at: noon, uid: "uid-1", version: "v1.36.3", supply: supply{capacity: cpus("4"), allocatable: cpus("3")}},
			imported: imported{done: true, types: 6},
		},
		synced: []string{"configmaps", "deployments.apps"},
		beat:   noon.Add(-5 * time.Second), timeout: 40 * time.Second, now: noon,
	}
}

func cpus(amount string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
}

func with(status metav1.ConditionStatus, conditionType, reason string) func(*facts) {
	return func(f *facts) {
		f.cluster.Status.Conditions = append(f.cluster.Status.Conditions, metav1.Condition{Type: conditionType, Status: status, Reason: reason})
	}
}

// wasReady sets the conditions of a Cluster that was ready at a generation.
func wasReady(f *facts, generation int64) {
	f.cluster.Status.Conditions = append(f.cluster.Status.Conditions,
		metav1.Condition{Type: workloadv1alpha1.ConditionReady, Status: metav1.ConditionTrue,
			Reason: workloadv1alpha1.ReasonClusterReady, Message: "objects are copied to the cluster", ObservedGeneration: generation},
		metav1.Condition{Type: workloadv1alpha1.ConditionAPIImporterReady, Status: metav1.ConditionTrue,
			Reason: workloadv1alpha1.ReasonImported, Message: "6 types are imported", ObservedGeneration: generation})
}

func TestDecideConditions(t *testing.T) {
	t.Parallel()
	type said struct{ ready, importer, heartbeat string }
	const good = "True/Imported"
	const beats = "True/Heartbeat"
	tests := []struct {
		name   string
		change func(*facts)
		want   said
		again  time.Duration
	}{
		{"all is well", func(*facts) {}, said{"True/ClusterReady", good, beats}, 35 * time.Second},
		{"no kubeconfig", func(f *facts) {
			f.kubeconfig, f.observed = &problem{workloadv1alpha1.ReasonInvalidKubeConfig, "x"}, observation{}
		}, said{"False/InvalidKubeConfig", "False/InvalidKubeConfig", beats}, 35 * time.Second},
		{"no client", func(f *facts) {
			f.kubeconfig, f.observed = &problem{workloadv1alpha1.ReasonErrorCreatingClient, "x"}, observation{}
		}, said{"False/ErrorCreatingClient", "False/ErrorCreatingClient", beats}, 35 * time.Second},
		{"not asked yet", func(f *facts) { f.observed.probe, f.observed.imported = probe{}, imported{} },
			said{"Unknown/ClusterStatusUnknown", "Unknown/ClusterStatusUnknown", beats}, 35 * time.Second},
		{"unreachable", func(f *facts) {
			f.observed.probe.trouble = &problem{workloadv1alpha1.ReasonClusterUnreachable, "refused"}
		}, said{"False/ClusterUnreachable", good, beats}, 35 * time.Second},
		{"not ready", func(f *facts) {
			f.observed.probe.trouble = &problem{workloadv1alpha1.ReasonClusterNotReady, "500"}
		}, said{"False/ClusterNotReady", good, beats}, 35 * time.Second},
		{"credentials refused", func(f *facts) {
			f.observed.probe.trouble = &problem{workloadv1alpha1.ReasonInvalidKubeConfig, "401"}
		}, said{"False/InvalidKubeConfig", good, beats}, 35 * time.Second},
		{"another cluster", func(f *facts) { f.observed.pinned = "uid-0" }, said{"False/OtherCluster", good, beats}, 35 * time.Second},
		{"another cluster, cut off", func(f *facts) {
			f.observed.pinned, f.observed.probe.trouble = "uid-0", &problem{workloadv1alpha1.ReasonClusterUnreachable, "refused"}
		}, said{"False/OtherCluster", good, beats}, 35 * time.Second},
		{"not imported yet", func(f *facts) { f.observed.imported = imported{} },
			said{"Unknown/ClusterStatusUnknown", "Unknown/ClusterStatusUnknown", beats}, 35 * time.Second},
		{"import failed", func(f *facts) { f.observed.imported = imported{done: true, failure: "no"} },
			said{"False/ErrorStartingAPIImporter", "False/ErrorStartingAPIImporter", beats}, 35 * time.Second},
		{"some types not imported", func(f *facts) { f.observed.imported.troubles = []string{"widgets.example: no"} },
			said{"True/ClusterReady", "True/SomeTypesNotImported", beats}, 35 * time.Second},
		{"not asked yet by this controller", func(f *facts) {
			wasReady(f, f.cluster.Generation)
			f.observed.probe, f.observed.imported = probe{}, imported{}
		}, said{"True/ClusterReady", good, beats}, 35 * time.Second},
		{"types not read yet by this controller", func(f *facts) {
			wasReady(f, f.cluster.Generation)
			f.observed.imported = imported{}
		}, said{"True/ClusterReady", good, beats}, 35 * time.Second},
		{"not asked yet since the Cluster was changed", func(f *facts) {
			wasReady(f, f.cluster.Generation-1)
			f.observed.probe, f.observed.imported = probe{}, imported{}
		}, said{"Unknown/ClusterStatusUnknown", "Unknown/ClusterStatusUnknown", beats}, 35 * time.Second},
		{"was ready, and does not answer", func(f *facts) {
			wasReady(f, f.cluster.Generation)
			f.observed.imported = imported{}
			f.observed.probe.trouble = &problem{workloadv1alpha1.ReasonClusterUnreachable, "refused"}
		}, said{"False/ClusterUnreachable", good, beats}, 35 * time.Second},
		{"syncer reads an added type", with(metav1.ConditionTrue, workloadv1alpha1.ConditionSyncerReady, "ReadingObjects"),
			said{"True/ClusterReady", good, beats}, 35 * time.Second},
		{"syncer does not start", func(f *facts) { f.observed.syncer = &problem{workloadv1alpha1.ReasonErrorStartingSyncer, "x"} },
			said{"False/ErrorStartingSyncer", good, beats}, 35 * time.Second},
		{"syncer is not installed", func(f *facts) { f.observed.syncer = &problem{workloadv1alpha1.ReasonErrorInstallingSyncer, "x"} },
			said{"False/ErrorInstallingSyncer", good, beats}, 35 * time.Second},
		{"no heartbeat yet", func(f *facts) { f.cluster.Status.LastHeartbeatTime = nil }, said{"False/NoHeartbeat", good, "Unknown/NoHeartbeat"}, 0},
		{"by hand, no heartbeat yet", func(f *facts) { f.cluster.Status.LastHeartbeatTime, f.mode = nil, workloadv1alpha1.SyncNone },
			said{"False/SyncerIsRunByHand", good, "Unknown/SyncerIsRunByHand"}, 0},
		{"by hand, beating", func(f *facts) { f.mode = workloadv1alpha1.SyncNone }, said{"True/ClusterReady", good, beats}, 35 * time.Second},
		{"heartbeat a moment before it is missed", func(f *facts) { f.beat = noon.Add(-40*time.Second + 1) }, said{"True/ClusterReady", good, beats}, 1},
		{"heartbeat missed", func(f *facts) { f.beat = noon.Add(-40 * time.Second) },
			said{"False/ErrorHeartbeatMissed", good, "False/ErrorHeartbeatMissed"}, 0},
		{"heartbeat missed before this controller began", func(f *facts) { f.beat = time.Time{} },
			said{"False/ErrorHeartbeatMissed", good, "False/ErrorHeartbeatMissed"}, 0},
		{"syncer not ready", with(metav1.ConditionFalse, workloadv1alpha1.ConditionSyncerReady, "Forbidden"),
			said{"False/Forbidden", good, beats}, 35 * time.Second},
		{"syncer ready", with(metav1.ConditionTrue, workloadv1alpha1.ConditionSyncerReady, "Carrying"), said{"True/ClusterReady", good, beats}, 35 * time.Second},
		{"deletes paused", with(metav1.ConditionTrue, workloadv1alpha1.ConditionDeletesPaused, workloadv1alpha1.ReasonTooManyDeletes),
			said{"True/ClusterReady", good, beats}, 35 * time.Second},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := healthy()
			tc.change(&f)
			status, again := decide(f)
			say := func(conditionType string) string {
				c := meta.FindStatusCondition(status.Conditions, conditionType)
				if c == nil {
					t.Fatalf("no condition %s in %v", conditionType, status.Conditions)
				}
				if c.Message == "" || c.ObservedGeneration != 3 {
					t.Errorf("condition %+v lacks a message or the generation", c)
				}
				return string(c.Status) + "/" + c.Reason
			}
			got := said{say(workloadv1alpha1.ConditionReady), say(workloadv1alpha1.ConditionAPIImporterReady), say(workloadv1alpha1.ConditionHeartbeatHealthy)}
			if got != tc.want || again != tc.again {
				t.Errorf("decide = %+v, again after %v, want %+v after %v", got, again, tc.want, tc.again)
			}
			if len(status.Conditions) != 3 || status.LastHeartbeatTime != nil {
				t.Errorf("decide = %+v, which holds what the syncer writes", status)
			}
		})
	}
}

// Values without a recent answer stay as they were, and nothing is copied from another cluster.
func TestDecideKeepsWhatIsKnown(t *testing.T) {
	t.Parallel()
	old := workloadv1alpha1.ClusterStatus{Location: "192.0.2.9:443", UID: "uid-1", Version: "v1.35.0", Capacity: cpus("9"), Allocatable: cpus("8")}
	tests := map[string]struct {
		change func(*facts)
		want   workloadv1alpha1.ClusterStatus
	}{
		"answered": {func(*facts) {}, workloadv1alpha1.ClusterStatus{
			Location: "192.0.2.1:6443", UID: "uid-1", Version: "v1.36.3", Capacity: cpus("4"), Allocatable: cpus("3")}},
		"nodes not seen": {func(f *facts) { f.observed.probe.supply = supply{} }, workloadv1alpha1.ClusterStatus{
			Location: "192.0.2.1:6443", UID: "uid-1", Version: "v1.36.3", Capacity: cpus("9"), Allocatable: cpus("8")}},
		"never answered": {func(f *facts) { f.observed.probe = probe{at: noon, trouble: &problem{"X", "x"}} }, workloadv1alpha1.ClusterStatus{
			Location: "192.0.2.1:6443", UID: "uid-1", Version: "v1.35.0", Capacity: cpus("9"), Allocatable: cpus("8")}},
		"another one": {func(f *facts) { f.observed.probe.uid = "uid-2" }, workloadv1alpha1.ClusterStatus{
			Location: "192.0.2.1:6443", UID: "uid-1", Version: "v1.35.0", Capacity: cpus("9"), Allocatable: cpus("8")}},
		"bad kubeconfig": {func(f *facts) { f.kubeconfig, f.observed = &problem{"X", "x"}, observation{} }, old},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := healthy()
			f.cluster.Status = *old.DeepCopy()
			tc.change(&f)
			got, _ := decide(f)
			got.Conditions, got.SyncedResources = nil, nil
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("decide (-want +got):\n%s", diff)
			}
		})
	}
}

// Deciding on a decided status changes nothing, so that a pass writes only after an event. Ready
// is True only if no other condition contradicts it.
func TestDecideSettles(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := healthy()
		pick := func(name string, change func()) {
			if rapid.Bool().Draw(t, name) {
				change()
			}
		}
		pick("unreachable", func() { f.observed.probe.trouble = &problem{workloadv1alpha1.ReasonClusterUnreachable, "refused"} })
		pick("other", func() { f.observed.pinned = "uid-0" })
		pick("unasked", func() { f.observed.probe = probe{} })
		pick("import failed", func() { f.observed.imported.failure = "no" })
		pick("no syncer", func() { f.observed.syncer = &problem{workloadv1alpha1.ReasonErrorStartingSyncer, "x"} })
		pick("silent", func() { f.beat = noon.Add(-time.Hour) })
		pick("kubeconfig", func() { f.kubeconfig = &problem{workloadv1alpha1.ReasonInvalidKubeConfig, "x"} })
		first, _ := decide(f)
		syncers := f.cluster.Status.LastHeartbeatTime
		f.cluster.Status = *first.DeepCopy()
		f.cluster.Status.LastHeartbeatTime = syncers
		f.now = f.now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "later")) * time.Second)
		second, _ := decide(f)
		if diff := cmp.Diff(first, second); diff != "" {
			t.Fatalf("the second pass differs (-first +second):\n%s", diff)
		}
		all := f.kubeconfig == nil && f.observed.probe.trouble == nil && !f.observed.probe.at.IsZero() && !f.isOther() &&
			f.observed.imported.failure == "" && f.observed.syncer == nil && f.now.Sub(f.beat) < f.timeout
		if meta.IsStatusConditionTrue(first.Conditions, workloadv1alpha1.ConditionReady) != all {
			t.Fatalf("Ready = %+v of %+v", meta.FindStatusCondition(first.Conditions, workloadv1alpha1.ConditionReady), f)
		}
	})
}

// TestConditionsOfAClockThatWasAhead tests that conditions from a wrong clock get a new time when
// the clock is corrected, because grace periods start at that time.
func TestConditionsOfAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	f := healthy()
	f.now = noon.Add(365 * 24 * time.Hour)
	f.cluster.Status, _ = decide(f)
	f.now = noon
	status, _ := decide(f)
	f.cluster.Status = status
	f.now = noon.Add(time.Minute)
	status, _ = decide(f)
	for _, c := range status.Conditions {
		if c.LastTransitionTime.After(f.now) {
			t.Errorf("%s is of %s, a time to come", c.Type, c.LastTransitionTime)
		}
	}
}
