package syncer

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/fencing"
	"rik.dev/rik/internal/multicluster/syncer/renewal"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/wakeup"
)

// The reasons of the condition Fencing.
const (
	reasonFences          = "Acknowledged"
	reasonNotRik          = "NotARikCluster"
	reasonNotAcknowledged = "NotAcknowledged"
	reasonLeaseTrouble    = "LeaseNotWritten"
	reasonFencingBehind   = "NotApplied"
)

var leaseType = Type{Resource: coordinationv1.SchemeGroupVersion.WithResource("leases"), Kind: "Lease", Namespaced: true}

// fence is the state of the Lease by which the cluster fences. See the package fencing.
type fence struct {
	began time.Time
	// A value in checks requests a check of the Lease before its time.
	checks wakeup.Signal

	mu       sync.Mutex
	renewals fencing.Renewals
	other    fencing.Acknowledgement
	// shortest is the shortest fence that an object has asked for since the syncer started.
	shortest time.Duration
	// asked is true after the cluster has answered whether it isRik.
	asked, isRik bool
	// trouble is the error of the last check of the Lease, or empty.
	trouble string
}

func newFence(c *Config, now time.Time) *fence {
	return &fence{
		began: now, checks: wakeup.New(),
		renewals: fencing.Renewals{Trust: fencing.Trust(c.HeartbeatInterval)},
	}
}

// wants records that an object asks for a fence.
func (f *fence) wants(o *unstructured.Unstructured) {
	after := renewal.FenceOf(o)
	if after == 0 {
		return
	}
	f.mu.Lock()
	shorter := f.shortest == 0 || after < f.shortest
	if shorter {
		f.shortest = after
	}
	f.mu.Unlock()
	if shorter {
		f.checks.Wake()
	}
}

func (f *fence) pace(now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asked && !f.isRik {
		return typesInterval
	}
	return fencing.Pace(f.shortest, f.other.IsAcknowledged(), now.Sub(f.began))
}

// beaten records the response to a heartbeat that was accepted.
func (f *fence) beaten(began time.Time, answer *unstructured.Unstructured) {
	cluster, err := toCluster(answer)
	silent := err != nil || isSilent(cluster)
	f.mu.Lock()
	f.renewals.Beaten(began, time.Now(), silent)
	settle := f.renewals.Contact(time.Now()) == fencing.Settling
	f.mu.Unlock()
	if settle {
		f.checks.Wake()
	}
}

// isSilent reports whether the kcp considers the heartbeat of the cluster missing.
func isSilent(cluster *workloadv1alpha1.Cluster) bool {
	return meta.IsStatusConditionFalse(cluster.Status.Conditions, workloadv1alpha1.ConditionHeartbeatHealthy)
}

// messageOf returns the text of an error, or an empty string for nil.
func messageOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// runFence checks and renews the Lease in a loop.
func (e *engine) runFence(ctx context.Context) error {
	for said := ""; ctx.Err() == nil; {
		trouble := messageOf(e.checkLease(ctx))
		if trouble != "" && trouble != said && ctx.Err() == nil {
			e.log.Warn("the cluster's fence", "err", trouble)
		}
		said = trouble
		e.fence.mu.Lock()
		e.fence.trouble = trouble
		e.fence.mu.Unlock()
		pause.ForOr(ctx, e.fence.pace(time.Now()), e.fence.checks)
	}
	return nil
}

// checkLease checks the Lease once, and renews it if that is allowed.
func (e *engine) checkLease(ctx context.Context) error {
	if rik, err := e.isRik(ctx); err != nil || !rik {
		return err
	}
	behind := e.settle(ctx)
	lease, err := e.lease(ctx)
	e.noteLook(lease, err, behind)
	if err != nil {
		return err
	}
	challenge := lease.GetAnnotations()[workloadv1alpha1.FenceChallengeAnnotation]
	if behind != nil || challenge == "" || challenge == lease.GetAnnotations()[workloadv1alpha1.FenceAnswerAnnotation] {
		return behind
	}
	if err := e.askWhetherSeen(ctx); err != nil {
		return err
	}
	return e.answer(ctx, challenge)
}

// isRik returns whether the cluster is a rik cluster. After a positive answer, it does not ask
// again.
func (e *engine) isRik(ctx context.Context) (bool, error) {
	f := e.fence
	f.mu.Lock()
	known := f.isRik
	f.mu.Unlock()
	if known {
		return true, nil
	}
	groups, err := discover(ctx, e.downstream, func(d discovery.DiscoveryInterface) (*metav1.APIGroupList, error) {
		return d.ServerGroups()
	})
	if err != nil {
		return false, fmt.Errorf("asking %s which groups it serves: %w", e.downstream.name, err)
	}
	is := slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == rikv1alpha1.SchemeGroupVersion.Group })
	f.mu.Lock()
	news := !f.asked
	f.asked, f.isRik = true, is
	f.mu.Unlock()
	if news {
		e.reportPokes.Wake()
	}
	return is, nil
}

func (e *engine) noteLook(lease *unstructured.Unstructured, err, behind error) {
	f := e.fence
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	before := f.other.Enforcement(now, now.Sub(f.began))
	if err != nil {
		f.other.Failed(now)
	} else {
		f.other.Observe(lease.GetAnnotations()[workloadv1alpha1.FenceChallengeAnnotation], now)
	}
	f.other.Behind(behind != nil, now)
	if f.other.Enforcement(now, now.Sub(f.began)) != before {
		e.reportPokes.Wake()
	}
}

// settle checks, after the kcp is reachable again, that no object in the cluster runs more than
// the kcp wants. It returns the error that prevents this.
func (e *engine) settle(ctx context.Context) error {
	began := time.Now()
	e.fence.mu.Lock()
	must := e.fence.renewals.Contact(began) == fencing.Settling
	e.fence.mu.Unlock()
	if !must {
		return nil
	}
	e.mu.Lock()
	looked := e.looked
	var types []Type
	for resource, c := range e.carriers {
		if slices.Contains(renewal.Fenced, resource) {
			types = append(types, c.Type)
		}
	}
	e.mu.Unlock()
	if !looked {
		return nil // not renewed, but not a problem yet: the synced types are not known
	}
	for _, t := range types {
		why, err := e.behind(ctx, t)
		if err != nil {
			return err
		}
		if why != "" {
			return fmt.Errorf("the Lease is not renewed until the cluster has applied the changes of the kcp: %s", why)
		}
	}
	e.fence.mu.Lock()
	defer e.fence.mu.Unlock()
	e.fence.renewals.Settle(began)
	return nil
}

// behind lists a type on both servers, upstream first. Later changes arrive by the watch.
func (e *engine) behind(ctx context.Context, t Type) (string, error) {
	selectors := selectors(e.identity.Cluster)
	var up []unstructured.Unstructured
	for _, selector := range selectors {
		list, err := e.upstream.list(ctx, t, metav1.NamespaceAll, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return "", fmt.Errorf("listing the desired objects in %s of type %s: %w", e.upstream.name, t.Resource.Resource, err)
		}
		up = append(up, list.Items...)
	}
	down, err := e.downstream.list(ctx, t, metav1.NamespaceAll, metav1.ListOptions{LabelSelector: selectors[0]})
	if err != nil {
		return "", fmt.Errorf("listing the objects in %s of type %s: %w", e.downstream.name, t.Resource.Resource, err)
	}
	var ours []unstructured.Unstructured
	for i := range down.Items {
		// A Cluster of another kcp may have the same name.
		_, is, err := e.namespaces.resolve(ctx, down.Items[i].GetNamespace())
		if err != nil {
			return "", err
		}
		if is {
			ours = append(ours, down.Items[i])
		}
	}
	return renewal.Behind(up, ours, yieldsReplicas), nil
}

func yieldsReplicas(up, down *unstructured.Unstructured) bool {
	return slices.ContainsFunc(yielded(up, down), func(path []string) bool { return slices.Equal(path, replicas) })
}

// lease returns the Lease. It creates the Lease if it does not exist.
func (e *engine) lease(ctx context.Context) (*unstructured.Unstructured, error) {
	name := workloadv1alpha1.FenceLeaseName(string(e.identity.ClusterUID))
	found, err := e.downstream.get(ctx, leaseType, workloadv1alpha1.FenceNamespace, name)
	if !isObjectGone(err) {
		if err != nil {
			err = fmt.Errorf("reading the lease %s/%s: %w", workloadv1alpha1.FenceNamespace, name, err)
		}
		return found, err
	}
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind(namespaceType.Kind)
	namespace.SetName(workloadv1alpha1.FenceNamespace)
	lease := &unstructured.Unstructured{}
	lease.SetAPIVersion(leaseType.Resource.GroupVersion().String())
	lease.SetKind(leaseType.Kind)
	lease.SetNamespace(workloadv1alpha1.FenceNamespace)
	lease.SetName(name)
	lease.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: e.identity.Cluster})
	if err := e.make(ctx, namespaceType, namespace); err != nil {
		return nil, err
	}
	if err := e.make(ctx, leaseType, lease); err != nil {
		return nil, err
	}
	return lease, nil
}

func (e *engine) make(ctx context.Context, t Type, o *unstructured.Unstructured) error {
	_, err := ask(ctx, e.downstream, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return e.downstream.resource(t, o.GetNamespace()).Create(ctx, o, metav1.CreateOptions{FieldManager: manager})
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making the %s %s for the fence: %w", strings.ToLower(t.Kind), o.GetName(), err)
	}
	return nil
}

// askWhetherSeen asks the kcp itself, not a cache, whether the Cluster exists and its heartbeat
// arrives.
func (e *engine) askWhetherSeen(ctx context.Context) error {
	found, err := e.upstream.get(ctx, clusterType, "", e.identity.Cluster)
	if err != nil {
		return fmt.Errorf("asking %s whether it receives heartbeats: %w", e.upstream.name, err)
	}
	cluster, err := toCluster(found)
	if err != nil {
		return err
	}
	if cluster.UID != e.identity.ClusterUID || isSilent(cluster) {
		e.fence.mu.Lock()
		e.fence.renewals.Cut()
		e.fence.mu.Unlock()
	}
	return nil
}

// answer writes the answer to a challenge, if the kcp is reachable.
func (e *engine) answer(ctx context.Context, challenge string) error {
	now := time.Now()
	e.fence.mu.Lock()
	may := e.fence.renewals.Contact(now) == fencing.Settled
	e.fence.mu.Unlock()
	if !may {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{workloadv1alpha1.FenceAnswerAnnotation: challenge}},
		"spec": map[string]any{
			"holderIdentity": manager + "/" + e.identity.Cluster, "renewTime": metav1.NewMicroTime(now.UTC()),
		},
	})
	if err != nil {
		return err
	}
	lease := &unstructured.Unstructured{}
	lease.SetNamespace(workloadv1alpha1.FenceNamespace)
	lease.SetName(workloadv1alpha1.FenceLeaseName(string(e.identity.ClusterUID)))
	if _, err := e.downstream.merge(ctx, leaseType, lease, patch); err != nil {
		return fmt.Errorf("renewing the lease %s: %w", lease.GetName(), err)
	}
	e.fence.mu.Lock()
	defer e.fence.mu.Unlock()
	e.fence.other.Answered()
	return nil
}

// condition returns the condition Fencing, or nil while the answer is not known.
func (f *fence) condition(before []metav1.Condition, now time.Time) *metav1.Condition {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &metav1.Condition{Type: workloadv1alpha1.ConditionFencing, Status: metav1.ConditionFalse}
	state := f.other.Enforcement(now, now.Sub(f.began))
	switch {
	case f.asked && !f.isRik:
		c.Reason, c.Message = reasonNotRik, "Only a rik cluster stops workloads by itself when it is cut off."
	case state == fencing.Fences:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonFences, "The cluster stops fenced workloads by itself when it is cut off."
	case state == fencing.NotAcknowledged:
		c.Reason, c.Message = reasonNotAcknowledged, "No controller in the cluster sets challenges: it does not run, or its version cannot fence."
	case state == fencing.Unreachable:
		c.Reason, c.Message = reasonLeaseTrouble, f.trouble
	case state == fencing.Stuck:
		c.Reason, c.Message = reasonFencingBehind, f.trouble
	default:
		return meta.FindStatusCondition(before, c.Type).DeepCopy()
	}
	c.Message = cmp.Or(c.Message, "The syncer checks it again.")
	return c
}
