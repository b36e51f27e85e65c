package syncerauth

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/finalstate"
)

var clusterResource = workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")

// errClusterEnded is the cause with which a syncer's watches end.
var errClusterEnded = errors.New("the Cluster of this syncer does not exist any more")

// Clusters caches which Clusters exist. The credentials of a syncer are for one Cluster, by
// name and UID, and are valid only while it exists: see [Clusters.has]. The syncer's watches
// then end too: see [Clusters.during].
type Clusters struct {
	objects  metadata.Interface
	informer cache.SharedIndexInformer

	mu sync.Mutex
	// watches is guarded by mu. It holds the functions that end the open watches, by the
	// Cluster's UID.
	watches map[types.UID]map[*context.CancelCauseFunc]struct{}
}

// NewClusters creates a cache with a client that may read Clusters. The cache is empty before
// Run.
func NewClusters(objects metadata.Interface) (*Clusters, error) {
	c := &Clusters{
		objects: objects, watches: map[types.UID]map[*context.CancelCauseFunc]struct{}{},
		informer: metadatainformer.NewFilteredMetadataInformer(objects, clusterResource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer(),
	}
	_, err := c.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, now any) {
			if uid := uidOf(before); uid != uidOf(now) {
				c.end(uid)
			}
		},
		DeleteFunc: func(gone any) { c.end(uidOf(gone)) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching Clusters: %w", err)
	}
	return c, nil
}

// Run follows the Clusters until ctx ends.
func (c *Clusters) Run(ctx context.Context) { c.informer.RunWithContext(ctx) }

func uidOf(object any) types.UID {
	if o, ok := finalstate.As[metav1.Object](object); ok {
		return o.GetUID()
	}
	return ""
}

// has reports whether a Cluster of that name and UID exists. If the cache does not have it, has
// reads from the API server, because the Cluster may be newer than the cache.
func (c *Clusters) has(ctx context.Context, name string, uid types.UID) (bool, error) {
	if uid == "" {
		return false, nil
	}
	if known, ok, err := c.informer.GetStore().GetByKey(name); err == nil && ok && uidOf(known) == uid {
		return true, nil
	}
	found, err := c.objects.Resource(clusterResource).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading the Cluster of a syncer: %w", err)
	}
	return found.UID == uid, nil
}

// during returns a context that ends with the Cluster of that UID, and a function to call when
// the context is no longer needed. The caller must check afterward that the Cluster exists,
// because it may have been deleted before the call.
func (c *Clusters) during(ctx context.Context, uid types.UID) (inner context.Context, release func()) {
	inner, cancel := context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watches[uid] == nil {
		c.watches[uid] = map[*context.CancelCauseFunc]struct{}{}
	}
	c.watches[uid][&cancel] = struct{}{}
	return inner, func() {
		cancel(nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watches[uid], &cancel)
		if len(c.watches[uid]) == 0 {
			delete(c.watches, uid)
		}
	}
}

func (c *Clusters) end(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cancel := range c.watches[uid] {
		(*cancel)(errClusterEnded)
	}
}
