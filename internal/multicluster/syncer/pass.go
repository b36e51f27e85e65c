package syncer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/terminal"
	"rik.dev/rik/internal/reconcile"
)

const (
	// maxSteps limits the steps of a pass. The longest sequence has ten steps.
	maxSteps = 16
	// problemAgain is the interval at which a refused write is tried again without a change.
	problemAgain = time.Minute
	// deletedAgain is when a deletion is checked again, in case its event is missed.
	deletedAgain = 10 * time.Second
)

// pass is one pass over one object. It asks, decides and acts until nothing is left to do now.
type pass struct {
	*engine
	carrier *carrier
	key     Key
	log     interface {
		Info(string, ...any)
		Warn(string, ...any)
	}

	// changed is when the upstream change that this pass processes was made. It is zero without
	// such a change.
	changed time.Time

	// name is the name of the object in the cluster.
	name string

	up, down         *unstructured.Unstructured
	upSeen, downSeen presence
	kind             typeView
	// applied is true if the downstream object is the result of an apply in this pass.
	applied bool
	// stuck is why only a new object can have the desired content.
	stuck *problem
}

func newPass(e *engine, c *carrier, key Key) *pass {
	// Take the change before reading the cache. A later change belongs to the next pass.
	p := &pass{engine: e, carrier: c, key: key, changed: e.changes.take(key), log: e.log.With("object", key.String())}
	if p.up = c.upstreamObject(key); p.up != nil {
		p.upSeen = cached
		e.fence.wants(p.up)
	}
	p.locate()
	return p
}

func (p *pass) downstreamNamespace() string {
	if p.key.Namespace == "" {
		return ""
	}
	return p.identity.Namespace(p.key.Namespace)
}

func (p *pass) run(ctx context.Context) (time.Duration, error) {
	for range maxSteps {
		next := decide(p.view())
		switch next {
		case stepAskUpstream, stepAskDownstream, stepAskType, stepDelete:
		default:
			p.noDeletion(p.key)
		}
		done, again, err := p.do(ctx, next)
		if done || err != nil {
			return again, err
		}
	}
	return 0, fmt.Errorf("programmer error: no end after %d steps", maxSteps)
}

// mayBeDeletion reports whether a failed pass may have been about a deletion.
func (p *pass) mayBeDeletion() bool { return p.up == nil || p.up.GetDeletionTimestamp() != nil }

// noDeletion removes a request to delete the object, once it is known that it is not to be
// deleted.
func (e *engine) noDeletion(key Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.breaker.forget(key)
}

func (p *pass) view() view {
	v := view{claim: isClaim(p.key.Type), kind: p.kind, up: upstreamView{seen: p.upSeen}, down: downstreamView{seen: p.downSeen}}
	if p.up != nil {
		v.excluded = isExcluded(p.key.Type, p.up)
		annotations := p.up.GetAnnotations()
		v.up.uid = p.up.GetUID()
		v.up.deleting = p.up.GetDeletionTimestamp() != nil
		v.up.targeted = isTargeted(p.up, p.identity.Cluster)
		v.up.held = p.isHeld()
		v.up.recreate = annotations[workloadv1alpha1.RecreateAnnotation] == "true"
		v.up.deleteData = annotations[workloadv1alpha1.DeleteDataAnnotation] == "true"
		v.up.finished = p.isFinished()
	}
	if p.down != nil {
		v.excluded = v.excluded || isExcluded(p.key.Type, p.down)
		annotations := p.down.GetAnnotations()
		if p.takenBy() == "" {
			v.down.upstreamUID = upstreamUID(p.down)
		}
		v.down.deleting = p.down.GetDeletionTimestamp() != nil
		v.down.deleteData = annotations[workloadv1alpha1.DeleteDataAnnotation] == "true"
		v.down.stuck = p.stuck != nil
		v.down.inSync = p.applied || p.up != nil && p.isInSync()
	}
	return v
}

// do executes a step, and reports whether it was the last one.
func (p *pass) do(ctx context.Context, next step) (done bool, again time.Duration, err error) {
	switch next {
	case stepAskUpstream:
		if p.up, p.upSeen, err = p.lookUpstream(ctx); err == nil {
			p.locate()
		}
	case stepAskDownstream:
		p.down, p.downSeen, err = look(ctx, p.downstream, p.carrier.Type, p.downstreamNamespace(), p.name)
	case stepAskType:
		p.kind, err = p.lookAtType(ctx, p.carrier.Type)
	case stepHold, stepCreate:
		if isSyncersNamespace(p.key.Namespace) {
			return p.problem(ctx, problem{reasonLoop, "a syncer created the namespace, so this object comes from another kcp; it is not copied further, because kcps that are registered in each other would copy it without end"})
		}
		if next == stepHold {
			err = p.hold(ctx)
			break
		}
		return p.afterWrite(ctx, p.create(ctx))
	case stepApply:
		return p.afterWrite(ctx, p.apply(ctx))
	case stepReport:
		err = p.report(ctx, nil)
		return true, 0, err
	case stepDelete:
		return p.remove(ctx)
	case stepRelease:
		err = p.release(ctx)
		return true, 0, err
	case stepForeign:
		if other := p.takenBy(); other != "" && p.isLeaving(other) {
			return true, deletedAgain, nil // the object is created when the name is free
		}
		return p.problem(ctx, problem{reasonConflict, "the cluster has an object with this name that does not come from the kcp; it is not changed. Delete it there, or choose another name" + p.otherNames()})
	case stepFormer:
		return p.problem(ctx, problem{reasonConflict, "the cluster still has an earlier object with this name. Delete it there, or set the annotation " + workloadv1alpha1.RecreateAnnotation + "=true (for a claim also " + workloadv1alpha1.DeleteDataAnnotation + "=true)"})
	case stepStuck:
		return p.problem(ctx, *p.stuck)
	case stepWithhold:
		p.log.Warn("an object was not deleted in the cluster, because its type is being removed upstream")
		return p.problem(ctx, problem{reasonTypeEnds, "the type is being removed upstream; the object in the cluster is not deleted for that reason. Unregister the cluster to release it"})
	default:
		if p.upSeen == absent && p.downSeen == absent {
			p.unsettle()
		}
		return true, 0, nil
	}
	return false, 0, err
}

// look reads an object from a server. It returns absent, without an error, if the object does not
// exist.
func look(ctx context.Context, s *side, t Type, namespace, name string) (*unstructured.Unstructured, presence, error) {
	found, err := s.get(ctx, t, namespace, name)
	switch {
	case err == nil:
		return found, live, nil
	case isObjectGone(err):
		return nil, absent, nil
	default:
		return nil, unknown, fmt.Errorf("asking %s: %w", s.name, err)
	}
}

// lookUpstream reads the object from the kcp. The kcp lets a syncer read only objects that are
// sent to its cluster or have its finalizer, and forbids all others. A forbidden read may have
// another cause. For this reason, lookUpstream confirms it with lists, which a syncer may always
// request.
func (p *pass) lookUpstream(ctx context.Context) (*unstructured.Unstructured, presence, error) {
	found, seen, err := look(ctx, p.upstream, p.carrier.Type, p.key.Namespace, p.key.Name)
	if !apierrors.IsForbidden(err) {
		return found, seen, err
	}
	for _, selector := range selectors(p.identity.Cluster) {
		list, err := p.upstream.list(ctx, p.carrier.Type, p.key.Namespace, metav1.ListOptions{
			LabelSelector: selector, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, p.key.Name).String(),
		})
		if err != nil {
			return nil, unknown, fmt.Errorf("listing the objects in %s for this cluster: %w", p.upstream.name, err)
		}
		if len(list.Items) > 0 {
			return &list.Items[0], live, nil
		}
	}
	return nil, absent, nil
}

// afterWrite turns a refused write into a problem that is reported.
func (p *pass) afterWrite(ctx context.Context, err error) (bool, time.Duration, error) {
	if err == nil {
		return false, 0, nil
	}
	if errors.Is(err, errOtherNamespace) {
		return p.problem(ctx, problem{reasonNamespace, err.Error() + ". The namespace is not changed; delete or rename it there"})
	}
	if isNamespaceMissing(err, p.downstreamNamespace()) {
		p.namespaces.forget(p.key.Namespace)
		return true, 0, reconcile.ErrAgain
	}
	if why, ok := refusal(err, p.key.Type); ok {
		return p.problem(ctx, why)
	}
	return true, 0, err
}

// problem reports upstream why the object is not as desired. If the downstream object belongs to
// this syncer, it reports the status as well.
func (p *pass) problem(ctx context.Context, why problem) (bool, time.Duration, error) {
	if p.upSeen == absent || p.up == nil {
		return true, problemAgain, nil
	}
	return true, problemAgain, p.report(ctx, &why)
}

// remove deletes the object downstream, unless deletions are paused.
func (p *pass) remove(ctx context.Context) (bool, time.Duration, error) {
	if p.key.Namespace != "" {
		if err := p.namespaces.verify(ctx, p.key.Namespace); err != nil {
			return p.afterWrite(ctx, err)
		}
	}
	if may, again := p.mayDelete(ctx); !may {
		if again == 0 {
			p.reportPokes.Wake()
		}
		return true, again, nil
	}
	uid := p.down.GetUID()
	_, err := ask(ctx, p.downstream, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.downstream.resource(p.carrier.Type, p.downstreamNamespace()).
			Delete(ctx, p.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: propagation(p.up)})
	})
	switch {
	case apierrors.IsConflict(err):
		return true, 0, reconcile.ErrAgain // another object has the name now: check again
	case err != nil && !isObjectGone(err):
		return p.afterWrite(ctx, err)
	}
	p.metrics.deletes.Inc()
	p.arrived()
	p.log.Info("deleted an object in the cluster", "uid", uid)
	p.unsettle()
	// In most cases the object is gone at once. Check it now instead of waiting for the watch.
	p.down, p.downSeen, err = look(ctx, p.downstream, p.carrier.Type, p.downstreamNamespace(), p.name)
	if err != nil {
		return true, 0, err
	}
	if p.downSeen == live && p.down.GetUID() == uid {
		return true, deletedAgain, nil
	}
	return false, 0, nil
}

// propagation returns the deletion policy for the dependents of an object in the cluster. It is
// always set, because the default depends on the type. For Jobs, the default leaves their pods
// running. If the deletion upstream waits for dependents or orphans them, so does the deletion in
// the cluster.
func propagation(up *unstructured.Unstructured) *metav1.DeletionPropagation {
	policy := metav1.DeletePropagationBackground
	if up != nil && up.GetDeletionTimestamp() != nil {
		switch finalizers := up.GetFinalizers(); {
		case slices.Contains(finalizers, metav1.FinalizerDeleteDependents):
			policy = metav1.DeletePropagationForeground
		case slices.Contains(finalizers, metav1.FinalizerOrphanDependents):
			policy = metav1.DeletePropagationOrphan
		}
	}
	return &policy
}

// isFinished reports whether the work of the object is finished, according to this cluster's last
// status.
func (p *pass) isFinished() bool {
	if !isShared(p.up) {
		_, finished := terminal.Of(p.up)
		return finished
	}
	var status map[string]any
	if json.Unmarshal([]byte(p.up.GetAnnotations()[workloadv1alpha1.StatusAnnotationPrefix+p.identity.Cluster]), &status) != nil {
		return false
	}
	_, finished := terminal.With(p.up.GroupVersionKind().GroupKind(), status)
	return finished
}

// arrived records that the cluster has accepted what upstream wants.
func (p *pass) arrived() {
	if !p.changed.IsZero() {
		p.metrics.delay.Observe(time.Since(p.changed).Seconds())
		p.changed = time.Time{}
	}
}

// mayDelete asks the breaker. At the begin of a pause it writes a log line and an event.
func (p *pass) mayDelete(ctx context.Context) (bool, time.Duration) {
	total := p.total()
	p.mu.Lock()
	goAhead := p.cluster.Annotations[workloadv1alpha1.AllowDeletesAnnotation]
	before := p.breaker.holds(p.key.Namespace)
	may, again := p.breaker.ask(p.key, time.Now(), total, goAhead)
	begins := !before && p.breaker.holds(p.key.Namespace)
	limit := p.breaker.exceeded(p.key.Namespace)
	p.mu.Unlock()
	if begins {
		p.log.Warn("deletions are paused until a go-ahead", "namespace", p.key.Namespace, "limit", limit)
		if p.up != nil {
			p.setProblem(ctx, problem{reasonPaused, "this object and others are not deleted in the cluster until an operator of the kcp allows it: " + limit})
		}
	}
	return may, again
}
