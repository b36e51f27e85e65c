// Package fence implements the guarantee that a cluster gives a kcp: workloads with a fence run
// here only while the kcp and this cluster are in contact.
//
// For each Cluster upstream that this cluster represents there is one Lease, which the
// Cluster's syncer renews. The syncer's clock is not used. This controller writes a challenge
// on the Lease. The syncer reads it, then receives a response of the kcp, and then writes the
// challenge back. The answer thus proves that the kcp was reachable after the challenge was
// set, by the clock of this controller, however long the answer was delayed. A new challenge
// follows every answer. The syncer recognizes by it that this cluster fences.
//
// The decisions are in the package fencing: what a Lease proves, and when the instances of a
// workload must stop. A workload is stopped once the last proof is half of its fence old, and
// starts again with the next proof. Its nodes request the age of the proof and stop its instances
// by themselves.
//
// Reads: Leases in the namespace rik-syncer, Namespaces, the view of Workloads. Writes: the
// challenge on those Leases. It does not stop instances itself: it notifies the workload
// reconciler.
package fence

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/api/rik/revision"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/fencing"
	"rik.dev/rik/internal/reconcile"
)

const (
	// maxBackoff bounds the delay after an error. A late challenge shortens the time that the
	// next answer proves.
	maxBackoff = time.Second
	// writeTimeout keeps a slow write from delaying the check of expired fences.
	writeTimeout = 5 * time.Second
	// askAgain is how long a namespace that does not belong to a kcp is not read again.
	askAgain = time.Minute
)

// Config configures a Reconciler. All fields are required.
type Config struct {
	// Client reads without a cache, and writes.
	Client    client.Client
	Workloads *index.Objects[*rikv1alpha1.Workload]
	// Changed is called for a Workload whose fence has closed or opened. It must not block.
	Changed func(types.NamespacedName)
	Logger  *slog.Logger
	Now     func() time.Time
	// Name returns a different name for each challenge.
	Name func() string
}

// Reconciler writes the challenges and decides which Workloads are fenced.
type Reconciler struct {
	config Config
	queue  *reconcile.Queue[string]

	mu sync.Mutex
	// mu guards the fields below. sites is keyed by the UID of the Cluster upstream.
	sites            map[string]*site
	upstreamClusters map[string]upstreamCluster
}

// site is the state of one Cluster upstream.
type site struct {
	lease fencing.Lease
	// due means that a new challenge is needed, and that there is a Lease to write it on.
	due     bool
	members map[types.NamespacedName]member
}

// member is a Workload with a fence, and the last result of its evaluation.
type member struct {
	after  time.Duration
	fenced bool
}

// upstreamCluster is the Cluster upstream for which a namespace was created. An empty UID means that there
// was none at the time at.
type upstreamCluster struct {
	clusterUID string
	at         time.Time
}

// New creates a reconciler.
func New(c Config) *Reconciler {
	r := &Reconciler{config: c, sites: map[string]*site{}, upstreamClusters: map[string]upstreamCluster{}}
	r.queue = reconcile.New(reconcile.Options{
		Name: "fences", Workers: 2, Logger: c.Logger, MaxBackoff: maxBackoff,
	}, r.reconcile)
	return r
}

// Run works until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error { return r.queue.Run(ctx) }

// Observe applies a Lease from the watch.
func (r *Reconciler) Observe(lease *coordinationv1.Lease) { r.take(lease, true) }

// Remove applies the deletion of a Lease. Its last proof stays and ages.
func (r *Reconciler) Remove(lease *coordinationv1.Lease) { r.take(lease, false) }

func (r *Reconciler) take(lease *coordinationv1.Lease, exists bool) {
	uid, ok := strings.CutPrefix(lease.Name, workloadv1alpha1.FenceLeaseName(""))
	if !ok || lease.Namespace != workloadv1alpha1.FenceNamespace || uid == "" {
		return
	}
	r.mu.Lock()
	s := r.siteLocked(uid)
	s.due = s.lease.Observe(lease.Annotations[workloadv1alpha1.FenceChallengeAnnotation],
		lease.Annotations[workloadv1alpha1.FenceAnswerAnnotation], r.config.Now()) && exists
	r.mu.Unlock()
	r.queue.Add(uid)
}

func (r *Reconciler) siteLocked(uid string) *site {
	s := r.sites[uid]
	if s == nil {
		s = &site{members: map[types.NamespacedName]member{}}
		r.sites[uid] = s
	}
	return s
}

// Evaluate says why a Workload is fenced now, so that its instances must stop. It is empty if the
// Workload is not fenced. Changed is called when that changes. A workload without a fence, or
// without a kcp, is never fenced.
func (r *Reconciler) Evaluate(ctx context.Context, w *rikv1alpha1.Workload) (why string, err error) {
	key := client.ObjectKeyFromObject(w)
	after, asks := revision.Fence(w)
	if !asks {
		return "", nil
	}
	uid, err := r.clusterOf(ctx, w.Namespace)
	if err != nil || uid == "" {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.siteLocked(uid)
	state, _ := fencing.AtController(s.lease.Proven(), after, r.config.Now())
	m := member{after: after, fenced: state == fencing.Closed}
	before, known := s.members[key]
	s.members[key] = m
	if !known || before.after != after {
		r.queue.Add(uid) // for the time at which the result changes
	}
	return s.why(m), nil
}

// why says why a Workload is fenced. It is empty if the Workload is not fenced.
func (s *site) why(m member) string {
	if !m.fenced {
		return ""
	}
	since := "the kcp that it came from has not answered yet"
	if proven := s.lease.Proven(); !proven.IsZero() {
		since = "the kcp that it came from has not answered since " + proven.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s; its instances are stopped until the kcp answers (%s=%s)", since, workloadv1alpha1.FenceAfterAnnotation, m.after)
}

// Age returns the age of the last proof of contact with the kcp of a namespace. fenced is false
// for a namespace that does not belong to a kcp: nothing in it is fenced.
func (r *Reconciler) Age(ctx context.Context, namespace string) (age time.Duration, proven, fenced bool, err error) {
	uid, err := r.clusterOf(ctx, namespace)
	if err != nil || uid == "" {
		return 0, false, false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	age, proven = r.siteLocked(uid).lease.Age(r.config.Now())
	return age, proven, true, nil
}

// clusterOf returns the UID of the Cluster upstream for which a namespace was created.
func (r *Reconciler) clusterOf(ctx context.Context, namespace string) (string, error) {
	now := r.config.Now()
	r.mu.Lock()
	known, ok := r.upstreamClusters[namespace]
	r.mu.Unlock()
	if ok && (known.clusterUID != "" || now.Sub(known.at) < askAgain) {
		return known.clusterUID, nil
	}
	uid, err := clusterOf(ctx, r.config.Client, namespace)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.upstreamClusters[namespace] = upstreamCluster{clusterUID: uid, at: now}
	return uid, nil
}

// clusterOf reads the namespace's locator. A malformed locator counts as missing.
func clusterOf(ctx context.Context, c client.Reader, namespace string) (string, error) {
	found := &corev1.Namespace{}
	err := c.Get(ctx, client.ObjectKey{Name: namespace}, found)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("finding the cluster that owns namespace %s, for a fence: %w", namespace, err)
	}
	var locator workloadv1alpha1.Locator
	if json.Unmarshal([]byte(found.Annotations[workloadv1alpha1.LocatorAnnotation]), &locator) != nil {
		return "", nil //nolint:nilerr // the comment above says so
	}
	return locator.ClusterUID, nil
}

// Ask is [Reconciler.Age] for a controller that is not active. It reads from the API server and
// uses the time written on the Lease.
func Ask(ctx context.Context, c client.Reader, namespace string, now time.Time) (age time.Duration, proven, fenced bool, err error) {
	uid, err := clusterOf(ctx, c, namespace)
	if err != nil || uid == "" {
		return 0, false, false, err
	}
	found := &coordinationv1.Lease{}
	err = c.Get(ctx, client.ObjectKey{Namespace: workloadv1alpha1.FenceNamespace, Name: workloadv1alpha1.FenceLeaseName(uid)}, found)
	if client.IgnoreNotFound(err) != nil {
		return 0, false, false, fmt.Errorf("reading the lease of cluster %s: %w", uid, err)
	}
	var lease fencing.Lease
	lease.Observe("", found.Annotations[workloadv1alpha1.FenceAnswerAnnotation], now)
	age, proven = lease.Age(now)
	return age, proven, true, nil
}

// reconcile calls Changed for the Workloads of one Cluster whose fence has closed or opened,
// and writes a challenge if one is due.
func (r *Reconciler) reconcile(ctx context.Context, uid string) (time.Duration, error) {
	changed, again, due := r.look(uid)
	for _, key := range changed {
		r.config.Changed(key)
	}
	if !due {
		return again, nil
	}
	return again, r.challenge(ctx, uid)
}

// look finds the Workloads to evaluate again, and the time until more of them change.
func (r *Reconciler) look(uid string) (changed []types.NamespacedName, again time.Duration, due bool) {
	now := r.config.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.siteLocked(uid)
	for key, m := range s.members {
		if w := r.config.Workloads.Get(key); w == nil || !asksForFence(w) {
			delete(s.members, key)
			continue
		}
		state, until := fencing.AtController(s.lease.Proven(), m.after, now)
		if m.fenced != (state == fencing.Closed) {
			changed = append(changed, key)
		}
		if left := until.Sub(now); state == fencing.Open && (again == 0 || left < again) {
			again = left
		}
	}
	return changed, again, s.due
}

func asksForFence(w *rikv1alpha1.Workload) bool {
	_, asks := revision.Fence(w)
	return asks
}

// challenge writes a new challenge. Its time is from before the write.
func (r *Reconciler) challenge(ctx context.Context, uid string) error {
	r.mu.Lock()
	s := r.siteLocked(uid)
	text := s.lease.Issue(r.config.Now(), r.config.Name())
	s.due = false // the watch reports whether the next one is due
	r.mu.Unlock()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{workloadv1alpha1.FenceChallengeAnnotation: text},
	}})
	if err != nil {
		return fmt.Errorf("encoding a challenge: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, writeTimeout, fmt.Errorf("no answer for %s", writeTimeout))
	defer cancel()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: workloadv1alpha1.FenceNamespace, Name: workloadv1alpha1.FenceLeaseName(uid),
	}}
	err = r.config.Client.Patch(ctx, lease, client.RawPatch(types.MergePatchType, patch))
	if client.IgnoreNotFound(err) != nil {
		r.mu.Lock()
		s.due = true
		r.mu.Unlock()
		return fmt.Errorf("setting a challenge on the lease of cluster %s: %w", uid, err)
	}
	return nil
}
