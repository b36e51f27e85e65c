package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/excerpt"
)

// problem is the reason and the message of a condition that is not True.
type problem struct {
	reason, message string
}

// probe is the result of the last probe of a cluster.
type probe struct {
	// at is when the probe ended. It is zero before the first probe.
	at time.Time
	// trouble is the problem of the cluster or of the connection to it.
	trouble      *problem
	uid, version string
	supply       supply
}

// imported is the state of the import of a cluster's types.
type imported struct {
	// done is true after a pull has ended, with or without success.
	done bool
	// failure is why the last pull returned nothing.
	failure string
	// types is the number of imported types. troubles are the problems of other types.
	types    int
	troubles []string
}

func (i imported) equal(j imported) bool {
	return i.done == j.done && i.failure == j.failure && i.types == j.types && slices.Equal(i.troubles, j.troubles)
}

// observation is what a member has observed of its cluster.
type observation struct {
	location string
	// pinned is the UID of the registered cluster. It is empty until the cluster was reached.
	pinned   string
	probe    probe
	imported imported
	// syncer is why no syncer could be started or installed. It is nil if that was not necessary.
	syncer *problem
}

// facts is the complete input for a Cluster's status.
type facts struct {
	cluster *workloadv1alpha1.Cluster
	mode    workloadv1alpha1.SyncMode
	// kubeconfig is the problem of the kubeconfig. If it is set, observed is empty.
	kubeconfig *problem
	observed   observation
	// synced are the types whose objects are copied.
	synced []string
	// kcp is the UID of the kcp itself. sameAs is an older Cluster with the same UID.
	kcp, sameAs string
	// problems are the problems of single types.
	problems []workloadv1alpha1.ResourceProblem
	// beat is when the last heartbeat arrived, by the clock of the controller. The clocks of
	// clusters may differ.
	beat    time.Time
	timeout time.Duration
	now     time.Time
}

// owned are the conditions that the cluster controller writes.
var owned = []string{workloadv1alpha1.ConditionReady, workloadv1alpha1.ConditionAPIImporterReady, workloadv1alpha1.ConditionHeartbeatHealthy}

// decide returns the controller's part of a Cluster's status, and the time after which it may
// change without an event. That time is 0 if it does not.
func decide(f facts) (workloadv1alpha1.ClusterStatus, time.Duration) {
	status := known(f)
	heartbeat, again := f.heartbeat()
	importer := f.importer()
	ready := f.ready(importer, heartbeat)
	for _, c := range []metav1.Condition{ready, importer, heartbeat} {
		c.ObservedGeneration = f.cluster.Generation
		c.LastTransitionTime = metav1.NewTime(f.now)
		if before := meta.FindStatusCondition(status.Conditions, c.Type); before != nil && before.LastTransitionTime.After(f.now) {
			// the clock was ahead: replace the time, because grace periods start at it
			meta.RemoveStatusCondition(&status.Conditions, c.Type)
		}
		meta.SetStatusCondition(&status.Conditions, c)
	}
	sortConditions(status.Conditions)
	return status, again
}

func isOwned(condition string) bool { return slices.Contains(owned, condition) }

func sortConditions(list []metav1.Condition) {
	slices.SortFunc(list, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
}

// known returns the status without new conditions. Values without a recent answer stay as they
// were. For example, a disconnected cluster still has its nodes.
func known(f facts) workloadv1alpha1.ClusterStatus {
	old := f.cluster.Status
	status := workloadv1alpha1.ClusterStatus{
		Location: old.Location, UID: old.UID, Version: old.Version,
		Capacity: old.Capacity, Allocatable: old.Allocatable, SyncedResources: f.synced,
		SameAs: f.sameAs, ResourceProblems: since(f.problems, old.ResourceProblems, metav1.NewTime(f.now)),
	}
	for _, c := range old.Conditions {
		if isOwned(c.Type) {
			status.Conditions = append(status.Conditions, c)
		}
	}
	if f.kubeconfig != nil {
		return status
	}
	status.Location = f.observed.location
	p := f.observed.probe
	if p.uid == "" || f.isOther() {
		return status
	}
	status.UID, status.Version = p.uid, p.version
	if p.supply.capacity != nil {
		status.Capacity, status.Allocatable = p.supply.capacity, p.supply.allocatable
	}
	return status
}

// isOther reports whether the cluster that answers is not the one that was registered.
func (f facts) isOther() bool {
	pinned, seen := f.observed.pinned, f.observed.probe.uid
	return pinned != "" && seen != "" && pinned != seen
}

func (f facts) importer() metav1.Condition {
	c := metav1.Condition{Type: workloadv1alpha1.ConditionAPIImporterReady}
	switch i := f.observed.imported; {
	case f.kubeconfig != nil:
		return condition(c, metav1.ConditionFalse, *f.kubeconfig)
	case !i.done && f.was(c.Type) != nil:
		return *f.was(c.Type)
	case !i.done:
		return condition(c, metav1.ConditionUnknown, problem{workloadv1alpha1.ReasonClusterStatusUnknown, "the cluster's types have not been read yet"})
	case i.failure != "":
		return condition(c, metav1.ConditionFalse, problem{workloadv1alpha1.ReasonErrorStartingImporter, i.failure})
	case len(i.troubles) > 0:
		return condition(c, metav1.ConditionTrue, problem{workloadv1alpha1.ReasonSomeNotImported,
			fmt.Sprintf("%d types are imported; %s", i.types, briefly(i.troubles))})
	default:
		return condition(c, metav1.ConditionTrue, problem{workloadv1alpha1.ReasonImported, fmt.Sprintf("%d types are imported", i.types)})
	}
}

// heartbeat returns the condition for the heartbeat of the syncer. The first read of a Cluster
// counts as an arrival, unless the last condition already was that no heartbeat arrives. A
// controller that restarts does not know more than the one before it.
func (f facts) heartbeat() (metav1.Condition, time.Duration) {
	c := metav1.Condition{Type: workloadv1alpha1.ConditionHeartbeatHealthy}
	last := f.cluster.Status.LastHeartbeatTime
	switch {
	case last == nil && f.mode == workloadv1alpha1.SyncNone:
		return condition(c, metav1.ConditionUnknown, problem{workloadv1alpha1.ReasonNoSyncer,
			fmt.Sprintf("run a syncer for this cluster: syncer --cluster %s --from-kubeconfig UPSTREAM --to-kubeconfig DOWNSTREAM", f.cluster.Name)}), 0
	case last == nil:
		return condition(c, metav1.ConditionUnknown, problem{workloadv1alpha1.ReasonNoHeartbeat, "the syncer has not sent a heartbeat yet"}), 0
	}
	silence := f.now.Sub(f.beat)
	if f.beat.IsZero() || silence >= f.timeout {
		return condition(c, metav1.ConditionFalse, problem{workloadv1alpha1.ReasonHeartbeatMissed,
			fmt.Sprintf("the syncer has not sent a heartbeat since %s", last.UTC().Format(time.RFC3339))}), 0
	}
	return condition(c, metav1.ConditionTrue, problem{workloadv1alpha1.ReasonHeartbeat, "the syncer sends heartbeats"}), f.timeout - silence
}

// ready returns the condition Ready. It contains the first problem, because later ones usually
// follow from it.
func (f facts) ready(importer, heartbeat metav1.Condition) metav1.Condition {
	c := metav1.Condition{Type: workloadv1alpha1.ConditionReady}
	if p := f.connection(); p != nil {
		status := metav1.ConditionFalse
		if p.reason == workloadv1alpha1.ReasonClusterStatusUnknown {
			if was := f.was(c.Type); was != nil {
				return *was
			}
			status = metav1.ConditionUnknown
		}
		return condition(c, status, *p)
	}
	syncer := meta.FindStatusCondition(f.cluster.Status.Conditions, workloadv1alpha1.ConditionSyncerReady)
	switch {
	case importer.Status != metav1.ConditionTrue:
		return condition(c, importer.Status, problem{importer.Reason, importer.Message})
	case f.observed.syncer != nil:
		return condition(c, metav1.ConditionFalse, *f.observed.syncer)
	case heartbeat.Status != metav1.ConditionTrue:
		return condition(c, metav1.ConditionFalse, problem{heartbeat.Reason, heartbeat.Message})
	case syncer != nil && syncer.Status == metav1.ConditionFalse:
		return condition(c, metav1.ConditionFalse, problem{syncer.Reason, "the syncer: " + syncer.Message})
	}
	if f.sameAs != "" {
		return condition(c, metav1.ConditionTrue, problem{workloadv1alpha1.ReasonClusterReady, fmt.Sprintf(
			"objects are copied to the cluster; it is also registered as %s, so it gets no new parts: unregister one of the two, or annotate this one with "+workloadv1alpha1.OwnClusterAnnotation+"=true", f.sameAs)})
	}
	return condition(c, metav1.ConditionTrue, problem{workloadv1alpha1.ReasonClusterReady, "objects are copied to the cluster"})
}

// was returns a condition that is True for the current generation of the Cluster, or nil. It
// stays True until the cluster has been probed: a restart of the controller, or a new kubeconfig,
// is not a problem of the cluster.
func (f facts) was(conditionType string) *metav1.Condition {
	c := meta.FindStatusCondition(f.cluster.Status.Conditions, conditionType)
	if c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != f.cluster.Generation {
		return nil
	}
	return c.DeepCopy()
}

// connection returns the problem of the connection to the cluster, or nil if the connection
// works.
func (f facts) connection() *problem {
	p := f.observed.probe
	switch {
	case f.kubeconfig != nil:
		return f.kubeconfig
	case p.at.IsZero():
		return &problem{workloadv1alpha1.ReasonClusterStatusUnknown, "the cluster has not been probed yet"}
	case f.isOther():
		return &problem{workloadv1alpha1.ReasonOtherCluster, fmt.Sprintf(
			"another cluster answers at %s: its kube-system has the UID %s, that of the registered one is %s; register it under another name, or unregister this one first",
			f.observed.location, p.uid, f.observed.pinned)}
	case f.kcp != "" && p.uid == f.kcp:
		return &problem{workloadv1alpha1.ReasonOwnKCP, "the kubeconfig reaches this kcp itself, and nothing is synced from a kcp into itself; register the physical cluster, with its own kubeconfig, and unregister this one"}
	}
	return p.trouble
}

// condition sets the result in a condition. An empty message would be accepted but would help no
// user.
func condition(c metav1.Condition, status metav1.ConditionStatus, p problem) metav1.Condition {
	c.Status, c.Reason, c.Message = status, p.reason, excerpt.Of(p.message, maxCondition)
	return c
}

// maxCondition limits the message of a condition in bytes, and maxBrief a list of problems in it.
// A server accepts 32 KiB. It would reject the whole status for a longer message, and the old
// status would stay forever.
const maxCondition, maxBrief = 16 << 10, 8 << 10

// briefly joins the first of many problems, and counts the others.
func briefly(troubles []string) string {
	length := 0
	for i, trouble := range troubles {
		if length += len(trouble); i > 0 && length > maxBrief {
			return fmt.Sprintf("%s; and %d more", strings.Join(troubles[:i], "; "), len(troubles)-i)
		}
	}
	return strings.Join(troubles, "; ")
}
