package syncer

import (
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
)

const (
	// probeEvery is how often a server that was not reached is asked whether it is back.
	probeEvery = time.Second
	// reportPause keeps many changes from becoming as many reports.
	reportPause = 200 * time.Millisecond
)

// The reasons of the condition SyncerReady.
const (
	reasonSyncing      = "Syncing"
	reasonFillingCache = "ReadingObjects"
	reasonTypesMissing = "TypesNotServed"
	reasonDeletesAgain = "DeletesGoOn"
)

// runReports says on the Cluster, at every heartbeat and when something changes, how
// the syncer does, and looks whether servers that were not reached are back.
func (e *engine) runReports(ctx context.Context) error {
	for said := ""; ; {
		again := e.config.HeartbeatInterval
		err := e.beat(ctx)
		if err != nil && ctx.Err() == nil {
			again = min(again, probeEvery)
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
			if !sleep(ctx, reportPause) {
				return nil
			}
		case <-timer.C:
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// beat probes both sides, heeds a go-ahead and writes the report.
func (e *engine) beat(ctx context.Context) error {
	if err := e.upstream.probe(ctx); err != nil {
		return err
	}
	down := e.downstream.probe(ctx)
	e.heedGoAhead()
	cluster := e.presentCluster()
	began := time.Now()
	status := e.statusNow(cluster, down, metav1.NewTime(began))
	written, err := e.write(ctx, cluster, status)
	if down == nil && err == nil {
		e.fence.beaten(began, written)
	}
	return errors.Join(down, err)
}

func (e *engine) heedGoAhead() {
	e.mu.Lock()
	settled := e.looked
	for _, c := range e.carriers {
		settled = settled && c.enqueued.Load()
	}
	settled = settled && e.backlog.isEmpty()
	free := e.breaker.heed(e.cluster.Annotations[workloadv1alpha1.AllowDeletesAnnotation], settled)
	e.mu.Unlock()
	if len(free) > 0 {
		e.log.Info("the deletions that waited go on", "number", len(free))
	}
	for _, key := range free {
		e.queue.Add(item{Key: key})
	}
}

// statusNow is the part of the Cluster's status that is the syncer's.
func (e *engine) statusNow(cluster *workloadv1alpha1.Cluster, down error, now metav1.Time) workloadv1alpha1.ClusterStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	var filling []string
	for resource, c := range e.carriers {
		if !c.isSynced() {
			filling = append(filling, resource.String())
		}
	}
	status := workloadv1alpha1.ClusterStatus{LastHeartbeatTime: &now}
	if down != nil {
		// A syncer that cannot reach the cluster does not work.
		status.LastHeartbeatTime = cluster.Status.LastHeartbeatTime
	}
	wasReady := meta.IsStatusConditionTrue(cluster.Status.Conditions, workloadv1alpha1.ConditionSyncerReady)
	for _, c := range []*metav1.Condition{
		readyCondition(down, filling, e.missing, wasReady), pausedCondition(e.breaker, cluster),
		e.fence.condition(cluster.Status.Conditions, now.Time),
	} {
		if c != nil {
			c.ObservedGeneration = cluster.Generation
			status.Conditions = append(status.Conditions, since(*c, cluster.Status.Conditions, now))
		}
	}
	return status
}

// readyCondition is not False for the reading of a type that is added, or of all types
// after a restart: that is progress, and whoever acts on readiness would move work away.
func readyCondition(down error, filling []string, missing []missingType, wasReady bool) *metav1.Condition {
	c := &metav1.Condition{Type: workloadv1alpha1.ConditionSyncerReady, Status: metav1.ConditionFalse}
	switch {
	case down != nil:
		c.Reason, c.Message = workloadv1alpha1.ReasonClusterUnreachable, down.Error()
	case len(filling) > 0:
		if wasReady {
			c.Status = metav1.ConditionTrue
		}
		c.Reason, c.Message = reasonFillingCache, "Reading what is there of "+strings.Join(sorted(filling), ", ")+"."
	case len(missing) > 0:
		// All others are carried, so that the syncer is ready.
		var texts []string
		for _, m := range missing {
			texts = append(texts, fmt.Sprintf("%s: %s", m.resource, m.why))
		}
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonTypesMissing, "Not carried: "+strings.Join(sorted(texts), "; ")+"."
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonSyncing, "Objects are carried."
	}
	return c
}

// pausedCondition is nil as long as deletions have never been paused.
func pausedCondition(b *breaker, cluster *workloadv1alpha1.Cluster) *metav1.Condition {
	c := &metav1.Condition{Type: workloadv1alpha1.ConditionDeletesPaused}
	switch {
	case b.paused && !b.counted:
		// No command yet: its number would be one that is passed on the way.
		c.Status, c.Reason = metav1.ConditionTrue, workloadv1alpha1.ReasonTooManyDeletes
		if b.spent != "" {
			c.Reason = workloadv1alpha1.ReasonOldGoAhead
		}
		c.Message = fmt.Sprintf("Deletions wait, because there were too many at once: %d so far, and not all has been looked at since the syncer's start.", len(b.waiting))
	case b.paused:
		c.Status, c.Reason = metav1.ConditionTrue, workloadv1alpha1.ReasonTooManyDeletes
		c.Message = fmt.Sprintf("%[1]d deletions wait, because there were too many at once. If they are meant: kubectl annotate --overwrite clusters.workload.kcp.dev %[2]s %[3]s=%[1]d",
			len(b.waiting), cluster.Name, workloadv1alpha1.AllowDeletesAnnotation)
		if b.spent != "" {
			c.Reason = workloadv1alpha1.ReasonOldGoAhead
			c.Message += " (the present annotation was there before: remove it first)"
		}
	case meta.FindStatusCondition(cluster.Status.Conditions, c.Type) != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonDeletesAgain, "No deletion waits."
	default:
		return nil
	}
	return c
}

// since keeps the time of the last transition while the status is the same.
func since(c metav1.Condition, before []metav1.Condition, now metav1.Time) metav1.Condition {
	c.LastTransitionTime = now
	if b := meta.FindStatusCondition(before, c.Type); b != nil && b.Status == c.Status {
		c.LastTransitionTime = b.LastTransitionTime
	}
	return c
}

// write applies the syncer's part of the status, for this very Cluster.
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

// tell makes an event of a problem. An event that is lost is no error: the problem is
// on the object.
func (p *pass) tell(ctx context.Context, why problem) {
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
		p.log.Warn("an event was not made", "err", err)
	}
}

func sorted(texts []string) []string {
	slices.Sort(texts)
	return texts
}
