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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/reconcile"
)

// maxBackoff bounds how late the end of a passing fault is noticed for one object.
const maxBackoff = 15 * time.Second

// item is a key in the queue, by its name on one side.
type item struct {
	Key
	downstream bool
}

// engine is a syncer that knows what it stands between.
type engine struct {
	config               *Config
	log                  *slog.Logger
	metrics              *metrics
	upstream, downstream *side
	identity             Identity
	namespaces           *namespaces
	queue                *reconcile.Queue[item]
	// A poke asks for a report, or a look at the types, before its time.
	reportPokes, typePokes chan struct{}

	// suspected is when a side was last suspected to be out of reach, in Unix nanoseconds.
	suspected atomic.Int64

	fence *fence
	slots *slots

	// changes are those upstream that are not carried yet.
	changes pending
	// backlog is what has to be looked at before it is known what there is to do.
	backlog backlog

	mu sync.Mutex
	// looked: both sides have said which types they serve.
	looked bool
	// cluster is the latest that was read.
	cluster  *workloadv1alpha1.Cluster
	carriers map[schema.GroupResource]*carrier
	missing  []missingType
	breaker  *breaker
	// troubled are the types that cannot be read, as they were last told of in the log.
	troubled map[schema.GroupResource]bool
	// settled is what was last applied, and owned afterward: while both are the same
	// there is nothing to apply, whatever the server made of the values.
	settled map[Key]fingerprint
	// reported is what was last said upstream of a problem, and when.
	reported map[Key]telling
	// unwritten are problems that were told by an event alone.
	unwritten map[Key]telling
}

func newEngine(s *Syncer, identity Identity, cluster *workloadv1alpha1.Cluster) *engine {
	e := &engine{
		config: &s.config, log: s.config.Logger, metrics: newMetrics(), changes: pending{since: map[Key]time.Time{}},
		upstream: s.upstream, downstream: s.downstream,
		identity: identity, namespaces: newNamespaces(identity, s.downstream),
		reportPokes: make(chan struct{}, 1), typePokes: make(chan struct{}, 1), cluster: cluster,
		carriers: map[schema.GroupResource]*carrier{}, settled: map[Key]fingerprint{}, reported: map[Key]telling{}, unwritten: map[Key]telling{},
		troubled: map[schema.GroupResource]bool{},
		breaker:  newBreaker(s.config.Deletes, time.Now()), fence: newFence(&s.config, time.Now()), slots: newSlots(s.config.Workers),
	}
	if c := meta.FindStatusCondition(cluster.Status.Conditions, workloadv1alpha1.ConditionDeletesPaused); c != nil && c.Status == metav1.ConditionTrue {
		spent := ""
		if c.Reason == workloadv1alpha1.ReasonOldGoAhead {
			spent = cluster.Annotations[workloadv1alpha1.AllowDeletesAnnotation]
		}
		e.breaker.resume(spent)
	}
	e.upstream.suspect, e.downstream.suspect = e.probeSoon, e.probeSoon
	e.queue = reconcile.New(reconcile.Options{
		Name: "syncer/" + identity.Cluster, Workers: s.config.Workers, MaxBackoff: maxBackoff, Logger: e.log,
	}, e.reconcile)
	return e
}

func (e *engine) run(ctx context.Context) error {
	e.log.Info("carrying objects", "clusterUID", e.identity.ClusterUID, "upstreamUID", e.identity.Upstream)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.queue.Run(ctx) })
	group.Go(func() error { return e.watchCluster(ctx) })
	group.Go(func() error { return e.runTypes(ctx) })
	group.Go(func() error { return e.runReports(ctx) })
	group.Go(func() error { return e.runFence(ctx) })
	return group.Wait()
}

// poke wakes up who waits on a channel with room for one.
func poke(pokes chan<- struct{}) {
	select {
	case pokes <- struct{}{}:
	default:
	}
}

func (e *engine) carrier(resource schema.GroupResource) *carrier {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.carriers[resource]
}

// presentCluster is the Cluster as it was last read. Nobody changes it.
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

// upstreamItem is what to look at for an object that changed; nothing before the caches
// of its type are filled.
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

// downstreamItem is upstreamItem for an object on the other side.
func (e *engine) downstreamItem(c *carrier, o *unstructured.Unstructured) (item, bool) {
	i := item{Key: Key{Type: c.Resource.GroupResource(), Namespace: o.GetNamespace(), Name: c.nameUpstream(o)}, downstream: true}
	if name, known := e.namespaces.known(o.GetNamespace()); known || o.GetNamespace() == "" {
		i.Namespace, i.downstream = name, false
	}
	return i, c.isSynced()
}

// lookAtAll is for when the caches of a type are filled: before that, what one side has
// and the other has not means nothing.
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
	e.log.Info("a type is carried", "type", c.Resource.GroupResource().String(), "version", c.Resource.Version)
	poke(e.reportPokes)
}

// total is how many objects are in the cluster, as far as they are carried.
func (e *engine) total() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, c := range e.carriers {
		n += len(c.downstream.GetStore().ListKeys())
	}
	return n
}

// reconcile is the queue's function.
func (e *engine) reconcile(ctx context.Context, i item) (time.Duration, error) {
	if e.upstream.broken.Load() || e.downstream.broken.Load() {
		// Spread out, so that not everything comes at once when the server is back.
		return time.Second + rand.N(2*time.Second), nil
	}
	c := e.carrier(i.Type)
	if c == nil || !c.isSynced() {
		e.changes.take(i.Key)
		e.noDeletion(i.Key)
		e.backlog.looked(i)
		return 0, nil // looked at when the type is carried
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
		return 0, nil // it comes again when another one is done
	}
	defer func() {
		for _, key := range e.slots.give(i.Key) {
			e.queue.Add(item{Key: key})
		}
	}()
	p := newPass(e, c, i.Key)
	again, err := p.run(ctx)
	// What is to stay and cannot be carried keeps nobody from counting the deletions.
	if err == nil || !p.mayBeDeletion() {
		e.backlog.looked(i)
	}
	if err != nil {
		if !p.changed.IsZero() {
			e.changes.note(i.Key, p.changed)
		}
		err = fmt.Errorf("carrying %s: %w", i.Key, err)
	}
	return again, err
}
