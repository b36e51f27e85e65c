package syncer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/multicluster/typehealth"
	"rik.dev/rik/internal/pause"
)

const (
	// probeInterval is the interval at which an unreachable server is probed.
	probeInterval = time.Second
	// reportPause combines many changes into one report.
	reportPause = 200 * time.Millisecond
)

// The reasons of the condition SyncerReady.
const (
	reasonSyncing      = "Syncing"
	reasonFillingCache = "ReadingObjects"
	reasonTypesMissing = "TypesNotServed"
	reasonNotReadable  = "TypesNotReadable"
	reasonDeletesAgain = "DeletesGoOn"
)

// runReports writes the state of the syncer to the Cluster, at every heartbeat and when something
// changes. It also probes servers that were unreachable.
func (e *engine) runReports(ctx context.Context) error {
	for said := ""; ; {
		again := e.config.HeartbeatInterval
		err := e.beat(ctx)
		if err != nil && ctx.Err() == nil {
			again = min(again, probeInterval)
			if err.Error() != said {
				e.log.Warn("heartbeat", "err", err)
			}
			said = err.Error()
		} else {
			said = ""
		}
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-e.reportPokes:
			timer.Stop()
			if !pause.For(ctx, reportPause) {
				return nil
			}
		case <-timer.C:
		}
	}
}

// probeSoon requests a probe of both sides before the next heartbeat, at most once in
// probeInterval.
func (e *engine) probeSoon() {
	now := time.Now().UnixNano()
	last := e.suspected.Load()
	if now-last >= int64(probeInterval) && e.suspected.CompareAndSwap(last, now) {
		e.reportPokes.Wake()
	}
}

// readingChanged is called when a type cannot be read any more, or can be read again.
func (e *engine) readingChanged() { e.reportPokes.Wake() }

// beat probes both sides, applies a go-ahead and writes the report.
func (e *engine) beat(ctx context.Context) error {
	if err := e.upstream.probe(ctx); err != nil {
		return err
	}
	down := e.downstream.probe(ctx)
	e.applyGoAhead()
	cluster := e.presentCluster()
	began := time.Now()
	status := e.statusNow(cluster, down, metav1.NewTime(began))
	written, err := e.write(ctx, cluster, status)
	if err != nil && (status.ResourceProblems != nil || status.PausedDeletes != nil) && strings.Contains(err.Error(), "field not declared in schema") {
		// A kcp of an earlier version does not have these fields. The conditions contain the same
		// information.
		status.ResourceProblems, status.PausedDeletes = nil, nil
		written, err = e.write(ctx, cluster, status)
	}
	if down == nil && err == nil {
		e.fence.beaten(began, written)
	}
	return errors.Join(down, err)
}

func (e *engine) applyGoAhead() {
	e.mu.Lock()
	settled := e.looked
	unreadable := map[schema.GroupResource]bool{}
	for resource, c := range e.carriers {
		// A type that cannot be read does not delay the deletions of the other types.
		if unreadable[resource] = c.trouble(time.Now()) != nil; !unreadable[resource] {
			settled = settled && c.enqueued.Load()
		}
	}
	settled = settled && e.backlog.isEmptyBut(unreadable)
	free := e.breaker.apply(e.cluster.Annotations[workloadv1alpha1.AllowDeletesAnnotation], settled)
	e.mu.Unlock()
	if len(free) > 0 {
		e.log.Info("paused deletions continue after a go-ahead", "number", len(free))
	}
	for _, key := range free {
		e.queue.Add(item{Key: key})
	}
}

// statusNow returns the part of the Cluster's status that the syncer writes.
func (e *engine) statusNow(cluster *workloadv1alpha1.Cluster, down error, now metav1.Time) workloadv1alpha1.ClusterStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	state := e.readingNow(now.Time)
	status := workloadv1alpha1.ClusterStatus{
		LastHeartbeatTime: &now, ResourceProblems: resourceProblems(state, cluster.Status.ResourceProblems, now),
		PausedDeletes: pausedDeletes(e.breaker),
	}
	if down != nil {
		// A syncer that cannot reach the cluster does not work, so it sends no heartbeat.
		status.LastHeartbeatTime = cluster.Status.LastHeartbeatTime
	}
	wasReady := meta.IsStatusConditionTrue(cluster.Status.Conditions, workloadv1alpha1.ConditionSyncerReady)
	for _, c := range []*metav1.Condition{
		readyCondition(down, state, wasReady), pausedCondition(e.breaker, cluster),
		e.fence.condition(cluster.Status.Conditions, now.Time),
	} {
		if c != nil {
			c.ObservedGeneration = cluster.Generation
			status.Conditions = append(status.Conditions, since(*c, cluster.Status.Conditions, now))
		}
	}
	return status
}

// readingState is the progress of reading the types.
type readingState struct {
	// looked is true after both sides have returned the types that they serve.
	looked bool
	// filling are the types that are being read for the first time. copied is the number of
	// other types that can be read.
	filling []string
	carried int
	// unreadable are the types that cannot be read. missing are the types that are not copied.
	unreadable map[string]*typehealth.Trouble
	missing    []missingType
	// waiting are the types whose objects wait for a slot.
	waiting map[string]waitingType
}

// readingNow returns the state of all types. The caller must hold the lock.
func (e *engine) readingNow(now time.Time) readingState {
	state := readingState{looked: e.looked, unreadable: map[string]*typehealth.Trouble{}, missing: e.missing, waiting: e.slots.waiting(now)}
	for resource, c := range e.carriers {
		trouble := c.trouble(now)
		switch {
		case trouble != nil:
			state.unreadable[resource.String()] = trouble
		case !c.isSynced():
			state.filling = append(state.filling, resource.String())
		default:
			state.carried++
		}
		switch before := e.troubled[resource]; {
		case trouble != nil && !before:
			e.troubled[resource] = true
			e.log.Warn("a type cannot be read; other types are copied", "type", resource.String(), "err", trouble.Message)
		case trouble == nil && before:
			delete(e.troubled, resource)
			e.log.Info("a type can be read again", "type", resource.String())
		}
	}
	return state
}

// readyCondition returns the condition SyncerReady, which is about the whole cluster. A single
// type that cannot be copied does not make it False, because controllers that use the condition
// would move all work away. Reading a new type, or all types after a restart, does not make it
// False either: that is progress.
func readyCondition(down error, state readingState, wasReady bool) *metav1.Condition {
	c := &metav1.Condition{Type: workloadv1alpha1.ConditionSyncerReady, Status: metav1.ConditionTrue}
	var troubles []string
	for resource, t := range state.unreadable {
		troubles = append(troubles, resource+": "+t.Message)
	}
	for _, m := range state.missing {
		troubles = append(troubles, fmt.Sprintf("%s: %s", m.resource, m.why))
	}
	trouble := briefly("Not copied: ", sorted(troubles))
	switch {
	case down != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, workloadv1alpha1.ReasonClusterUnreachable, down.Error()
	case !state.looked:
		if !wasReady {
			c.Status = metav1.ConditionFalse
		}
		c.Reason, c.Message = reasonFillingCache, "Asking both sides which types they serve."
	case len(state.filling) > 0:
		if !wasReady && state.carried == 0 {
			c.Status = metav1.ConditionFalse
		}
		c.Reason, c.Message = reasonFillingCache, strings.TrimSpace("Reading the objects of "+strings.Join(sorted(state.filling), ", ")+". "+trouble)
	case len(state.unreadable) > 0:
		if state.carried == 0 {
			c.Status = metav1.ConditionFalse
		}
		c.Reason, c.Message = reasonNotReadable, trouble
	case len(state.missing) > 0:
		c.Reason, c.Message = reasonTypesMissing, trouble
	default:
		c.Reason, c.Message = reasonSyncing, "Objects are copied."
	}
	return c
}

// maxTrouble limits the text about one type, and maxTroubles the text about all types, in bytes.
const maxTrouble, maxTroubles = 1 << 10, 8 << 10

// briefly joins the first of many texts, and counts the others.
func briefly(intro string, texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(intro)
	for i, text := range texts {
		if b.Len()+len(text) > maxTroubles && i > 0 {
			fmt.Fprintf(&b, "; and %d more", len(texts)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(excerpt.Of(text, maxTrouble))
	}
	return b.String() + "."
}

// resourceProblems returns the resource problems that the syncer reports. A problem that was
// already reported keeps its time.
func resourceProblems(state readingState, before []workloadv1alpha1.ResourceProblem, now metav1.Time) []workloadv1alpha1.ResourceProblem {
	var problems []workloadv1alpha1.ResourceProblem
	add := func(resource, reason, message string, since metav1.Time) {
		for _, b := range before {
			if b.Resource == resource && b.Reason == reason {
				since = b.Since
			}
		}
		problems = append(problems, workloadv1alpha1.ResourceProblem{Resource: resource, Reason: reason, Message: excerpt.Of(message, maxTrouble), Since: since})
	}
	for resource, t := range state.unreadable {
		add(resource, workloadv1alpha1.ResourceNotReadable, t.Message, metav1.NewTime(t.Since))
	}
	for _, m := range state.missing {
		reason := workloadv1alpha1.ResourceNotServed
		if m.unknown {
			reason = workloadv1alpha1.ResourceNotReadable
		}
		add(m.resource.String(), reason, m.why, now)
	}
	for _, resource := range sortedKeys(state.waiting) {
		w := state.waiting[resource]
		add(resource, workloadv1alpha1.ResourceRequestsWait, w.message, metav1.NewTime(w.since))
	}
	slices.SortFunc(problems, func(a, b workloadv1alpha1.ResourceProblem) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Reason, b.Reason))
	})
	return problems
}

// since keeps the time of the last transition while the status is the same.
func since(c metav1.Condition, before []metav1.Condition, now metav1.Time) metav1.Condition {
	c.LastTransitionTime = now
	if b := meta.FindStatusCondition(before, c.Type); b != nil && b.Status == c.Status {
		c.LastTransitionTime = b.LastTransitionTime
	}
	return c
}

// write applies the syncer's part of the status. It fails if the Cluster has another UID.
func (e *engine) write(ctx context.Context, cluster *workloadv1alpha1.Cluster, status workloadv1alpha1.ClusterStatus) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return nil, err
	}
	o := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	o.SetAPIVersion(workloadv1alpha1.SchemeGroupVersion.String())
	o.SetKind(clusterType.Kind)
	o.SetName(cluster.Name)
	o.SetUID(cluster.UID)
	written, err := ask(ctx, e.upstream, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return e.upstream.resource(clusterType, "").ApplyStatus(ctx, cluster.Name, o, metav1.ApplyOptions{FieldManager: manager, Force: true})
	})
	if err != nil {
		return nil, fmt.Errorf("writing the Cluster's status: %w", err)
	}
	return written, nil
}

var eventType = Type{Resource: schema.GroupVersionResource{Version: "v1", Resource: "events"}, Kind: "Event", Namespaced: true}

// setProblem creates an event about a problem. A failure is only logged, because the problem is
// also on the object.
func (p *pass) setProblem(ctx context.Context, why problem) {
	namespace := p.key.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	now := metav1.Now().UTC().Format(time.RFC3339)
	event := &unstructured.Unstructured{Object: map[string]any{
		"reason": why.reason, "message": "cluster " + p.identity.Cluster + ": " + why.String(), "type": "Warning", "count": int64(1),
		"firstTimestamp": now, "lastTimestamp": now,
		"source":             map[string]any{"component": manager},
		"reportingComponent": manager, "reportingInstance": p.identity.Cluster,
		"involvedObject": map[string]any{
			"apiVersion": p.up.GetAPIVersion(), "kind": p.up.GetKind(), "namespace": p.up.GetNamespace(),
			"name": p.up.GetName(), "uid": string(p.up.GetUID()), "resourceVersion": p.up.GetResourceVersion(),
		},
	}}
	event.SetAPIVersion("v1")
	event.SetKind(eventType.Kind)
	event.SetNamespace(namespace)
	event.SetGenerateName(strings.TrimRight(p.key.Name[:min(len(p.key.Name), 50)], "-.") + "-")
	_, err := ask(ctx, p.upstream, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return p.upstream.resource(eventType, namespace).Create(ctx, event, metav1.CreateOptions{FieldManager: manager})
	})
	if err != nil {
		p.log.Warn("an event was not created", "err", err)
	}
}

func sorted(texts []string) []string {
	slices.Sort(texts)
	return texts
}
