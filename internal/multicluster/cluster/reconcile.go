package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/kubeconfig"
	"rik.dev/rik/internal/reconcile"
)

// defaultKey is the key of a kubeconfig in a Secret, as documented in the type Cluster.
const defaultKey = "kubeconfig"

// reconcile makes one pass over a Cluster. It makes sure that a member runs with the current
// kubeconfig, and that the status contains what the member observes.
func (c *Controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	if name == everyObject {
		return c.sweep(ctx)
	}
	cluster := &workloadv1alpha1.Cluster{}
	err := c.cache.Get(ctx, client.ObjectKey{Name: name}, cluster)
	switch {
	case apierrors.IsNotFound(err):
		c.forget(name)
		return 0, c.release(ctx, name)
	case err != nil:
		return 0, err
	case cluster.DeletionTimestamp != nil && !isBeingEmptied(cluster):
		return 0, c.detach(ctx, cluster)
	}
	if !controllerutil.ContainsFinalizer(cluster, workloadv1alpha1.ClusterFinalizer) {
		return 0, c.hold(ctx, cluster)
	}
	return c.keep(ctx, cluster)
}

// isBeingEmptied reports whether the splitter still deletes objects in a Cluster that is being
// removed. Until it is done, the syncer runs as before.
func isBeingEmptied(cluster *workloadv1alpha1.Cluster) bool {
	return controllerutil.ContainsFinalizer(cluster, workloadv1alpha1.SplitterFinalizer) &&
		controllerutil.ContainsFinalizer(cluster, workloadv1alpha1.ClusterFinalizer)
}

// hold adds the finalizer before anything is created that would be left behind. The write causes
// the next pass.
func (c *Controller) hold(ctx context.Context, cluster *workloadv1alpha1.Cluster) error {
	held := cluster.DeepCopy()
	controllerutil.AddFinalizer(held, workloadv1alpha1.ClusterFinalizer)
	patch := client.MergeFromWithOptions(cluster, client.MergeFromWithOptimisticLock{})
	return client.IgnoreNotFound(c.client.Patch(ctx, held, patch, client.FieldOwner(fieldManager)))
}

func (c *Controller) keep(ctx context.Context, cluster *workloadv1alpha1.Cluster) (time.Duration, error) {
	imports, err := c.importsOf(ctx, cluster.Name)
	if err != nil {
		return 0, err
	}
	f := facts{
		cluster: cluster, mode: c.config.modeOf(cluster), now: c.now(), timeout: c.config.HeartbeatTimeout,
		beat: c.noteBeat(cluster),
	}
	f.synced, f.problems = synced(c.config.ResourcesToSync, cluster, imports)
	m, wrong, err := c.ensure(ctx, cluster)
	if err != nil {
		return 0, err
	}
	if f.kubeconfig = wrong; m != nil {
		m.want(wanted(c.config.ResourcesToSync, cluster), f.synced)
		f.observed, f.kcp = m.observe(), m.kcp
	}
	if f.sameAs, err = c.sameAs(ctx, cluster, f.observed.probe.uid); err != nil {
		return 0, err
	}
	status, again := decide(f)
	return again, c.write(ctx, cluster, status)
}

func (c *Controller) importsOf(ctx context.Context, name string) ([]*apiresourcev1alpha1.APIResourceImport, error) {
	list := &apiresourcev1alpha1.APIResourceImportList{}
	if err := c.cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var imports []*apiresourcev1alpha1.APIResourceImport
	for i := range list.Items {
		if list.Items[i].Spec.Location == name {
			imports = append(imports, &list.Items[i])
		}
	}
	return imports, nil
}

// ownUID returns the UID of the kcp's namespace kube-system. It reads the namespace only once.
func (c *Controller) ownUID(ctx context.Context) (string, error) {
	c.mu.Lock()
	uid := c.uid
	c.mu.Unlock()
	if uid != "" {
		return uid, nil
	}
	system := &metav1.PartialObjectMetadata{}
	system.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := c.client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		return "", fmt.Errorf("reading the namespace %s of the kcp: %w", metav1.NamespaceSystem, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uid = string(system.UID)
	return c.uid, nil
}

// sameAs returns the oldest other Cluster that is the same physical cluster. It is empty if no
// other one exists, or if this Cluster is the oldest. It queues the Clusters whose result
// changes.
func (c *Controller) sameAs(ctx context.Context, cluster *workloadv1alpha1.Cluster, seen string) (string, error) {
	list := &workloadv1alpha1.ClusterList{}
	if err := c.cache.List(ctx, list); err != nil {
		return "", fmt.Errorf("listing the Clusters: %w", err)
	}
	uid := cluster.Status.UID
	if uid == "" {
		uid = seen
	}
	return oldestTwin(cluster, uid, list.Items), nil
}

// oldestTwin returns the oldest of the Clusters with a UID, if that is another one.
func oldestTwin(cluster *workloadv1alpha1.Cluster, uid string, clusters []workloadv1alpha1.Cluster) string {
	oldest := cluster
	if cluster.Annotations[workloadv1alpha1.OwnClusterAnnotation] == "true" {
		return ""
	}
	for i := range clusters {
		other := &clusters[i]
		if uid == "" || other.Status.UID != uid || other.Name == cluster.Name || other.DeletionTimestamp != nil {
			continue
		}
		switch order := other.CreationTimestamp.Compare(oldest.CreationTimestamp.Time); {
		case order < 0, order == 0 && other.Name < oldest.Name:
			oldest = other
		}
	}
	if oldest == cluster {
		return ""
	}
	return oldest.Name
}

// noteBeat records when the heartbeat in a Cluster's status arrived.
func (c *Controller) noteBeat(cluster *workloadv1alpha1.Cluster) time.Time {
	last := cluster.Status.LastHeartbeatTime
	if last == nil {
		return time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.beats[cluster.Name]
	if ok && known.written.Equal(last) {
		return known.seen
	}
	now := beat{written: *last, seen: c.now()}
	if !ok && meta.IsStatusConditionFalse(cluster.Status.Conditions, workloadv1alpha1.ConditionHeartbeatHealthy) {
		now.seen = time.Time{}
	}
	c.beats[cluster.Name] = now
	return now.seen
}

// ensure returns the member that runs with the Cluster's kubeconfig. If the kubeconfig has
// changed, it replaces the member. If the kubeconfig cannot be used, it returns a problem.
func (c *Controller) ensure(ctx context.Context, cluster *workloadv1alpha1.Cluster) (*member, *problem, error) {
	data, wrong, err := c.kubeconfig(ctx, cluster)
	if err != nil {
		return nil, nil, err
	}
	if wrong != nil {
		c.stop(cluster.Name)
		return nil, wrong, nil
	}
	identity := identityOf(cluster, c.config.modeOf(cluster), data)
	old := c.memberOf(cluster.Name)
	if old != nil && old.identity == identity {
		return old, nil, nil
	}
	c.stop(cluster.Name)
	downstream, err := kubeconfig.Parse(data)
	if err != nil {
		return nil, &problem{workloadv1alpha1.ReasonInvalidKubeConfig, err.Error()}, nil //nolint:nilerr // it is the user's to mend, and no retry helps
	}
	kcp, err := c.ownUID(ctx)
	if err != nil {
		return nil, nil, err
	}
	m, err := c.newMember(cluster, identity, pin(cluster, old), downstream)
	if err != nil {
		return nil, &problem{workloadv1alpha1.ReasonErrorCreatingClient, kubeconfig.Redaction(downstream)(err)}, nil
	}
	m.kcp = kcp
	c.mu.Lock()
	c.members[cluster.Name] = m
	c.mu.Unlock()
	m.start(context.WithoutCancel(ctx)) // stopAll stops it, because it outlives this pass
	c.config.Logger.Info("connecting to a cluster", "cluster", cluster.Name, "location", m.location, "mode", m.mode)
	return m, nil, nil
}

// identity is the input of a member. If it changes, the member is replaced.
type identity struct {
	owner types.UID
	mode  workloadv1alpha1.SyncMode
	hash  [sha256.Size]byte
}

func identityOf(cluster *workloadv1alpha1.Cluster, mode workloadv1alpha1.SyncMode, kubeconfig []byte) identity {
	return identity{owner: cluster.UID, mode: mode, hash: sha256.Sum256(kubeconfig)}
}

// pin returns the UID that the cluster must have. It is empty if the cluster was never reached.
func pin(cluster *workloadv1alpha1.Cluster, old *member) string {
	if cluster.Status.UID == "" && old != nil && old.identity.owner == cluster.UID {
		return old.observe().pinned
	}
	return cluster.Status.UID
}

// kubeconfig reads the kubeconfig of the Cluster, inline or from its Secret.
func (c *Controller) kubeconfig(ctx context.Context, cluster *workloadv1alpha1.Cluster) ([]byte, *problem, error) {
	invalid := func(format string, args ...any) *problem {
		return &problem{workloadv1alpha1.ReasonInvalidKubeConfig, fmt.Sprintf(format, args...)}
	}
	ref := cluster.Spec.KubeconfigSecretRef
	switch {
	case ref == nil && cluster.Spec.KubeConfig == "":
		return nil, invalid("give spec.kubeconfigSecretRef, or spec.kubeconfig"), nil
	case ref == nil:
		return []byte(cluster.Spec.KubeConfig), nil, nil
	}
	secret := &corev1.Secret{}
	err := c.client.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, secret)
	if apierrors.IsNotFound(err) {
		return nil, invalid("there is no Secret %s/%s: make it, or name another in spec.kubeconfigSecretRef", ref.Namespace, ref.Name), nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading the kubeconfig of cluster %s: %w", cluster.Name, err)
	}
	key := ref.Key
	if key == "" {
		key = defaultKey
	}
	data, ok := secret.Data[key]
	if !ok {
		return nil, invalid("the Secret %s/%s has no key %s", ref.Namespace, ref.Name, key), nil
	}
	return data, nil, nil
}

// write applies the controller's part of a status if it has changed.
func (c *Controller) write(ctx context.Context, cluster *workloadv1alpha1.Cluster, status workloadv1alpha1.ClusterStatus) error {
	if equality.Semantic.DeepEqual(status, ownPart(cluster.Status)) {
		return nil
	}
	metadata := map[string]any{"name": cluster.Name, "uid": cluster.UID}
	if fallsSilent(cluster.Status, status) {
		// The fence starts at this write. The precondition makes sure that no heartbeat has
		// arrived which this pass has not seen.
		metadata["resourceVersion"] = cluster.ResourceVersion
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": workloadv1alpha1.SchemeGroupVersion.String(), "kind": "Cluster", "metadata": metadata, "status": status,
	})
	if err != nil {
		return fmt.Errorf("storing the status of cluster %s: %w", cluster.Name, err)
	}
	target := &workloadv1alpha1.Cluster{}
	target.Name = cluster.Name
	err = c.client.Status().Patch(ctx, target, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(fieldManager), client.ForceOwnership)
	if apierrors.IsConflict(err) {
		return reconcile.ErrAgain
	}
	if err := client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("writing the status of cluster %s: %w", cluster.Name, err)
	}
	c.announce(cluster, status)
	return nil
}

// fallsSilent reports whether a status is the first one without a heartbeat.
func fallsSilent(before, after workloadv1alpha1.ClusterStatus) bool {
	const kind = workloadv1alpha1.ConditionHeartbeatHealthy
	return meta.IsStatusConditionFalse(after.Conditions, kind) && !meta.IsStatusConditionFalse(before.Conditions, kind)
}

// ownPart returns a status without the syncer's part.
func ownPart(status workloadv1alpha1.ClusterStatus) workloadv1alpha1.ClusterStatus {
	part := *status.DeepCopy()
	part.LastHeartbeatTime, part.PausedDeletes, part.Conditions = nil, nil, nil
	part.ResourceProblems = slices.DeleteFunc(part.ResourceProblems, func(p workloadv1alpha1.ResourceProblem) bool {
		return slices.Contains(workloadv1alpha1.SyncerResourceReasons, p.Reason)
	})
	if len(part.ResourceProblems) == 0 {
		part.ResourceProblems = nil
	}
	for _, c := range status.Conditions {
		if isOwned(c.Type) {
			part.Conditions = append(part.Conditions, c)
		}
	}
	sortConditions(part.Conditions)
	return part
}

// forget removes the state of a Cluster that no longer exists.
func (c *Controller) forget(name string) {
	c.stop(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.beats, name)
}
