// Package objects holds the objects that instances refer to: the templates of their revisions,
// ConfigMaps and Secrets. All of them come from the controller's stream. The caller passes
// answers to Deliver, and takes the requests from PendingRequests.
//
// Templates are immutable and saved to disk, so that a node can start the instances that it was
// ordered to run while the controller is down. ConfigMaps and Secrets stay in memory, and are
// removed with the last instance that refers to them.
package objects

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"rik.dev/rik/internal/fencing"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/wakeup"
)

const (
	// firstRetry and maxRetry bound the pause before a template that could not be fetched is
	// requested again. The controller may be a moment behind the scheduler.
	firstRetry = time.Second
	maxRetry   = 30 * time.Second
)

// Key identifies an object.
type Key struct {
	Kind            nodev1.Kind
	Namespace, Name string
}

// String returns a form for messages, such as "secret shop/password".
func (k Key) String() string {
	kind := map[nodev1.Kind]string{
		nodev1.Kind_KIND_REVISION: "workloadrevision", nodev1.Kind_KIND_CONFIG_MAP: "configmap", nodev1.Kind_KIND_SECRET: "secret",
		nodev1.Kind_KIND_FENCE: "fence",
	}[k.Kind]
	return kind + " " + k.Namespace + "/" + k.Name
}

// Config configures a [Store].
type Config struct {
	// Dir is the directory for templates. It is created if missing. Required.
	Dir string
	// Changed is called, without a lock held, after a template or the proof of a fence arrived,
	// or could not be fetched. It must not block. It may be nil.
	Changed func()
	// Updated is called, without a lock held, after the content of a known ConfigMap or Secret
	// has changed, so that mounts of it can be updated. It must not block. It may be nil.
	Updated func()
	// Logger logs what could not be saved. nil discards logs.
	Logger *slog.Logger
}

// Store implements instance.Objects. Its methods are safe for concurrent use.
type Store struct {
	cfg Config

	mu        sync.Mutex
	entries   map[Key]instance.Entries  // ConfigMaps and Secrets as last received
	waiting   map[Key]*answer           // for readers of what is not in entries
	revisions map[Key]*revision         // templates
	fences    map[string]*fencing.Proof // by namespace
	asked     []Key                     // to be sent; no key twice
	asking    map[Key]bool              // the keys in asked
	uses      map[string][]Key          // by UID
	users     map[Key]int               // how many UIDs refer to a key
	wake      wakeup.Signal             // set while asked is not empty
}

// answer is what the readers of one key wait for. Its other fields are set before done is closed
// and never afterward.
type answer struct {
	done    chan struct{}
	entries instance.Entries
	err     error
}

// New opens the store and creates its directory.
func New(cfg Config) (*Store, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	if cfg.Updated == nil {
		cfg.Updated = func() {}
	}
	s := &Store{
		cfg: cfg, entries: map[Key]instance.Entries{}, revisions: map[Key]*revision{}, asking: map[Key]bool{},
		uses: map[string][]Key{}, users: map[Key]int{}, fences: map[string]*fencing.Proof{}, wake: wakeup.New(), waiting: map[Key]*answer{},
	}
	if err := makeDir(cfg.Dir); err != nil {
		return nil, err
	}
	return s, nil
}

// ConfigMap implements instance.Objects.
func (s *Store) ConfigMap(ctx context.Context, namespace, name string) (instance.Entries, error) {
	return s.read(ctx, Key{nodev1.Kind_KIND_CONFIG_MAP, namespace, name})
}

// Secret implements instance.Objects.
func (s *Store) Secret(ctx context.Context, namespace, name string) (instance.Entries, error) {
	return s.read(ctx, Key{nodev1.Kind_KIND_SECRET, namespace, name})
}

// read answers from memory, or requests the object and waits. A refusal ends the wait. The next
// call sends another request.
func (s *Store) read(ctx context.Context, key Key) (instance.Entries, error) {
	s.mu.Lock()
	if have, ok := s.entries[key]; ok {
		defer s.mu.Unlock()
		return copyOf(have), nil
	}
	a := s.waiting[key]
	if a == nil {
		a = &answer{done: make(chan struct{})}
		s.waiting[key] = a
	}
	s.askLocked(key)
	s.mu.Unlock()

	select {
	case <-ctx.Done():
		return instance.Entries{}, fmt.Errorf("waiting for %s: %w", key, context.Cause(ctx))
	case <-a.done:
	}
	if a.err != nil {
		return instance.Entries{}, fmt.Errorf("reading %s: %w", key, a.err)
	}
	return copyOf(a.entries), nil
}

// copyOf copies the map for the caller. The bytes are never changed in place.
func copyOf(e instance.Entries) instance.Entries {
	e.Data = maps.Clone(e.Data)
	return e
}

func (s *Store) askLocked(key Key) {
	if s.asking[key] {
		return
	}
	s.asking[key] = true
	s.asked = append(s.asked, key)
	s.wake.Wake()
}

// HasRequests returns a channel that is readable when PendingRequests has requests.
func (s *Store) HasRequests() <-chan struct{} { return s.wake }

// PendingRequests takes the pending requests to the controller.
func (s *Store) PendingRequests() []*nodev1.Get {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := s.asked
	s.asked = nil
	clear(s.asking)
	gets := make([]*nodev1.Get, 0, len(keys))
	for _, k := range keys {
		gets = append(gets, &nodev1.Get{Kind: k.Kind, Namespace: k.Namespace, Name: k.Name})
	}
	return gets
}

// Reconnected requests everything again that may change or is awaited. The controller's
// subscriptions end with the stream.
func (s *Store) Reconnected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range slices.SortedFunc(maps.Keys(s.entries), compare) {
		s.askLocked(key)
	}
	for _, key := range slices.SortedFunc(maps.Keys(s.waiting), compare) {
		s.askLocked(key)
	}
	for _, p := range s.fences {
		p.Forget() // a request on the last stream gets no answer
	}
	for _, key := range slices.SortedFunc(maps.Keys(s.revisions), compare) {
		if r := s.revisions[key]; r.template == nil && r.missing {
			r.pending = true
			s.askLocked(key)
		}
	}
}

// Deliver handles an answer, or a later version of one, from the controller.
func (s *Store) Deliver(object *nodev1.Object) {
	key := Key{object.GetKind(), object.GetNamespace(), object.GetName()}
	switch key.Kind {
	case nodev1.Kind_KIND_REVISION:
		s.deliverRevision(key, object)
	case nodev1.Kind_KIND_CONFIG_MAP, nodev1.Kind_KIND_SECRET:
		if s.deliverEntries(key, object) {
			s.cfg.Updated()
		}
	case nodev1.Kind_KIND_FENCE:
		s.deliverFence(key, object)
	default:
		s.cfg.Logger.Warn("the controller sent an object of an unknown kind", "kind", int32(key.Kind), "namespace", key.Namespace, "name", key.Name)
	}
}

// deliverEntries stores the content. It reports whether the content of a known object has
// changed.
func (s *Store) deliverEntries(key Key, object *nodev1.Object) (updated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, held := s.entries[key]
	a := s.waiting[key]
	if !held && a == nil {
		return false // no instance refers to it any more
	}
	got := instance.Entries{Found: object.GetFound(), Type: object.GetType(), Data: object.GetEntries()}
	var err error
	if object.GetError() != "" {
		// An object that the node may no longer read must not be returned either.
		delete(s.entries, key)
		err = fmt.Errorf("the controller answered: %s", object.GetError())
	} else {
		s.entries[key] = got
	}
	if a != nil {
		a.entries, a.err = got, err
		close(a.done)
		delete(s.waiting, key)
	}
	// A new stream sends everything again, most of it unchanged.
	return held && err == nil && !same(before, got)
}

func same(a, b instance.Entries) bool {
	return a.Found == b.Found && a.Type == b.Type && maps.EqualFunc(a.Data, b.Data, bytes.Equal)
}

func compare(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}
