// Package checkpoint saves the few facts about orders and observations that must survive a
// restart of the riklet: the cluster that it obeys, the highest term that it obeyed, the sequence
// numbers that it used, and the instances that it must stop when it loses the connection to the
// scheduler. It does not save which instances run. The drivers keep records of that.
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

// Ledger is the checkpoint file. Its methods are safe for concurrent use. A method that changes
// something returns after the change is durable, or returns an error if the change is only in
// memory.
type Ledger struct {
	path string

	mu    sync.Mutex
	kept  record
	dirty bool  // kept is not on disk
	next  int64 // the next sequence number
}

// Open reads the file at path or starts a new one. It rejects a file in the format of another
// version of rik, because it is not safe to forget a term.
func Open(path string) (*Ledger, error) {
	l := &Ledger{path: path, kept: record{Version: version, Fenced: map[string]bool{}}}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("reading the checkpoint: %w", err)
	default:
		if err := json.Unmarshal(text, &l.kept); err != nil {
			return nil, fmt.Errorf("the checkpoint %s is damaged: %w. It contains the highest term that this node obeyed and the instances that it must not run. Restore the file from a copy. Without a copy, delete the Node object of this node, which replaces its instances on other nodes. Then run riklet purge and let the node join again", path, err)
		}
		if l.kept.Version != version {
			return nil, fmt.Errorf("the checkpoint %s has version %d, and this riklet supports version %d", path, l.kept.Version, version)
		}
	}
	if l.kept.Fenced == nil {
		l.kept.Fenced = map[string]bool{}
	}
	// The clock makes the numbers grow even on a node whose disk was replaced. The record makes
	// them grow if the clock was set back.
	l.next = max(l.kept.Sequence, time.Now().UnixMicro())
	return l, nil
}

// saveLocked adopts the record and writes it to disk. The lock is held during the write, so that
// two writes cannot change their order. The file is small and written a few times a day. If the
// disk is full, the record still applies in memory, so that the node continues to obey, and the
// next change writes it.
func (l *Ledger) saveLocked(next record) error {
	l.kept, l.dirty = next, true
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

// Belong sets which cluster gives the orders from now on, by the hashes of its certificate
// authorities. If it shares none with the former cluster, it is another cluster with its own
// terms. Then Belong forgets the term of the former cluster and its fenced instances, and returns
// true. An error means that the change could not be saved.
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

// Cluster returns the identity of the cluster that is obeyed. It is empty before it is known.
func (l *Ledger) Cluster() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.ID
}

// Moved reports whether the node has joined another cluster and not yet obeyed its first list of
// instances. That list does not contain the instances of the former cluster.
func (l *Ledger) Moved() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.Moved
}

// Adopt records that the list of a cluster was obeyed. An empty id keeps the known one.
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

// Move makes another cluster the one that is obeyed, after a confirmation by an operator. It
// forgets the term of the former cluster, its fenced instances and its proofs.
func (l *Ledger) Move(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.kept
	next.ID, next.Term, next.Fenced, next.Proofs = id, 0, map[string]bool{}, nil
	return l.saveLocked(next)
}

// Obey checks an order's term. If the term is lower than an earlier one, it returns
// [ErrLowerTerm], and the order must not be obeyed. If Obey returns nil, a higher term is
// durable. Any other error means that the term is only in memory.
func (l *Ledger) Obey(term int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if term < l.kept.Term {
		return fmt.Errorf("%w: %d is lower than %d", ErrLowerTerm, term, l.kept.Term)
	}
	if term == l.kept.Term && !l.dirty {
		return nil
	}
	next := l.kept
	next.Term = term
	return l.saveLocked(next)
}

// Term returns the highest term obeyed.
func (l *Ledger) Term() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.Term
}

// NextSequence returns a number above all earlier ones, including those before a restart. The
// number is valid even with an error. The error means that after a restart only the clock makes
// the numbers grow.
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

// SetTimeout saves the time without a heartbeat after which the scheduler treats the node as
// lost.
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

// Timeout returns the last saved timeout, or zero before the first one.
func (l *Ledger) Timeout() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.kept.TimeoutMillis) * time.Millisecond
}

// Fence saves whether an instance must stop when the node loses the scheduler.
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

// Fenced lists the instances that must stop when the node loses the scheduler.
func (l *Ledger) Fenced() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	uids := make([]string, 0, len(l.kept.Fenced))
	for uid := range l.kept.Fenced {
		uids = append(uids, uid)
	}
	return uids
}

// Prove saves the proof that an instance needs to run. after 0 removes it.
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

// Proven returns the instances that need a proof, with the proof.
func (l *Ledger) Proven() map[string]Proof {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.kept.Proofs)
}
