// Package state keeps what the node must remember of its instances across the
// end of the agent and of the machine: the papers' Node Runtime Memory.
//
// It owns the record's form, its version and its durability, in one bbolt
// file. What a record means is its driver's business.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/boltfile"
	"rik.dev/rik/internal/riklet/instance"
)

// Version of the record's form that this code writes. It reads this and the
// older ones.
const Version = 1

var (
	// ErrNewer is returned by Open when a record was written by a later rik.
	ErrNewer = errors.New("record is of a newer version than this riklet")
	// ErrDamaged is returned by Open for a file whose records cannot be read.
	ErrDamaged = errors.New("the node's records are damaged")
	// ErrClosed is returned by a Put or Delete after Close.
	ErrClosed = errors.New("state is closed")
)

// Record is all that is remembered of one instance.
type Record struct {
	Version int    `json:"version"`
	BootID  string `json:"bootID"` // of the machine when it was last written
	// Instance is what was ordered.
	Instance instance.Instance `json:"instance"`
	// Containers by name, init containers among them.
	Containers map[string]Container `json:"containers,omitempty"`
	StartedAt  time.Time            `json:"startedAt,omitzero"`
	// Suspended: its processes are held until it is resumed.
	Suspended bool `json:"suspended,omitempty"`
	// OnDisk: it is suspended and nothing of it runs; it goes on from its snapshot.
	OnDisk bool `json:"onDisk,omitempty"`
	// Disk is the ID of the writable disk that a microVM's containers have run with.
	Disk string `json:"disk,omitempty"`
	// Stop is set once the instance is to go away.
	Stop *Stop `json:"stop,omitempty"`
	// Final is set once it ended by itself.
	Final *Final `json:"final,omitempty"`
	// Terminated: nothing is left; kept until that was received.
	Terminated bool `json:"terminated,omitempty"`
	// Lost: the instance's record was lost and what ran of it was removed. Instance has the UID
	// alone, and Containers what was found of its runs, for when the instance is ordered again.
	Lost bool `json:"lost,omitempty"`
}

// Container is what is remembered of one container.
type Container struct {
	State rikv1alpha1.ContainerState `json:"state,omitempty"`
	// Attempt numbers the starts from 1; 0: never started.
	Attempt     int       `json:"attempt,omitempty"`
	Restarts    int32     `json:"restarts,omitempty"`
	Crashes     int       `json:"crashes,omitempty"` // in a row; for the back-off
	RetryAt     time.Time `json:"retryAt,omitzero"`
	ExitCode    *int32    `json:"exitCode,omitempty"`
	Reason      string    `json:"reason,omitempty"`
	Message     string    `json:"message,omitempty"`
	StartedAt   time.Time `json:"startedAt,omitzero"`
	FinishedAt  time.Time `json:"finishedAt,omitzero"`
	ImageDigest string    `json:"imageDigest,omitempty"`
	StopSignal  string    `json:"stopSignal,omitempty"` // of its image
	// OOMKills counts the processes of the current run that the kernel killed for want of
	// memory, as far as that was told.
	OOMKills uint64 `json:"oomKills,omitempty"`
	// Last is the end of the latest run, kept when the next one begins.
	Last *rikv1alpha1.ContainerEnd `json:"last,omitempty"`
	// What the probes found of the current run, so that a new agent does not
	// take a ready instance out of service: startup is over; it is ready.
	Begun bool `json:"begun,omitempty"`
	Ready bool `json:"ready,omitempty"`
}

// Stop is an order to take an instance away.
type Stop struct {
	Deadline time.Time `json:"deadline"` // of the polite part
	// Grace is how long the polite part is, from the order on; 0: not known.
	Grace time.Duration `json:"grace,omitempty"`
}

// Final is how an instance ended.
type Final struct {
	Phase   rikv1alpha1.InstancePhase `json:"phase"`
	Reason  string                    `json:"reason,omitempty"`
	Message string                    `json:"message,omitempty"`
	At      time.Time                 `json:"at"`
	// Released: its processes, mounts and cgroups are gone; its logs are not.
	Released bool `json:"released,omitempty"`
}

var bucket = []byte("instances")

// Store is the file of records. Its methods may be called from any goroutine.
type Store struct {
	db      *bolt.DB
	writers sync.WaitGroup

	mu       sync.Mutex // guards what follows; never held across a commit
	pending  []write
	flushing bool
	closed   bool
}

type write struct {
	uid  string
	data []byte // nil: delete
	done chan error
}

// Open opens or makes the file, 0600. A second process that opens it is
// refused: two agents on one state directory would each undo the other's work.
func Open(path string) (*Store, error) {
	if err := boltfile.Check(path); err != nil {
		if errors.Is(err, boltfile.ErrDamaged) {
			return nil, damaged(path, err)
		}
		return nil, fmt.Errorf("opening the state %s (another riklet may be using it): %w", path, err)
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return nil, fmt.Errorf("opening the state %s (another riklet may be using it): %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	err = db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucket)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("preparing the state %s: %w", path, err), db.Close())
	}
	return &Store{db: db}, nil
}

// damaged says what the loss of the records means, and what to do.
func damaged(path string, err error) error {
	return fmt.Errorf("%w: %w. Restore the file from a copy, or move it away. Without the file, the riklet starts without records and stops every instance of this node. It then starts the instances that must run again. Their volumes on this node are lost, and their restart counts grow",
		ErrDamaged, fmt.Errorf("%s: %w", path, err))
}

// Load reads all records, ordered by UID.
func (s *Store) Load() ([]Record, error) {
	var records []Record
	err := s.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(uid, data []byte) error {
			record, err := decode(data)
			if errors.Is(err, ErrNewer) {
				return fmt.Errorf("record of instance %s: %w", uid, err)
			}
			if err != nil {
				return damaged(s.db.Path(), fmt.Errorf("record of instance %s: %w", uid, err))
			}
			records = append(records, record)
			return nil
		})
	})
	return records, err
}

func decode(data []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	if r.Version > Version {
		return r, fmt.Errorf("version %d: %w", r.Version, ErrNewer)
	}
	return r, nil
}

// Put saves a record; it is durable when Put returns. Puts that come while one
// is being written share the next commit.
func (s *Store) Put(r Record) error {
	r.Version = Version
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding the record of instance %s: %w", r.Instance.UID, err)
	}
	return s.write(r.Instance.UID, data)
}

// Delete drops a record; dropping one that is not there is no error.
func (s *Store) Delete(uid string) error { return s.write(uid, nil) }

func (s *Store) write(uid string, data []byte) error {
	w := write{uid: uid, data: data, done: make(chan error, 1)}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.pending = append(s.pending, w)
	if !s.flushing {
		s.flushing = true
		s.writers.Go(s.flush)
	}
	s.mu.Unlock()
	return <-w.done
}

// flush commits what is pending until nothing is.
func (s *Store) flush() {
	for {
		s.mu.Lock()
		batch := s.pending
		s.pending = nil
		s.flushing = len(batch) > 0
		s.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		err := s.db.Update(func(tx *bolt.Tx) error { return apply(tx.Bucket(bucket), batch) })
		for _, w := range batch {
			w.done <- err
		}
	}
}

func apply(b *bolt.Bucket, batch []write) error {
	for _, w := range batch {
		if w.data == nil {
			if err := b.Delete([]byte(w.uid)); err != nil {
				return err
			}
			continue
		}
		if err := b.Put([]byte(w.uid), w.data); err != nil {
			return err
		}
	}
	return nil
}

// Close waits for writes under way and closes the file.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.writers.Wait()
	return s.db.Close()
}

// BootID names the current run of the machine's kernel.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot ID: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
