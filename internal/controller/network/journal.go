package network

import (
	"container/list"

	"google.golang.org/protobuf/proto"

	"rik.dev/rik/internal/rpc/nodev1"
)

const (
	// maxPiece is the number of entries in one message; see network.proto.
	maxPiece = 1000
	// maxPieceBytes keeps a message far below the limit of gRPC (4 MiB).
	maxPieceBytes = 1 << 20
	// maxGone bounds the number of removed entries that are remembered. A reader that is further
	// behind gets the whole netmap.
	maxGone = 10_000
)

// key identifies an entry: a node, a service or an endpoint.
type key struct {
	kind kind
	// namespace is set only for services. name is a UID for endpoints.
	namespace, name string
}

type kind uint8

const (
	peerKind kind = iota
	serviceKind
	endpointKind
)

// entry is one entry of the netmap, or the record of a removed one. It is not changed after its
// creation. One of the messages is set, or none if the entry was removed.
type entry struct {
	key      key
	version  uint64
	bytes    int
	peer     *nodev1.Peer
	service  *nodev1.Service
	endpoint *nodev1.Endpoint
}

func (e *entry) gone() bool { return e.peer == nil && e.service == nil && e.endpoint == nil }

func (e *entry) measure() int {
	const around = 16 // tag and length of the entry itself, with some reserve
	switch {
	case e.peer != nil:
		return proto.Size(e.peer) + around
	case e.service != nil:
		return proto.Size(e.service) + around
	case e.endpoint != nil:
		return proto.Size(e.endpoint) + around
	}
	return len(e.key.namespace) + len(e.key.name) + around
}

// journal holds the netmap in the order of its changes. It contains each key once. The data
// that waits for a slow reader is therefore bounded by the netmap, and the cost of a change
// does not depend on the number of readers. It has no lock.
type journal struct {
	version uint64
	// floor is a version. Entries that were removed up to it may be forgotten already.
	floor      uint64
	index      map[key]*list.Element
	live, gone list.List // of *entry, the latest change last
	mostGone   int
	// news is closed at the next change.
	news chan struct{}
}

func newJournal() *journal {
	return &journal{index: map[key]*list.Element{}, mostGone: maxGone, news: make(chan struct{})}
}

// get returns the entry of a key, or nil.
func (j *journal) get(k key) *entry {
	at := j.index[k]
	if at == nil || at.Value.(*entry).gone() {
		return nil
	}
	return at.Value.(*entry)
}

func (j *journal) put(e *entry) {
	j.version++
	e.version, e.bytes = j.version, e.measure()
	if at := j.index[e.key]; at != nil {
		j.listOf(at).Remove(at)
	}
	if e.gone() {
		j.index[e.key] = j.gone.PushBack(e)
	} else {
		j.index[e.key] = j.live.PushBack(e)
	}
	for j.gone.Len() > j.mostGone {
		oldest := j.gone.Remove(j.gone.Front()).(*entry)
		delete(j.index, oldest.key)
		j.floor = oldest.version
	}
	close(j.news)
	j.news = make(chan struct{})
}

func (j *journal) listOf(at *list.Element) *list.List {
	if at.Value.(*entry).gone() {
		return &j.gone
	}
	return &j.live
}

func (j *journal) remove(k key) {
	if j.get(k) != nil {
		j.put(&entry{key: k})
	}
}

// since returns the changes after a version. It returns false if some of them are forgotten.
func (j *journal) since(version uint64) ([]*entry, bool) {
	if version < j.floor {
		return nil, false
	}
	var out []*entry
	for _, l := range []*list.List{&j.live, &j.gone} {
		for at := l.Back(); at != nil && at.Value.(*entry).version > version; at = at.Prev() {
			out = append(out, at.Value.(*entry))
		}
	}
	return out, true
}

// all returns all current entries.
func (j *journal) all() []*entry {
	out := make([]*entry, 0, j.live.Len())
	for at := j.live.Front(); at != nil; at = at.Next() {
		out = append(out, at.Value.(*entry))
	}
	return out
}

// pieces packs entries into messages of bounded size. It returns at least one message.
func pieces(entries []*entry) []*nodev1.NetworkChanges {
	out := []*nodev1.NetworkChanges{{}}
	count, bytes := 0, 0
	for _, e := range entries {
		if count == maxPiece || count > 0 && bytes+e.bytes > maxPieceBytes {
			out = append(out, &nodev1.NetworkChanges{})
			count, bytes = 0, 0
		}
		count, bytes = count+1, bytes+e.bytes
		e.addTo(out[len(out)-1])
	}
	return out
}

func (e *entry) addTo(m *nodev1.NetworkChanges) {
	switch {
	case e.peer != nil:
		m.Peers = append(m.Peers, e.peer)
	case e.service != nil:
		m.Services = append(m.Services, e.service)
	case e.endpoint != nil:
		m.Endpoints = append(m.Endpoints, e.endpoint)
	case e.key.kind == peerKind:
		m.PeersGone = append(m.PeersGone, e.key.name)
	case e.key.kind == serviceKind:
		m.ServicesGone = append(m.ServicesGone, &nodev1.ServiceKey{Namespace: e.key.namespace, Workload: e.key.name})
	default:
		m.EndpointsGone = append(m.EndpointsGone, e.key.name)
	}
}
