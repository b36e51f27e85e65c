// Package checkpoint keeps the few facts about obedience that must outlive the
// riklet: whom it obeys, the highest term it obeyed, how far observations are numbered, and
// which instances it has to stop when it loses contact. What runs here is not
// its business; the drivers keep records of that.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"rik.dev/rik/internal/pki"
)

// version of the file's form.
const version = 1

// block is how many sequence numbers are reserved with one write.
const block = 1 << 20

// ErrLowerTerm refuses an order of a controller that is no longer active.
var ErrLowerTerm = errors.New("order has a lower term than one already obeyed")

type record struct {
	Version int   `json:"version"`
	Term    int64 `json:"term"`
	// Sequence is above every number that was ever given out.
	Sequence int64 `json:"sequence"`
	// TimeoutMillis after which the scheduler counts the node as lost.
	TimeoutMillis int64 `json:"timeoutMillis,omitempty"`
	// Fenced are the UIDs of instances with onDisconnect: Stop.
	Fenced map[string]bool `json:"fenced,omitempty"`
	// Proofs are the instances that a kcp has to be in touch for.
	Proofs map[string]Proof `json:"proofs,omitempty"`
	// Cluster are the hashes of the authorities of the cluster that Term is of.
	Cluster []string `json:"cluster,omitempty"`
	// ID is the identity of that cluster, once its list of instances was obeyed.
	ID string `json:"clusterID,omitempty"`
	// Moved: the node has joined another cluster, whose list was not obeyed yet.
	Moved bool `json:"moved,omitempty"`
}

// Proof is what an instance with a fence needs to run: that the kcp of its namespace was in
// touch with the cluster less than After ago.
type Proof struct {
	Namespace string        `json:"namespace"`
	After     time.Duration `json:"after"`
}

// Ledger is one file. Its methods are safe for concurrent use; those that
// change something return after it is durable, or with an error if it is only
// kept in memory.
type Ledger struct {
	path string

	mu    sync.Mutex
	kept  record
	dirty bool  // kept is not on disk
	next  int64 // the next sequence number
}

// Open reads the file at path or begins a new one. A file that another version
// of rik wrote in another form is refused: forgetting a term is not safe.
func Open(path string) (*Ledger, error) {
	l := &Ledger{path: path, kept: record{Version: version, Fenced: map[string]bool{}}}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("reading the ledger: %w", err)
	default:
		if err := json.Unmarshal(text, &l.kept); err != nil {
			return nil, fmt.Errorf("the ledger %s is damaged: %w; it has the latest term that this node obeyed, and the instances that it must not run. Restore it from a copy. Without one, delete this node's Node object, which has its instances replaced elsewhere, run riklet purge, and have the node join again", path, err)
		}
		if l.kept.Version != version {
			return nil, fmt.Errorf("the ledger %s has version %d, this riklet knows %d", path, l.kept.Version, version)
		}
	}
	if l.kept.Fenced == nil {
		l.kept.Fenced = map[string]bool{}
	}
	// The clock makes numbers rise even for a node whose disk was replaced; the
	// record makes them rise when the clock was set back.
	l.next = max(l.kept.Sequence, time.Now().UnixMicro())
	return l, nil
}

// saveLocked takes the record over and writes it; the lock is held, since two
// writes must not swap. The file is small and written a few times a day. When
// the disk is full the record counts nevertheless, so that the node goes on to
// obey, and the next change writes it.
func (l *Ledger) saveLocked(next record) error {
	l.kept, l.dirty = next, true
	text, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encoding the ledger: %w", err)
	}
	if err := pki.WriteFile(l.path, append(text, '\n')); err != nil {
		return fmt.Errorf("keeping the ledger: %w", err)
	}
	l.dirty = false
	return nil
}

// Belong says which cluster gives the orders from now on, by the hashes of its
// authorities. One that shares none with the cluster before is another, and so
// are its terms: those of the old one, and its instances that were to stop
// without contact, are forgotten, and Belong returns true. The error is that of
// the disk.
func (l *Ledger) Belong(cluster []string) (moved bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(cluster) == 0 || slices.Equal(l.kept.Cluster, cluster) {
		return false, nil
	}
	next := l.kept
	next.Cluster = slices.Clone(cluster)
	moved = len(l.kept.Cluster) > 0 && !slices.ContainsFunc(cluster, func(hash string) bool {
		return slices.Contains(l.kept.Cluster, hash)
	})
	if moved {
		next.Term, next.Fenced, next.Proofs = 0, map[string]bool{}, nil
		next.ID, next.Moved = "", true
	}
	return moved, l.saveLocked(next)
}

// Cluster is the identity of the cluster that is obeyed; empty before it is known.
func (l *Ledger) Cluster() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.ID
}

// Moved says whether the node has joined another cluster and not yet obeyed its first list
// of instances, which does not know those of the cluster before.
func (l *Ledger) Moved() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.Moved
}

// Adopt notes that the list of a cluster was obeyed. An empty id leaves the one that is
// known.
func (l *Ledger) Adopt(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.kept
	if id != "" {
		next.ID = id
	}
	next.Moved = false
	if next.ID == l.kept.ID && !l.kept.Moved {
		return nil
	}
	return l.saveLocked(next)
}

// Move makes another cluster the one that is obeyed, because an operator has confirmed it.
// The terms of the old one, and what was to stop without contact with it, are forgotten.
func (l *Ledger) Move(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.kept
	next.ID, next.Term, next.Fenced, next.Proofs = id, 0, map[string]bool{}, nil
	return l.saveLocked(next)
}

// Obey checks an order's term. A lower one than before gives [ErrLowerTerm] and
// must not be obeyed. A higher one is durable when Obey returns nil; any other
// error says that it is only kept in memory.
func (l *Ledger) Obey(term int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if term < l.kept.Term {
		return fmt.Errorf("%w: %d after %d", ErrLowerTerm, term, l.kept.Term)
	}
	if term == l.kept.Term && !l.dirty {
		return nil
	}
	next := l.kept
	next.Term = term
	return l.saveLocked(next)
}

// Term is the highest one obeyed.
func (l *Ledger) Term() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.Term
}

// NextSequence gives a number above all given before, also before a restart.
// The number is good even with an error, which says that only the clock makes
// those after a restart higher.
func (l *Ledger) NextSequence() (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.next >= l.kept.Sequence {
		next := l.kept
		next.Sequence = l.next + block
		err = l.saveLocked(next)
	}
	l.next++
	return l.next - 1, err
}

// SetTimeout remembers how long the node may be silent.
func (l *Ledger) SetTimeout(d time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept.TimeoutMillis == d.Milliseconds() {
		return nil
	}
	next := l.kept
	next.TimeoutMillis = d.Milliseconds()
	return l.saveLocked(next)
}

// Timeout is the last one set; zero before the first.
func (l *Ledger) Timeout() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.kept.TimeoutMillis) * time.Millisecond
}

// Fence remembers whether an instance must stop when the node loses contact.
func (l *Ledger) Fence(uid string, fenced bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept.Fenced[uid] == fenced {
		return nil
	}
	next := l.kept
	next.Fenced = maps.Clone(l.kept.Fenced)
	if fenced {
		next.Fenced[uid] = true
	} else {
		delete(next.Fenced, uid)
	}
	return l.saveLocked(next)
}

// Fenced lists the instances that must stop when the node loses contact.
func (l *Ledger) Fenced() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	uids := make([]string, 0, len(l.kept.Fenced))
	for uid := range l.kept.Fenced {
		uids = append(uids, uid)
	}
	return uids
}

// Prove remembers what an instance needs to run; after 0 forgets it.
func (l *Ledger) Prove(uid, namespace string, after time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	want := Proof{Namespace: namespace, After: after}
	if have, ok := l.kept.Proofs[uid]; after == 0 && !ok || after > 0 && have == want {
		return nil
	}
	next := l.kept
	next.Proofs = maps.Clone(l.kept.Proofs)
	if after == 0 {
		delete(next.Proofs, uid)
	} else {
		if next.Proofs == nil {
			next.Proofs = map[string]Proof{}
		}
		next.Proofs[uid] = want
	}
	return l.saveLocked(next)
}

// Proven lists the instances that need a proof, and which.
func (l *Ledger) Proven() map[string]Proof {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.kept.Proofs)
}
