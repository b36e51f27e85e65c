package instance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// labelTombstones marks the ConfigMaps that hold tombstones. Their names are the nodes' names
	// with a prefix.
	labelTombstones  = "rik.dev/tombstones"
	tombstonesPrefix = "tombstones."
	// tombstoneLife is how long a tombstone is kept. A node that returns later waits for an
	// operator, because the cluster no longer has a record of its instances.
	tombstoneLife = 90 * 24 * time.Hour
	// maxTombstones is the maximum for one node. A ConfigMap holds 1 MiB, and each tombstone uses
	// about 60 bytes.
	maxTombstones = 10_000
)

// Tombstone is the UID of an instance that was given up while its node may still run it.
type Tombstone struct {
	UID  types.UID
	Node string
}

// Tombstones stores, durably, the UIDs that a node must not run although it has not confirmed
// their end. There is one ConfigMap per node in the system's namespace.
type Tombstones struct {
	client    client.Client
	namespace string
	now       func() time.Time

	// write serializes writes to the API server. It is held across requests, and mu never is.
	write sync.Mutex
	mu    sync.Mutex
	// byNode is guarded by mu.
	byNode map[string]map[string]string
}

// NewTombstones creates an empty list. Load fills it.
func NewTombstones(c client.Client, namespace string, now func() time.Time) *Tombstones {
	return &Tombstones{client: c, namespace: namespace, now: now, byNode: map[string]map[string]string{}}
}

// Load reads the tombstones that an earlier controller stored.
func (t *Tombstones) Load(ctx context.Context) error {
	var list corev1.ConfigMapList
	err := t.client.List(ctx, &list, client.InNamespace(t.namespace), client.HasLabels{labelTombstones})
	if err != nil {
		return fmt.Errorf("listing tombstones: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byNode = map[string]map[string]string{}
	for i := range list.Items {
		c := &list.Items[i]
		if len(c.Data) > 0 {
			t.byNode[strings.TrimPrefix(c.Name, tombstonesPrefix)] = maps.Clone(c.Data)
		}
	}
	return nil
}

// All returns the tombstones by node and UID.
func (t *Tombstones) All() []Tombstone {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Tombstone
	for _, node := range slices.Sorted(maps.Keys(t.byNode)) {
		for _, uid := range slices.Sorted(maps.Keys(t.byNode[node])) {
			out = append(out, Tombstone{UID: types.UID(uid), Node: node})
		}
	}
	return out
}

// Has reports whether there is a tombstone.
func (t *Tombstones) Has(node string, uid types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.byNode[node][string(uid)]
	return ok
}

// Add stores a tombstone and returns when it is durable.
func (t *Tombstones) Add(ctx context.Context, node string, uid types.UID) error {
	return t.change(ctx, node, func(uids map[string]string) bool {
		if _, ok := uids[string(uid)]; ok {
			return false
		}
		uids[string(uid)] = t.now().UTC().Format(time.RFC3339)
		prune(uids, t.now())
		return true
	})
}

// Confirm removes a tombstone: its node reported that no part of the instance is left.
func (t *Tombstones) Confirm(ctx context.Context, node string, uid types.UID) error {
	return t.change(ctx, node, func(uids map[string]string) bool {
		_, ok := uids[string(uid)]
		delete(uids, string(uid))
		return ok
	})
}

// prune drops tombstones that are too old, and the oldest if there are too many.
func prune(uids map[string]string, now time.Time) {
	oldest := now.Add(-tombstoneLife).UTC().Format(time.RFC3339)
	maps.DeleteFunc(uids, func(_, since string) bool { return since < oldest })
	KeepNewest(uids, maxTombstones, now)
}

// KeepNewest drops the oldest entries above the limit. The values are times in RFC 3339 and
// UTC. A time later than now comes from a clock that was ahead. It is set to now, so that it
// does not outlive later entries.
func KeepNewest(uids map[string]string, limit int, now time.Time) {
	latest := now.UTC().Format(time.RFC3339)
	for uid, since := range uids {
		uids[uid] = min(since, latest)
	}
	if len(uids) <= limit {
		return
	}
	order := slices.SortedFunc(maps.Keys(uids), func(a, b string) int { return strings.Compare(uids[a]+a, uids[b]+b) })
	for _, uid := range order[:len(uids)-limit] {
		delete(uids, uid)
	}
}

func (t *Tombstones) change(ctx context.Context, node string, edit func(map[string]string) bool) error {
	t.write.Lock()
	defer t.write.Unlock()
	t.mu.Lock()
	uids := maps.Clone(t.byNode[node])
	t.mu.Unlock()
	if uids == nil {
		uids = map[string]string{}
	}
	if !edit(uids) {
		return nil
	}
	if err := t.save(ctx, node, uids); err != nil {
		return fmt.Errorf("storing the tombstones of node %q: %w", node, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byNode[node] = uids
	if len(uids) == 0 {
		delete(t.byNode, node)
	}
	return nil
}

// save overwrites the object: only the active controller writes these objects.
func (t *Tombstones) save(ctx context.Context, node string, uids map[string]string) error {
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: t.namespace, Name: tombstonesPrefix + node,
			Labels: map[string]string{labelTombstones: "true"},
		},
		Data: uids,
	}
	if len(uids) == 0 {
		return client.IgnoreNotFound(t.client.Delete(ctx, object))
	}
	err := t.client.Update(ctx, object)
	if !apierrors.IsNotFound(err) {
		return err
	}
	return t.client.Create(ctx, object)
}
