package follower

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/cache"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/reconcile"
)

// Leaves answers about the leaves of roots and about clusters. It answers from memory. Its methods
// may be called at any time and from several goroutines. They must not block or call back.
type Leaves interface {
	// Needing returns the demand of the leaves that need an object, with one Demand for each type
	// of leaf. For a Service, selector is its selector, and the leaves whose pods match it need it
	// too. It includes types whose objects are still being read. A leaf that is found exists. If
	// none is found, that proves nothing.
	Needing(k key.Follower, selector map[string]string) []Demand
	// Behind returns the clusters with leaves of a root that is a backend of an Ingress.
	Behind(namespace string, backend splitter.Reference) []string
	// IsRolling reports whether a leaf of one of the types does not run its current spec yet in a
	// cluster.
	IsRolling(namespace, cluster string, types []string) bool
	// Read returns the types whose objects were read, and whether these are all types.
	Read() (types []string, all bool)
	// Takes reports whether the syncer of a cluster copies a type. It returns true while that is
	// not known.
	Takes(cluster string, resource schema.GroupResource) bool
}

// Demand is the clusters and types of leaves that need an object. Both may have duplicates.
type Demand struct {
	Clusters, Types []string
}

// add adds another demand.
func (d *Demand) add(clusters, types []string) {
	d.Clusters, d.Types = append(d.Clusters, clusters...), append(d.Types, types...)
}

// Config configures Followers. All fields are required.
type Config struct {
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
	Leaves   Leaves
	// Changed is called for a follower that is new, has changed or was deleted. before is nil for a
	// new one, and now is nil for a deleted one. It must not block.
	Changed func(before, now *Object)
	// Sent is called after each write.
	Sent func()
	// FieldManager is the field manager of the writes.
	FieldManager string
	// Workers is how many followers are processed at once.
	Workers int
	// ReleaseDelay is how long an unneeded follower stays.
	ReleaseDelay time.Duration
	Logger       *slog.Logger
	Now          func() time.Time
}

// Followers are all followers of a kcp. New creates them.
type Followers struct {
	config Config
	queue  *reconcile.Queue[key.Follower]
	memory *memory

	mu sync.RWMutex
	// caches are the caches by kind. mu guards them. Those of the core types are always there.
	caches map[string]*objects
}

// New creates the caches of the core types. It does not connect to the kcp yet.
func New(config Config) (*Followers, error) {
	f := &Followers{config: config, memory: newMemory(), caches: map[string]*objects{}}
	f.queue = reconcile.New(reconcile.Options{Name: "split-needs", Workers: config.Workers, Logger: config.Logger}, f.reconcile)
	return f, f.newCoreObjects()
}

// Fill fills the caches of the core types and updates them until ctx ends.
func (f *Followers) Fill(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for kind := range coreKinds {
		group.Go(func() error {
			f.of(kind).RunWithContext(ctx)
			return nil
		})
	}
	return group.Wait()
}

// HasSynced reports whether Fill has filled all caches.
func (f *Followers) HasSynced() bool {
	for kind := range coreKinds {
		if !f.of(kind).HasSynced() {
			return false
		}
	}
	return true
}

// Run sends followers until ctx ends. Call it after the caches were filled.
func (f *Followers) Run(ctx context.Context) error { return f.queue.Run(ctx) }

// CheckAll queues every follower.
func (f *Followers) CheckAll() {
	for _, o := range f.all() {
		for _, follower := range cache.List[Object](o) {
			f.queue.Add(follower.Key())
		}
	}
}

// CheckNeeds queues the followers that a leaf needs: those to which it refers, and the Services of
// its pods.
func (f *Followers) CheckNeeds(namespace string, needs []splitter.Need, pods []labels.Labels) {
	for _, k := range f.neededBy(namespace, needs, pods) {
		f.queue.Add(k)
	}
}

// CheckBackend queues the Ingresses that have a root as a backend, after the leaves of that root
// changed.
func (f *Followers) CheckBackend(kind schema.GroupKind, namespace, name string) {
	for _, ingress := range f.of(KindIngress).find(referenceIndex, key.Name(namespace, name)) {
		if slices.ContainsFunc(ingress.refs, func(ref splitter.Reference) bool { return ref.Name == name && ref.Is(kind) }) {
			f.queue.Add(ingress.Key())
		}
	}
}

// changed queues a follower, the objects that it needs or needed before, and the Ingresses of a
// Service.
func (f *Followers) changed(before, now *Object) {
	present := now
	if present == nil {
		present = before
	}
	k := present.Key()
	if now != nil {
		f.queue.Add(k)
	}
	for _, o := range []*Object{before, now} {
		if o == nil {
			continue
		}
		for _, need := range key.OfNeeds(k.Namespace, o.Needs) {
			f.queue.Add(need)
		}
	}
	if k.Kind == splitter.KindService {
		for _, ingress := range f.of(KindIngress).find(needIndex, k.String()) {
			f.queue.Add(ingress.Key())
		}
	}
	f.config.Changed(before, now)
}

// neededBy returns the keys of the objects to which a leaf refers, and of the Services of its pods.
func (f *Followers) neededBy(namespace string, needs []splitter.Need, pods []labels.Labels) []key.Follower {
	keys := key.OfNeeds(namespace, needs)
	services := f.of(splitter.KindService)
	for _, pod := range pods {
		set, _ := pod.(labels.Set)
		for name, value := range set {
			for _, s := range services.find(selectorIndex, key.Pod(namespace, name, value)) {
				if labels.SelectorFromSet(s.selector).Matches(pod) {
					keys = append(keys, s.Key())
				}
			}
		}
	}
	return keys
}
