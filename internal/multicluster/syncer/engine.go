package syncer

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/reconcile"
	"rik.dev/rik/internal/wakeup"
)

// maxBackoff limits the delay before an object is tried again after a temporary error.
const maxBackoff = 15 * time.Second

// item is a key in the queue, with the name on one side.
type item struct {
	Key
	downstream bool
}

// engine is a syncer that has identified both sides.
type engine struct {
	config               *Config
	log                  *slog.Logger
	metrics              *metrics
	upstream, downstream *side
	identity             Identity
	namespaces           *namespaces
	queue                *reconcile.Queue[item]
	// A value in reportPokes requests a report, and a value in typePokes a check of the types,
	// before their time.
	reportPokes, typePokes wakeup.Signal

	// suspected is when a side was last suspected to be unreachable, in Unix nanoseconds.
	suspected atomic.Int64

	fence *fence
	slots *slots

	// changes are the changes upstream that were not copied yet.
	changes pending
	// backlog contains the objects to process before all pending work is known.
	backlog backlog

	mu sync.Mutex
	// looked is true after both sides have returned the types that they serve.
	looked bool
	// cluster is the last version that was read.
	cluster  *workloadv1alpha1.Cluster
	carriers map[schema.GroupResource]*carrier
	missing  []missingType
	breaker  *breaker
	// troubled are the types that cannot be read, as last logged.
	troubled map[schema.GroupResource]bool
	// settled is what was last applied, and what was owned after that. While both are the same,
	// there is nothing to apply, even if the server has changed the format of values.
	settled map[Key]fingerprint
	// reported is the last report of a problem upstream, with its time.
	reported map[Key]reportedProblem
	// unwritten are problems that were reported only by an event.
	unwritten map[Key]reportedProblem
}

func newEngine(s *Syncer, identity Identity, cluster *workloadv1alpha1.Cluster) *engine {
	e := &engine{
		config: &s.config, log: s.config.Logger, metrics: newMetrics(), changes: pending{since: map[Key]time.Time{}},
		upstream: s.upstream, downstream: s.downstream,
		identity: identity, namespaces: newNamespaces(identity, s.downstream),
		reportPokes: wakeup.New(), typePokes: wakeup.New(), cluster: cluster,
		carriers: map[schema.GroupResource]*carrier{}, settled: map[Key]fingerprint{}, reported: map[Key]reportedProblem{}, unwritten: map[Key]reportedProblem{},
		troubled: map[schema.GroupResource]bool{},
		breaker:  newBreaker(s.config.Deletes, time.Now()), fence: newFence(&s.config, time.Now()), slots: newSlots(s.config.Workers),
	}
	resumePauses(e.breaker, cluster)
	e.upstream.suspect, e.downstream.suspect = e.probeSoon, e.probeSoon
	e.queue = reconcile.New(reconcile.Options{
		Name: "syncer/" + identity.Cluster, Workers: s.config.Workers, MaxBackoff: maxBackoff, Logger: e.log,
	}, e.reconcile)
	return e
}

func (e *engine) run(ctx context.Context) error {
	e.log.Info("copying objects", "clusterUID", e.identity.ClusterUID, "upstreamUID", e.identity.Upstream)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.queue.Run(ctx) })
	group.Go(func() error { return e.watchCluster(ctx) })
	group.Go(func() error { return e.runTypes(ctx) })
	group.Go(func() error { return e.runReports(ctx) })
	group.Go(func() error { return e.runFence(ctx) })
	return group.Wait()
}

func (e *engine) carrier(resource schema.GroupResource) *carrier {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.carriers[resource]
}

// presentCluster returns the Cluster as it was last read. Callers must not change it.
func (e *engine) presentCluster() *workloadv1alpha1.Cluster {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cluster
}

func (e *engine) upstreamChanged(c *carrier, o *unstructured.Unstructured) {
	if i, ok := e.upstreamItem(c, o); ok {
		e.queue.Add(i)
	}
}

func (e *engine) downstreamChanged(c *carrier, o *unstructured.Unstructured) {
	i, ok := e.downstreamItem(c, o)
	if !ok {
		return
	}
	e.queue.Add(i)
	if !i.downstream {
		for _, up := range c.waitingFor(i.Namespace, o.GetName()) {
			e.queue.Add(item{Key: Key{Type: i.Type, Namespace: i.Namespace, Name: up.GetName()}})
		}
	}
}

// upstreamItem returns the queue item for an object that changed upstream. It returns false until
// the caches of its type are filled.
func (e *engine) upstreamItem(c *carrier, o *unstructured.Unstructured) (item, bool) {
	if o.GetNamespace() != "" {
		e.namespaces.learn(o.GetNamespace())
	}
	if !c.isSynced() {
		return item{}, false
	}
	key := Key{Type: c.Resource.GroupResource(), Namespace: o.GetNamespace(), Name: o.GetName()}
	e.changes.note(key, time.Now())
	return item{Key: key}, true
}

// downstreamItem is like upstreamItem, for an object downstream.
func (e *engine) downstreamItem(c *carrier, o *unstructured.Unstructured) (item, bool) {
	i := item{Key: Key{Type: c.Resource.GroupResource(), Namespace: o.GetNamespace(), Name: c.nameUpstream(o)}, downstream: true}
	if name, known := e.namespaces.known(o.GetNamespace()); known || o.GetNamespace() == "" {
		i.Namespace, i.downstream = name, false
	}
	return i, c.isSynced()
}

// lookAtAll queues all objects of a type after its caches are filled. Before that, differences
// between the sides mean nothing.
func (e *engine) lookAtAll(c *carrier) {
	look := func(i item, ok bool) {
		if ok {
			e.backlog.add(i)
			e.queue.Add(i)
		}
	}
	for _, informer := range c.upstream {
		for _, o := range informer.GetStore().List() {
			look(e.upstreamItem(c, o.(*unstructured.Unstructured)))
		}
	}
	for _, o := range c.downstream.GetStore().List() {
		look(e.downstreamItem(c, o.(*unstructured.Unstructured)))
	}
	c.enqueued.Store(true)
	e.log.Info("copying a type", "type", c.Resource.GroupResource().String(), "version", c.Resource.Version)
	e.reportPokes.Wake()
}

// total returns the number of copied objects in the cluster.
func (e *engine) total() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, c := range e.carriers {
		n += len(c.downstream.GetStore().ListKeys())
	}
	return n
}

// reconcile processes an item of the queue.
func (e *engine) reconcile(ctx context.Context, i item) (time.Duration, error) {
	if e.upstream.broken.Load() || e.downstream.broken.Load() {
		// Spread the retries, so that they do not all come at once when the server is back.
		return time.Second + rand.N(2*time.Second), nil
	}
	c := e.carrier(i.Type)
	if c == nil || !c.isSynced() {
		e.changes.take(i.Key)
		e.noDeletion(i.Key)
		e.backlog.looked(i)
		return 0, nil // queued again when a carrier for the type starts
	}
	if i.downstream {
		name, ours, err := e.namespaces.resolve(ctx, i.Namespace)
		if err == nil && ours {
			next := item{Key: Key{Type: i.Type, Namespace: name, Name: i.Name}}
			e.backlog.replace(i, next)
			e.queue.Add(next)
		}
		if err == nil {
			e.backlog.looked(i)
		}
		return 0, err
	}
	if !e.slots.take(i.Key, time.Now()) {
		return 0, nil // queued again when another object is done
	}
	defer func() {
		for _, key := range e.slots.give(i.Key) {
			e.queue.Add(item{Key: key})
		}
	}()
	p := newPass(e, c, i.Key)
	again, err := p.run(ctx)
	// An object that must stay, and cannot be copied, does not delay the counting of deletions.
	if err == nil || !p.mayBeDeletion() {
		e.backlog.looked(i)
	}
	if err != nil {
		if !p.changed.IsZero() {
			e.changes.note(i.Key, p.changed)
		}
		err = fmt.Errorf("copying %s: %w", i.Key, err)
	}
	return again, err
}
