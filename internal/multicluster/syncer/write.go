package syncer

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/rand"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/reconcile"
)

// fingerprint is a hash of what was applied, and of the fields that this syncer owned after that.
type fingerprint struct{ desired, owned [sha256.Size]byte }

func fingerprintOf(desired, downstream *unstructured.Unstructured) fingerprint {
	var f fingerprint
	// The JSON of a map is sorted by its keys.
	if raw, err := json.Marshal(desired.Object); err == nil {
		f.desired = sha256.Sum256(raw)
	}
	for _, entry := range downstream.GetManagedFields() {
		if isOurs(entry) && entry.FieldsV1 != nil {
			f.owned = sha256.Sum256(entry.FieldsV1.GetRawBytes())
		}
	}
	return f
}

// desired returns what to apply to the downstream object.
func (p *pass) desired() *unstructured.Unstructured {
	desired := p.translated()
	if p.down != nil {
		withoutFields(desired, yielded(p.up, p.down))
	}
	return desired
}

// translated returns the translated upstream object with its name in the cluster.
func (p *pass) translated() *unstructured.Unstructured {
	desired := translate(p.up, p.identity)
	if p.name != p.key.Name {
		desired.SetName(p.name)
		annotations := desired.GetAnnotations()
		annotations[workloadv1alpha1.UpstreamNameAnnotation] = p.key.Name
		desired.SetAnnotations(annotations)
	}
	return desired
}

func (p *pass) isInSync() bool {
	desired := p.desired()
	if isInSync(desired, p.down) {
		return true
	}
	// The label is how the caches find the object. Without it, the object is not in sync.
	if p.down.GetLabels()[workloadv1alpha1.ClusterLabel] != p.identity.Cluster {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before, ok := p.settled[p.key]
	return ok && before == fingerprintOf(desired, p.down)
}

func (p *pass) settle(desired *unstructured.Unstructured) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settled[p.key] = fingerprintOf(desired, p.down)
}

func (p *pass) unsettle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.settled, p.key)
	delete(p.reported, p.key)
	delete(p.unwritten, p.key)
}

// create creates the object. Another client may have created one since the check. create does not
// force its values, and takes back fields that it has applied to such an object.
func (p *pass) create(ctx context.Context) error {
	if p.key.Namespace != "" {
		if err := p.namespaces.ensure(ctx, p.key.Namespace); err != nil {
			return err
		}
	}
	desired := p.translated()
	made, err := p.downstream.apply(ctx, p.carrier.Type, desired, metav1.ApplyOptions{FieldManager: manager})
	if apierrors.IsConflict(err) {
		return reconcile.ErrAgain // the object exists now
	}
	if err != nil {
		return err
	}
	p.metrics.applies.Inc()
	if isMixed(made) {
		if err := p.takeBack(ctx, made); err != nil {
			return err
		}
		return reconcile.ErrAgain
	}
	p.arrived()
	p.log.Info("created an object in the cluster", "uid", made.GetUID())
	p.down, p.downSeen = made, live
	// Fields that are yielded are released next, and then belong to another manager.
	p.applied = len(yielded(p.up, made)) == 0
	p.settle(desired)
	return nil
}

// isMixed reports whether other managers own fields of an object that was just created.
func isMixed(made *unstructured.Unstructured) bool {
	return slices.ContainsFunc(made.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager != manager && entry.Subresource == ""
	})
}

// takeBack releases every field that this syncer owns in an object that it did not create.
func (p *pass) takeBack(ctx context.Context, made *unstructured.Unstructured) error {
	nothing := &unstructured.Unstructured{}
	nothing.SetAPIVersion(made.GetAPIVersion())
	nothing.SetKind(made.GetKind())
	nothing.SetNamespace(made.GetNamespace())
	nothing.SetName(made.GetName())
	nothing.SetUID(made.GetUID())
	_, err := p.downstream.apply(ctx, p.carrier.Type, nothing, metav1.ApplyOptions{FieldManager: manager})
	if err != nil {
		return fmt.Errorf("removing applied fields from an object that another client created: %w", err)
	}
	return nil
}

// apply updates the object to what upstream wants. It fails if the object was replaced since it
// was read.
func (p *pass) apply(ctx context.Context) error {
	if p.key.Namespace != "" {
		if err := p.namespaces.ensure(ctx, p.key.Namespace); err != nil {
			return err
		}
	}
	if kept := handover(p.down, yielded(p.up, p.down)); kept != nil {
		held, err := p.downstream.apply(ctx, p.carrier.Type, kept, metav1.ApplyOptions{FieldManager: yieldManager, Force: true})
		if apierrors.IsConflict(err) {
			return reconcile.ErrAgain
		}
		if err != nil {
			return fmt.Errorf("releasing fields that other clients set: %w", err)
		}
		p.down = held
	}
	desired := p.desired()
	body := desired.DeepCopy()
	body.SetUID(p.down.GetUID())
	applied, err := p.downstream.apply(ctx, p.carrier.Type, body, metav1.ApplyOptions{FieldManager: manager, Force: true})
	switch {
	case apierrors.IsConflict(err):
		return reconcile.ErrAgain // another object exists now, or none
	case err != nil && isInvalid(err):
		return p.whyInvalid(ctx, desired, err)
	case err != nil:
		return err
	}
	p.metrics.applies.Inc()
	p.arrived()
	p.carrier.wroteDownstream(applied)
	p.down, p.downSeen, p.applied = applied, live, true
	p.settle(desired)
	return nil
}

// whyInvalid determines why an update was refused: because of its content, or because of the
// existing object. It asks the server for a new object with the same content, as a dry run. Only
// if that is possible would a new object help.
func (p *pass) whyInvalid(ctx context.Context, desired *unstructured.Unstructured, refused error) error {
	probe := translate(p.up, p.identity)
	probe.SetName("rik-dry-run-" + rand.String(8))
	// The probe has the labels of the object. Neither a watch nor another pass sees it, because
	// it is a dry run under a random name.
	probe.SetLabels(desired.GetLabels())
	_, err := ask(ctx, p.downstream, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return p.downstream.resource(p.carrier.Type, probe.GetNamespace()).
			Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: manager})
	})
	if err != nil {
		return refused
	}
	text := refused.Error()
	if why, ok := refusal(refused, p.key.Type); ok {
		text = why.message
	}
	p.stuck = &problem{reasonImmutable, text + ". Undo the change, or set the annotation " + workloadv1alpha1.RecreateAnnotation + "=true to delete the object in the cluster and create it again"}
	return nil
}

func (p *pass) finalizer() string { return workloadv1alpha1.FinalizerPrefix + p.identity.Cluster }

func (p *pass) isHeld() bool { return slices.Contains(p.up.GetFinalizers(), p.finalizer()) }

// hold keeps the upstream object until its counterpart is gone.
func (p *pass) hold(ctx context.Context) error {
	return p.setFinalizers(ctx, append(slices.Clone(p.up.GetFinalizers()), p.finalizer()), nil)
}

// release removes the finalizer of this cluster from the upstream object, and the annotations of
// this cluster.
func (p *pass) release(ctx context.Context) error {
	rest := slices.DeleteFunc(slices.Clone(p.up.GetFinalizers()), func(f string) bool { return f == p.finalizer() })
	said := map[string]any{}
	for _, name := range []string{p.statusAnnotation(), p.problemAnnotation()} {
		if _, found := p.up.GetAnnotations()[name]; found {
			said[name] = nil
		}
	}
	err := p.setFinalizers(ctx, rest, said)
	if isObjectGone(err) {
		return nil
	}
	if err == nil {
		p.log.Info("released an object upstream")
	}
	return err
}

func (p *pass) setFinalizers(ctx context.Context, finalizers []string, annotations map[string]any) error {
	metadata := map[string]any{"finalizers": finalizers}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	raw, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	patch, err := guarded(raw, p.up)
	if err != nil {
		return err
	}
	changed, err := p.upstream.merge(ctx, p.carrier.Type, p.up, patch)
	if apierrors.IsConflict(err) {
		return reconcile.ErrAgain
	}
	if err != nil {
		return fmt.Errorf("changing the finalizers upstream: %w", err)
	}
	p.carrier.wroteUpstream(changed)
	p.up, p.upSeen = changed, live
	return nil
}

func (p *pass) statusAnnotation() string {
	return workloadv1alpha1.StatusAnnotationPrefix + p.identity.Cluster
}

func (p *pass) problemAnnotation() string {
	return workloadv1alpha1.ProblemAnnotationPrefix + p.identity.Cluster
}

// report writes to the upstream object the status that it has in the cluster, and the problem.
// nil means no problem.
func (p *pass) report(ctx context.Context, why *problem) error {
	said := map[string]string{p.problemAnnotation(): ""}
	if p.isOursDownstream() {
		late, err := p.reportStatus(ctx, why == nil, said)
		if err != nil {
			return err
		}
		if why == nil {
			why = late
		}
		if why == nil {
			why = yieldNote(p.up, p.down)
		}
	}
	if why != nil {
		said[p.problemAnnotation()] = p.saying(*why)
	}
	patch, err := annotationsPatch(p.up, said)
	if patch == nil || err != nil {
		return err
	}
	isNew := why != nil && p.up.GetAnnotations()[p.problemAnnotation()] != said[p.problemAnnotation()]
	changed, err := p.upstream.merge(ctx, p.carrier.Type, p.up, patch)
	switch {
	case isTooLong(err):
		return p.reportWithoutAnnotation(ctx, why)
	case isObjectGone(err):
		return nil
	case apierrors.IsConflict(err):
		return reconcile.ErrAgain
	case err != nil:
		return fmt.Errorf("reporting the state of the object upstream: %w", err)
	}
	p.carrier.wroteUpstream(changed)
	if isNew {
		p.metrics.problems.WithLabelValues(why.reason).Inc()
		p.log.Warn("an object in the cluster differs from the upstream object", "reason", why.reason)
		p.setProblem(ctx, *why)
	}
	return nil
}

// reportWithoutAnnotation reports a problem of an object whose annotations have no room for it.
// If there is no other problem, the missing room is the problem.
func (p *pass) reportWithoutAnnotation(ctx context.Context, why *problem) error {
	if why == nil {
		why = &problem{reasonStatus, "the object's annotations leave no room for the status of this cluster; make them smaller"}
	}
	desired, now := fingerprintOf(p.desired(), &unstructured.Unstructured{}).desired, time.Now()
	p.mu.Lock()
	last, reported := p.unwritten[p.key]
	isOld := reported && last.reason == why.reason && !last.isStale(desired, now)
	if !isOld {
		p.unwritten[p.key] = reportedProblem{at: now, desired: desired, reason: why.reason}
	}
	p.mu.Unlock()
	if isOld {
		return nil
	}
	p.metrics.problems.WithLabelValues(why.reason).Inc()
	p.log.Warn("an object in the cluster differs from the upstream object, and its annotations have no room for the problem", "reason", why.reason)
	p.setProblem(ctx, *why)
	return nil
}

// reportedProblem is a problem that was reported.
type reportedProblem struct {
	at time.Time
	// desired is the hash of what upstream wanted at that time.
	desired [sha256.Size]byte
	// reason is set only if the object has no room for the problem.
	reason string
}

// isStale reports whether the same problem must be reported again with its current text. That is
// so if it is about another desired object, or was reported a while ago.
func (t reportedProblem) isStale(desired [sha256.Size]byte, now time.Time) bool {
	return t.desired != desired || now.Sub(t.at) >= problemAgain
}

// saying returns the text of a problem for upstream. A server may refuse the same object with a
// different text each time, for example if a webhook numbers its answers. Each write upstream is
// an event that causes another attempt. Writing every text would never end.
func (p *pass) saying(why problem) string {
	before, now := p.up.GetAnnotations()[p.problemAnnotation()], why.String()
	if before == now {
		return now
	}
	desired, at := fingerprintOf(p.desired(), &unstructured.Unstructured{}).desired, time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if last, ok := p.reported[p.key]; ok && strings.HasPrefix(before, why.reason+": ") && !last.isStale(desired, at) {
		return before
	}
	p.reported[p.key] = reportedProblem{at: at, desired: desired}
	return now
}

func (p *pass) isOursDownstream() bool {
	return p.down != nil && upstreamUID(p.down) == p.up.GetUID()
}

// reportStatus copies the status upstream. For an object with only this target, it writes the
// status. For a shared object, it sets an annotation. If upstream refuses the status, that is a
// problem.
func (p *pass) reportStatus(ctx context.Context, inSync bool, said map[string]string) (*problem, error) {
	if !p.carrier.Status || p.up.GetDeletionTimestamp() != nil || !isTargeted(p.up, p.identity.Cluster) {
		return nil, nil
	}
	status := reportedStatus(p.up, p.down, inSync)
	if isShared(p.up) {
		text, err := statusAnnotation(status)
		if err != nil {
			return &problem{reasonStatus, err.Error()}, nil //nolint:nilerr // a problem is told on the object, and is no failure of ours
		}
		said[p.statusAnnotation()] = text
		return nil, nil
	}
	said[p.statusAnnotation()] = ""
	patch, err := statusPatch(p.up, status)
	if patch == nil || err != nil {
		return nil, err
	}
	changed, err := p.upstream.merge(ctx, p.carrier.Type, p.up, patch, "status")
	if apierrors.IsConflict(err) {
		return nil, reconcile.ErrAgain
	}
	if why, ok := refusal(err, p.key.Type); ok {
		return &problem{reasonStatus, why.message}, nil
	}
	if isObjectGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("copying the status upstream: %w", err)
	}
	p.metrics.statuses.Inc()
	p.carrier.wroteUpstream(changed)
	p.up = changed
	return nil, nil
}
