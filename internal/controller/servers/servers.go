// Package servers keeps the list of the servers of a cluster. Nodes and clients get the list, so
// that they can use another server when theirs has died.
//
// A server is an annotation on a ConfigMap in the system namespace. Its lifetime is that of the
// server's membership, not that of its process.
//
// Reads: configmaps with the label of servers. Writes: the same.
package servers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/internal/finalstate"
	"rik.dev/rik/internal/rpc/nodev1"
	wire "rik.dev/rik/internal/rpc/servers"
)

const (
	// Namespace is the namespace of the ConfigMaps.
	Namespace = "rik-system"
	// Label marks them. A backup leaves them out: the servers of a restored cluster are others.
	Label = "rik.dev/server"

	annotation = "rik.dev/server"
	namePrefix = "server-"
	// maxName leaves room for the prefix in the name of the ConfigMap.
	maxName = 63
)

// Errors of Join and Remove.
var (
	// ErrTaken means that another server has the name.
	ErrTaken = errors.New("a server with this name is part of the cluster")
	// ErrName means that a name cannot be used.
	ErrName = errors.New("not a name for a server")
	// ErrUnknown means that no server has the name.
	ErrUnknown = errors.New("no server has this name")
)

// Config configures a Roster.
type Config struct {
	// Client reads and writes without a cache. Required.
	Client client.Client
	// Informers report changes of the metadata of ConfigMaps. Required.
	Informers cache.Informers
	// Holder returns the identity of the active controller, and a channel that is closed when that
	// changes. Required.
	Holder func() (string, <-chan struct{})
	Now    func() time.Time
	Logger *slog.Logger
}

// Roster is the list of the servers.
type Roster struct {
	cfg Config

	mu      sync.Mutex
	servers map[string]entry
	changed chan struct{} // closed and replaced at each change
	waiting map[string]string
}

type entry struct {
	wire.Server
	revision int64
}

// New creates a roster, which is empty until Run has read the servers.
func New(cfg Config) *Roster {
	return &Roster{cfg: cfg, servers: map[string]entry{}, changed: make(chan struct{}), waiting: map[string]string{}}
}

// CheckName returns ErrName for a name that no server can have.
func CheckName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 || len(name) > maxName {
		return fmt.Errorf("%w: %q must have at most %d lower-case letters, digits, dots and hyphens", ErrName, name, maxName)
	}
	return nil
}

// Run follows the servers until ctx ends. The caller starts the informers.
func (r *Roster) Run(ctx context.Context) error {
	meta := &metav1.PartialObjectMetadata{}
	meta.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	informer, err := r.cfg.Informers.GetInformer(ctx, meta)
	if err != nil {
		return fmt.Errorf("watching the servers: %w", err)
	}
	observe := func(object any) {
		if o, ok := finalstate.As[metav1.Object](object); ok && of(o) {
			r.observe(o)
		}
	}
	handle, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: observe, UpdateFunc: func(_, object any) { observe(object) },
		DeleteFunc: func(object any) {
			if o, ok := finalstate.As[metav1.Object](object); ok && of(o) {
				r.remove(o.GetName())
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching the servers: %w", err)
	}
	<-ctx.Done()
	return informer.RemoveEventHandler(handle)
}

func of(o metav1.Object) bool {
	return o.GetNamespace() == Namespace && o.GetLabels()[Label] != ""
}

func (r *Roster) observe(o metav1.Object) {
	s, err := parse(o)
	if err != nil {
		r.cfg.Logger.Warn("ignoring a server that cannot be read", "configmap", o.GetName(), "err", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.servers[o.GetName()] = s
	r.wakeLocked()
}

func (r *Roster) remove(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.servers, name)
	r.wakeLocked()
}

func (r *Roster) wakeLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func parse(o metav1.Object) (entry, error) {
	e := entry{}
	if err := json.Unmarshal([]byte(o.GetAnnotations()[annotation]), &e.Server); err != nil {
		return e, fmt.Errorf("reading annotation %s: %w", annotation, err)
	}
	revision, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	e.revision = revision
	return e, err
}

// view is the list at one time. One of the channels is closed when it changes.
type view struct {
	servers  []wire.Server // by name, without those that were removed
	active   string        // the name of the active one; "" if it is not known
	revision int64
	changed  [2]<-chan struct{}
}

func (r *Roster) view() view {
	holder, holderChanged := r.cfg.Holder()
	r.mu.Lock()
	defer r.mu.Unlock()
	v := view{changed: [2]<-chan struct{}{r.changed, holderChanged}}
	for _, e := range r.servers {
		v.revision = max(v.revision, e.revision)
		if e.Removed != nil {
			continue
		}
		v.servers = append(v.servers, e.Server)
		if holder != "" && e.Identity == holder {
			v.active = e.Name
		}
	}
	slices.SortFunc(v.servers, func(a, b wire.Server) int { return strings.Compare(a.Name, b.Name) })
	return v
}

// Follow sends the list to a node, and again at each change, until ctx ends or send fails. A single
// server sends nothing.
func (r *Roster) Follow(ctx context.Context, send func(*nodev1.Servers) error) error {
	for {
		v := r.view()
		if len(v.servers) > 1 {
			if err := send(v.message()); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-v.changed[0]:
		case <-v.changed[1]:
		}
	}
}

// Watch calls changed with the servers, and again at each change of the list, until ctx ends. It is
// not called for a single server.
func (r *Roster) Watch(ctx context.Context, changed func([]wire.Server)) {
	several := false
	var last []wire.Server
	for {
		v := r.view()
		several = several || len(v.servers) > 1
		if several && !slices.Equal(v.servers, last) {
			changed(v.servers)
			last = v.servers
		}
		select {
		case <-ctx.Done():
			return
		case <-v.changed[0]:
		}
	}
}

func (v view) message() *nodev1.Servers {
	m := &nodev1.Servers{Revision: v.revision, Active: v.active}
	for _, s := range v.servers {
		m.Servers = append(m.Servers, &nodev1.ServerAddress{Name: s.Name, Nodes: s.Nodes, Workers: s.Workers, Api: s.API})
	}
	return m
}

// Register writes a server's own entry at its start. It keeps the time of the join.
func (r *Roster) Register(ctx context.Context, own wire.Server) error {
	return r.update(ctx, own.Name, func(stored *wire.Server) (bool, error) {
		joined := stored.Joined
		if stored.Name == "" {
			joined = r.cfg.Now().UTC().Truncate(time.Second)
		}
		removed := stored.Removed
		if own.Member != stored.Member && own.Member != "" {
			removed = nil // it has joined again
		}
		next := own
		next.Joined, next.Removed = joined, removed
		changed := next != *stored
		*stored = next
		return changed, nil
	})
}

// Join adds a server that asks to join. It may ask again until its member has started.
func (r *Roster) Join(ctx context.Context, asking wire.Server) error {
	if err := CheckName(asking.Name); err != nil {
		return err
	}
	return r.update(ctx, asking.Name, func(stored *wire.Server) (bool, error) {
		switch {
		case stored.Name == "":
		case stored.Removed != nil:
			return false, fmt.Errorf("%w: it is being removed; try again in a moment", ErrTaken)
		case stored.Identity != "" || stored.Peer != asking.Peer:
			return false, fmt.Errorf("%w: use another --server-name, or run \"rikctl server replace %s\" first if the server is lost", ErrTaken, asking.Name)
		default:
			return false, nil
		}
		asking.Joined = r.cfg.Now().UTC().Truncate(time.Second)
		*stored = asking
		return true, nil
	})
}

// Remove marks a server as removed. Forget deletes it, when its member is gone.
func (r *Roster) Remove(ctx context.Context, name string) (wire.Server, error) {
	var out wire.Server
	err := r.update(ctx, name, func(stored *wire.Server) (bool, error) {
		if stored.Name == "" {
			return false, fmt.Errorf("%w: %q", ErrUnknown, name)
		}
		if stored.Removed != nil {
			out = *stored
			return false, nil
		}
		now := r.cfg.Now().UTC().Truncate(time.Second)
		stored.Removed = &now
		out = *stored
		return true, nil
	})
	return out, err
}

// Forget deletes the entry of a removed server.
func (r *Roster) Forget(ctx context.Context, name string) error {
	err := r.cfg.Client.Delete(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: namePrefix + name}})
	return client.IgnoreNotFound(err)
}

// update reads an entry, which is the zero value if there is none, and writes it if change returns
// true.
func (r *Roster) update(ctx context.Context, name string, change func(*wire.Server) (bool, error)) error {
	retriable := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err := retry.OnError(retry.DefaultBackoff, retriable, func() error {
		object := &corev1.ConfigMap{}
		err := r.cfg.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: namePrefix + name}, object)
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		fresh := err != nil
		var stored wire.Server
		if !fresh {
			e, err := parse(object)
			if err != nil {
				return err
			}
			stored = e.Server
		}
		write, err := change(&stored)
		if err != nil || !write {
			return err
		}
		text, err := json.Marshal(stored)
		if err != nil {
			return err
		}
		object.Namespace, object.Name = Namespace, namePrefix+name
		metav1.SetMetaDataLabel(&object.ObjectMeta, Label, "true")
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, annotation, string(text))
		if !fresh {
			return r.cfg.Client.Update(ctx, object)
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
		if err := r.cfg.Client.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		return r.cfg.Client.Create(ctx, object)
	})
	if err != nil {
		return fmt.Errorf("server %s: %w", name, err)
	}
	return nil
}

// All reads all servers without a cache, also those that were removed, in the order in which they
// joined.
func (r *Roster) All(ctx context.Context) ([]wire.Server, error) {
	var list corev1.ConfigMapList
	if err := r.cfg.Client.List(ctx, &list, client.InNamespace(Namespace), client.HasLabels{Label}); err != nil {
		return nil, fmt.Errorf("listing the servers: %w", err)
	}
	var all []wire.Server
	for i := range list.Items {
		e, err := parse(&list.Items[i])
		if err != nil {
			return nil, err
		}
		all = append(all, e.Server)
	}
	slices.SortFunc(all, func(a, b wire.Server) int {
		return cmp.Or(a.Joined.Compare(b.Joined), strings.Compare(a.Name, b.Name))
	})
	return all, nil
}

// SetWaiting replaces the reasons why servers cannot join or leave, by the server's name.
func (r *Roster) SetWaiting(waiting map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = waiting
}

func (r *Roster) waits(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting[name]
}
