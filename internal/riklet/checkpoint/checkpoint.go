// Package checkpoint saves the few facts about orders and observations that must survive a restart
// of the riklet. These are the cluster that gives the orders, the highest term that the riklet
// accepted, and the sequence numbers that it used. They are also the instances that must stop after
// a loss of the connection to the scheduler. It does not save which instances run. The drivers have
// records of that.
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

	"rik.dev/rik/internal/atomicfile"
)

// version is the version of the file's format.
const version = 1

// block is how many sequence numbers are reserved with one write.
const block = 1 << 20

// ErrLowerTerm is returned for an order of a controller that is no longer active.
var ErrLowerTerm = errors.New("the order's term is lower than the term that this node obeys")

type record struct {
	Version int   `json:"version"`
	Term    int64 `json:"term"`
	// Sequence is above every number that was ever used.
	Sequence int64 `json:"sequence"`
	// TimeoutMillis is the time without a heartbeat after which the scheduler treats the node as
	// lost.
	TimeoutMillis int64 `json:"timeoutMillis,omitempty"`
	// Fenced are the UIDs of instances with onDisconnect: Stop.
	Fenced map[string]bool `json:"fenced,omitempty"`
	// Proofs are the instances that need a proof that their kcp was reachable.
	Proofs map[string]Proof `json:"proofs,omitempty"`
	// Cluster are the hashes of the certificate authorities of the cluster that Term belongs to.
	Cluster []string `json:"cluster,omitempty"`
	// ID is the identity of that cluster, set once its list of instances was obeyed.
	ID string `json:"clusterID,omitempty"`
	// Moved is true if the node has joined another cluster whose list was not obeyed yet.
	Moved bool `json:"moved,omitempty"`
}

// Proof is the condition for an instance with a fence to run: the kcp of its namespace was
// reachable from the cluster less than After ago.
type Proof struct {
	Namespace string        `json:"namespace"`
	After     time.Duration `json:"after"`
}

// Store is the checkpoint file. Its methods are safe for concurrent use. A method that changes
// something returns after the change is durable, or returns an error if the change is only in
// memory.
type Store struct {
	path string

	mu    sync.Mutex
	saved record
	dirty bool  // saved is not on disk
	next  int64 // the next sequence number
}

// Open reads the file at path or starts a new one. It rejects a file in the format of another
// version of rik, because it is not safe to forget a term.
func Open(path string) (*Store, error) {
	l := &Store{path: path, saved: record{Version: version, Fenced: map[string]bool{}}}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("reading the checkpoint: %w", err)
	default:
		if err := json.Unmarshal(text, &l.saved); err != nil {
			return nil, fmt.Errorf("the checkpoint %s is damaged: %w. It contains the highest term that this node obeyed and the instances that it must not run. Restore the file from a copy. Without a copy, delete the Node object of this node, which replaces its instances on other nodes. Then run riklet purge and let the node join again", path, err)
		}
		if l.saved.Version != version {
			return nil, fmt.Errorf("the checkpoint %s has version %d, and this riklet supports version %d", path, l.saved.Version, version)
		}
	}
	if l.saved.Fenced == nil {
		l.saved.Fenced = map[string]bool{}
	}
	// The clock makes the numbers grow even on a node whose disk was replaced. The record makes
	// them grow if the clock was set back.
	l.next = max(l.saved.Sequence, time.Now().UnixMicro())
	return l, nil
}

// saveLocked adopts the record and writes it to disk. The lock is held during the write, so that
// two writes cannot change their order. The file is small and written a few times a day. If the
// disk is full, the record still applies in memory, so that the node continues to obey, and the
// next change writes it.
func (l *Store) saveLocked(next record) error {
	l.saved, l.dirty = next, true
	text, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encoding the checkpoint: %w", err)
	}
	if err := atomicfile.Write(l.path, append(text, '\n')); err != nil {
		return fmt.Errorf("saving the checkpoint: %w", err)
	}
	l.dirty = false
	return nil
}

// SetCluster sets which cluster gives the orders from now on, by the hashes of its certificate
// authorities. If it shares none with the former cluster, it is another cluster with its own terms.
// Then SetCluster forgets the term of the former cluster and its fenced instances, and returns
// true. An error means that the change could not be saved.
func (l *Store) SetCluster(cluster []string) (moved bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(cluster) == 0 || slices.Equal(l.saved.Cluster, cluster) {
		return false, nil
	}
	next := l.saved
	next.Cluster = slices.Clone(cluster)
	moved = len(l.saved.Cluster) > 0 && !slices.ContainsFunc(cluster, func(hash string) bool {
		return slices.Contains(l.saved.Cluster, hash)
	})
	if moved {
		next.Term, next.Fenced, next.Proofs = 0, map[string]bool{}, nil
		next.ID, next.Moved = "", true
	}
	return moved, l.saveLocked(next)
}

// Cluster returns the identity of the cluster that is obeyed. It is empty before it is known.
func (l *Store) Cluster() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.saved.ID
}

// Moved reports whether the node has joined another cluster and not yet obeyed its first list of
// instances. That list does not contain the instances of the former cluster.
func (l *Store) Moved() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.saved.Moved
}

// SetClusterID records that the list of a cluster was obeyed. An empty id keeps the known one.
func (l *Store) SetClusterID(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.saved
	if id != "" {
		next.ID = id
	}
	next.Moved = false
	if next.ID == l.saved.ID && !l.saved.Moved {
		return nil
	}
	return l.saveLocked(next)
}

// Move makes another cluster the one that is obeyed, after a confirmation by an operator. It
// forgets the term of the former cluster, its fenced instances and its proofs.
func (l *Store) Move(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.saved
	next.ID, next.Term, next.Fenced, next.Proofs = id, 0, map[string]bool{}, nil
	return l.saveLocked(next)
}

// AcceptTerm checks an order's term. If the term is lower than an earlier one, it returns
// [ErrLowerTerm], and the order must not be obeyed. If AcceptTerm returns nil, a higher term is
// durable. Any other error means that the term is only in memory.
func (l *Store) AcceptTerm(term int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if term < l.saved.Term {
		return fmt.Errorf("%w: %d is lower than %d", ErrLowerTerm, term, l.saved.Term)
	}
	if term == l.saved.Term && !l.dirty {
		return nil
	}
	next := l.saved
	next.Term = term
	return l.saveLocked(next)
}

// Term returns the highest term obeyed.
func (l *Store) Term() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.saved.Term
}

// NextSequence returns a number above all earlier ones, including those before a restart. The
// number is valid even with an error. The error means that after a restart only the clock makes
// the numbers grow.
func (l *Store) NextSequence() (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.next >= l.saved.Sequence {
		next := l.saved
		next.Sequence = l.next + block
		err = l.saveLocked(next)
	}
	l.next++
	return l.next - 1, err
}

// SetTimeout saves the time without a heartbeat after which the scheduler treats the node as
// lost.
func (l *Store) SetTimeout(d time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.saved.TimeoutMillis == d.Milliseconds() {
		return nil
	}
	next := l.saved
	next.TimeoutMillis = d.Milliseconds()
	return l.saveLocked(next)
}

// Timeout returns the last saved timeout, or zero before the first one.
func (l *Store) Timeout() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.saved.TimeoutMillis) * time.Millisecond
}

// Fence saves whether an instance must stop when the node loses the scheduler.
func (l *Store) Fence(uid string, fenced bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.saved.Fenced[uid] == fenced {
		return nil
	}
	next := l.saved
	next.Fenced = maps.Clone(l.saved.Fenced)
	if fenced {
		next.Fenced[uid] = true
	} else {
		delete(next.Fenced, uid)
	}
	return l.saveLocked(next)
}

// Fenced lists the instances that must stop when the node loses the scheduler.
func (l *Store) Fenced() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	uids := make([]string, 0, len(l.saved.Fenced))
	for uid := range l.saved.Fenced {
		uids = append(uids, uid)
	}
	return uids
}

// SetProof saves the proof that an instance needs to run. after 0 removes it.
func (l *Store) SetProof(uid, namespace string, after time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	want := Proof{Namespace: namespace, After: after}
	if have, ok := l.saved.Proofs[uid]; after == 0 && !ok || after > 0 && have == want {
		return nil
	}
	next := l.saved
	next.Proofs = maps.Clone(l.saved.Proofs)
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

// Proofs returns the instances that need a proof, with the proof.
func (l *Store) Proofs() map[string]Proof {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.saved.Proofs)
}
