package netmap

import (
	"cmp"
	"log/slog"
	"maps"
	"sync"

	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/wakeup"
)

// Config configures a [Store].
type Config struct {
	// Path is the file in which the netmap is saved. Its directory must exist. Empty means that
	// the netmap is not saved.
	Path string
	// Logger logs invalid entries. nil discards logs.
	Logger *slog.Logger
}

// Store is the current netmap. Its methods are safe for concurrent use.
type Store struct {
	cfg Config

	mu        sync.Mutex
	settings  Settings
	peers     map[string]Peer
	services  map[ServiceKey]Service
	endpoints map[ServiceKey]map[string]Endpoint
	// home is the service of each endpoint, by UID.
	home map[string]ServiceKey
	// snapshot shares the inner maps of endpoints, except for those in own, which were created
	// since. It is nil if the netmap has changed since the last snapshot.
	snapshot *Snapshot
	own      map[ServiceKey]bool
	// whole collects the entries of a complete netmap that is being received. It is nil
	// otherwise.
	whole       *seen
	subscribers []wakeup.Signal
	// unsaved is set if the file is outdated.
	unsaved wakeup.Signal
}

// seen are the entries of a complete netmap.
type seen struct {
	peers     map[string]bool
	services  map[ServiceKey]bool
	endpoints map[string]bool
}

// Open returns a store with the saved netmap. A file that cannot be read counts as empty, because
// the controller sends everything again.
func Open(cfg Config) *Store {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	t := &Store{
		cfg: cfg, peers: map[string]Peer{}, services: map[ServiceKey]Service{},
		endpoints: map[ServiceKey]map[string]Endpoint{}, home: map[string]ServiceKey{},
		own: map[ServiceKey]bool{}, unsaved: wakeup.New(),
	}
	t.load()
	return t
}

// Subscribe returns a channel that is readable after a change, as long as the store exists. It may
// be readable several times for one change, and once for several changes.
func (t *Store) Subscribe() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := wakeup.New()
	t.subscribers = append(t.subscribers, c)
	return c
}

// Snapshot returns the current netmap. The caller must not change it.
func (t *Store) Snapshot() *Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.snapshot == nil {
		t.snapshot = &Snapshot{
			Partial: t.whole != nil, Settings: t.settings, Peers: maps.Clone(t.peers),
			Services: maps.Clone(t.services), Endpoints: maps.Clone(t.endpoints),
		}
		clear(t.own)
	}
	return t.snapshot
}

// Apply applies a message of the controller. It logs and skips invalid entries, and applies the
// others.
func (t *Store) Apply(c *nodev1.NetworkChanges) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.GetBegin() {
		t.whole = &seen{map[string]bool{}, map[ServiceKey]bool{}, map[string]bool{}}
		if !c.GetComplete() {
			t.snapshot = nil // it is partial from now on
		}
	}
	changed := t.applySettingsLocked(c.GetSettings())
	changed = t.applyPeersLocked(c) || changed
	changed = t.applyServicesLocked(c) || changed
	changed = t.applyEndpointsLocked(c) || changed
	if c.GetComplete() {
		changed = t.completeLocked() || changed
		// Subscribers that have seen a partial netmap must be notified that it is complete.
		changed = changed || t.snapshot != nil && t.snapshot.Partial
	}
	if changed {
		t.changedLocked()
	}
}

// changedLocked notifies all subscribers.
func (t *Store) changedLocked() {
	t.snapshot = nil
	t.unsaved.Wake()
	for _, c := range t.subscribers {
		c.Wake()
	}
}

func (t *Store) refused(kind, name string, err error) {
	t.cfg.Logger.Warn("ignoring an invalid entry of the netmap", "kind", kind, "name", name, "err", err)
}

func (t *Store) applySettingsLocked(m *nodev1.NetworkSettings) bool {
	if m == nil {
		return false
	}
	settings, err := decodeSettings(m)
	if err != nil {
		t.refused("settings", m.GetDomain(), err)
		return false
	}
	changed := settings != t.settings
	t.settings = settings
	return changed
}

func (t *Store) applyPeersLocked(c *nodev1.NetworkChanges) (changed bool) {
	for _, name := range c.GetPeersGone() {
		changed = t.dropPeerLocked(name) || changed
	}
	for _, m := range c.GetPeers() {
		p, err := decodePeer(m)
		if err != nil {
			t.refused("peer", m.GetName(), err)
			continue
		}
		if t.whole != nil {
			t.whole.peers[p.Name] = true
		}
		if t.peers[p.Name] != p {
			t.peers[p.Name], changed = p, true
		}
	}
	return changed
}

func (t *Store) dropPeerLocked(name string) bool {
	if t.whole != nil {
		delete(t.whole.peers, name)
	}
	_, known := t.peers[name]
	delete(t.peers, name)
	return known
}

func (t *Store) applyServicesLocked(c *nodev1.NetworkChanges) (changed bool) {
	for _, m := range c.GetServicesGone() {
		changed = t.dropServiceLocked(decodeKey(m)) || changed
	}
	for _, m := range c.GetServices() {
		s, err := t.decodeService(m)
		if err != nil {
			t.refused("service", decodeKey(m.GetKey()).String(), err)
			continue
		}
		if t.whole != nil {
			t.whole.services[s.Key] = true
		}
		if old, known := t.services[s.Key]; !known || !old.equal(s) {
			t.services[s.Key], changed = s, true
		}
	}
	return changed
}

func (t *Store) dropServiceLocked(key ServiceKey) bool {
	if t.whole != nil {
		delete(t.whole.services, key)
	}
	_, known := t.services[key]
	delete(t.services, key)
	return known
}

func (t *Store) applyEndpointsLocked(c *nodev1.NetworkChanges) (changed bool) {
	for _, uid := range c.GetEndpointsGone() {
		changed = t.dropEndpointLocked(uid) || changed
	}
	for _, m := range c.GetEndpoints() {
		e, err := t.decodeEndpoint(m)
		if err != nil {
			t.refused("endpoint", m.GetUid(), err)
			continue
		}
		if t.whole != nil {
			t.whole.endpoints[e.UID] = true
		}
		changed = t.putEndpointLocked(e) || changed
	}
	return changed
}

func (t *Store) putEndpointLocked(e Endpoint) bool {
	key, known := t.home[e.UID]
	if known && key != e.Service {
		t.removeEndpointLocked(key, e.UID)
	}
	if old, known := t.endpoints[e.Service][e.UID]; known && old.equal(e) {
		return false
	}
	t.ownLocked(e.Service)[e.UID] = e
	t.home[e.UID] = e.Service
	return true
}

func (t *Store) dropEndpointLocked(uid string) bool {
	if t.whole != nil {
		delete(t.whole.endpoints, uid)
	}
	key, known := t.home[uid]
	if known {
		t.removeEndpointLocked(key, uid)
		delete(t.home, uid)
	}
	return known
}

func (t *Store) removeEndpointLocked(key ServiceKey, uid string) {
	delete(t.ownLocked(key), uid)
	if len(t.endpoints[key]) == 0 {
		delete(t.endpoints, key)
		delete(t.own, key)
	}
}

// ownLocked returns the endpoints of a service in a map that no snapshot shares.
func (t *Store) ownLocked(key ServiceKey) map[string]Endpoint {
	if !t.own[key] {
		m := maps.Clone(t.endpoints[key])
		if m == nil {
			m = map[string]Endpoint{}
		}
		t.endpoints[key], t.own[key] = m, true
	}
	return t.endpoints[key]
}

// completeLocked removes the entries that were not in the complete netmap.
func (t *Store) completeLocked() (changed bool) {
	w := t.whole
	t.whole = nil
	if w == nil { // it began on a connection that this store never saw
		return false
	}
	for name := range t.peers {
		if !w.peers[name] {
			changed = t.dropPeerLocked(name) || changed
		}
	}
	for key := range t.services {
		if !w.services[key] {
			changed = t.dropServiceLocked(key) || changed
		}
	}
	for uid := range t.home {
		if !w.endpoints[uid] {
			changed = t.dropEndpointLocked(uid) || changed
		}
	}
	return changed
}
