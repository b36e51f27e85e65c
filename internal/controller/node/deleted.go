package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/instance"
)

const (
	// deletedName is the name of the ConfigMap that holds the record.
	deletedName = "deleted-nodes"
	// maxDeleted bounds the record: a ConfigMap holds 1 MiB, and each entry uses about 60 bytes.
	// The oldest entries are dropped first, because their certificates have most likely expired.
	maxDeleted = 10_000
)

// Deleted is the durable record of the Nodes that were deleted on purpose. A node with a
// certificate for one of them is ordered to stop all its instances. A node whose Node is in no
// record is not, because the datastore may have lost that Node.
type Deleted struct {
	client    client.Client
	namespace string
	now       func() time.Time

	// write serializes writes to the API server. It is held across requests, and mu never is.
	write sync.Mutex
	mu    sync.Mutex
	// uids is guarded by mu and replaced as a whole.
	uids map[string]string
}

// NewDeleted creates an empty record. Load fills it.
func NewDeleted(c client.Client, namespace string, now func() time.Time) *Deleted {
	return &Deleted{client: c, namespace: namespace, now: now}
}

// Load reads the record that an earlier controller stored.
func (d *Deleted) Load(ctx context.Context) error {
	var object corev1.ConfigMap
	err := d.client.Get(ctx, types.NamespacedName{Namespace: d.namespace, Name: deletedName}, &object)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the record of deleted nodes: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uids = object.Data
	return nil
}

// All returns the UIDs in the record.
func (d *Deleted) All() []types.UID {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]types.UID, 0, len(d.uids))
	for _, uid := range slices.Sorted(maps.Keys(d.uids)) {
		out = append(out, types.UID(uid))
	}
	return out
}

// Add adds UIDs and returns when the record is durable.
func (d *Deleted) Add(ctx context.Context, uids ...types.UID) error {
	d.write.Lock()
	defer d.write.Unlock()
	d.mu.Lock()
	next := maps.Clone(d.uids)
	d.mu.Unlock()
	if next == nil {
		next = map[string]string{}
	}
	changed := false
	for _, uid := range uids {
		if _, ok := next[string(uid)]; !ok {
			next[string(uid)], changed = d.now().UTC().Format(time.RFC3339), true
		}
	}
	if !changed {
		return nil
	}
	instance.KeepNewest(next, maxDeleted, d.now())
	if err := d.save(ctx, next); err != nil {
		return fmt.Errorf("storing the record of deleted nodes: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uids = next
	return nil
}

// save overwrites the object: only the active controller writes it.
func (d *Deleted) save(ctx context.Context, uids map[string]string) error {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: d.namespace, Name: deletedName}, Data: uids}
	err := d.client.Update(ctx, object)
	if !apierrors.IsNotFound(err) {
		return err
	}
	return d.client.Create(ctx, object)
}

// UIDs returns the UIDs whose certificates are valid for a Node: its own UID, and one that an
// operator has confirmed or that waits for a confirmation.
func UIDs(n *rikv1alpha1.Node) []types.UID {
	uids := []types.UID{n.UID}
	for _, key := range []string{rikv1alpha1.AnnotationConfirmedCertificate, rikv1alpha1.AnnotationUnconfirmedCertificate} {
		if uid := types.UID(n.Annotations[key]); uid != "" && !slices.Contains(uids, uid) {
			uids = append(uids, uid)
		}
	}
	return uids
}
