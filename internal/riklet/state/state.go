// Package state saves what the node must know about its instances after a restart of the agent or
// of the machine (the Node Runtime Memory of the papers). It defines the format and the version of
// the records and makes them durable in one bbolt file. The driver that writes a record decides
// what it means.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/boltfile"
	"rik.dev/rik/internal/riklet/instance"
)

// Version is the version of the record format that this code writes. The code reads this version
// and older ones. Since version 2, a record has a checksum.
const Version = 2

var (
	// ErrNewer is returned by Open if a later version of rik wrote a record.
	ErrNewer = errors.New("record is of a newer version than this riklet")
	// ErrDamaged is returned by Open if the file or a record cannot be read.
	ErrDamaged = errors.New("the node's records are damaged")
	// ErrClosed is returned by Put and Delete after Close.
	ErrClosed = errors.New("state is closed")
)

// Record is the saved state of one instance.
type Record struct {
	Version int    `json:"version"`
	BootID  string `json:"bootID"` // the machine's boot ID when the record was written
	// Instance is the instance as it was ordered.
	Instance instance.Instance `json:"instance"`
	// Containers are the containers by name, including init containers.
	Containers map[string]Container `json:"containers,omitempty"`
	StartedAt  time.Time            `json:"startedAt,omitzero"`
	// Suspended is true if the processes are paused until a resume.
	Suspended bool `json:"suspended,omitempty"`
	// OnDisk is true if the instance is suspended and none of its processes run. It resumes from
	// its snapshot.
	OnDisk bool `json:"onDisk,omitempty"`
	// Disk is the ID of the writable disk that a microVM's containers have used.
	Disk string `json:"disk,omitempty"`
	// Stop is set when the instance must be removed.
	Stop *Stop `json:"stop,omitempty"`
	// Final is set when the instance has ended by itself.
	Final *Final `json:"final,omitempty"`
	// Terminated is true if nothing of the instance is left. The record stays until the controller
	// has acknowledged that.
	Terminated bool `json:"terminated,omitempty"`
	// Lost is true if the instance's record was lost and its processes were removed. Then Instance
	// has only the UID, and Containers have what was found, in case the instance is ordered again.
	Lost bool `json:"lost,omitempty"`
}

// Container is the saved state of one container.
type Container struct {
	State rikv1alpha1.ContainerState `json:"state,omitempty"`
	// Attempt counts the starts. 0 means that the container was never started.
	Attempt     int       `json:"attempt,omitempty"`
	Restarts    int32     `json:"restarts,omitempty"`
	Crashes     int       `json:"crashes,omitempty"` // consecutive; for the back-off
	RetryAt     time.Time `json:"retryAt,omitzero"`
	ExitCode    *int32    `json:"exitCode,omitempty"`
	Reason      string    `json:"reason,omitempty"`
	Message     string    `json:"message,omitempty"`
	StartedAt   time.Time `json:"startedAt,omitzero"`
	FinishedAt  time.Time `json:"finishedAt,omitzero"`
	ImageDigest string    `json:"imageDigest,omitempty"`
	StopSignal  string    `json:"stopSignal,omitempty"` // of its image
	// OOMKills is the known number of processes of the current run that the kernel killed because
	// of memory.
	OOMKills uint64 `json:"oomKills,omitempty"`
	// Last is the end of the previous run. It stays when the next run begins.
	Last *rikv1alpha1.ContainerEnd `json:"last,omitempty"`
	// Begun is true after the startup probe succeeded in the current run, and Ready is the result
	// of the readiness probe. They prevent a new agent from taking a ready instance out of
	// service.
	Begun bool `json:"begun,omitempty"`
	Ready bool `json:"ready,omitempty"`
}

// Stop is an order to stop an instance.
type Stop struct {
	Deadline time.Time `json:"deadline"` // until when processes may end by themselves
	// Grace is the grace period from the order on. 0 means unknown.
	Grace time.Duration `json:"grace,omitempty"`
}

// Final is how an instance ended.
type Final struct {
	Phase   rikv1alpha1.InstancePhase `json:"phase"`
	Reason  string                    `json:"reason,omitempty"`
	Message string                    `json:"message,omitempty"`
	At      time.Time                 `json:"at"`
	// Released is true if its processes, mounts and cgroups are removed. Its logs stay.
	Released bool `json:"released,omitempty"`
}

var bucket = []byte("instances")

// Store is the file of records. Its methods are safe for concurrent use.
type Store struct {
	db      *bolt.DB
	writers sync.WaitGroup

	mu       sync.Mutex // guards the fields below; never held across a commit
	pending  []write
	flushing bool
	closed   bool
}

type write struct {
	uid  string
	data []byte // nil: delete
	done chan error
}

// Open opens or creates the file with mode 0600. It fails if another process has the file open: two
// agents with one state directory would undo each other's work.
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

// damaged returns an error that says what the loss of the records means, and what to do.
func damaged(path string, err error) error {
	return fmt.Errorf("%w: %w. Restore the file from a copy, or move it away. Without the file, the riklet starts without records and stops every instance of this node. It then starts the instances that must run again. Their volumes on this node are lost, and their restart counts grow",
		ErrDamaged, fmt.Errorf("%s: %w", path, err))
}

// Load reads all records, ordered by UID.
func (s *Store) Load() ([]Record, error) {
	var records []Record
	err := s.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(uid, data []byte) error {
			record, err := decode(string(uid), data)
			if errors.Is(err, ErrNewer) {
				return fmt.Errorf("record of instance %s: %w", uid, err)
			}
			if err != nil {
				return damagedRecord(s.db.Path(), string(uid), err)
			}
			records = append(records, record)
			return nil
		})
	})
	return records, err
}

// envelope is a record as it is stored since version 2.
type envelope struct {
	Version int `json:"version"`
	// Sum is the CRC-32C of the instance's UID and of the bytes of Record.
	Sum    uint32          `json:"sum"`
	Record json.RawMessage `json:"record"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(uid string, record []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, []byte(uid)), castagnoli, record)
}

func encode(r Record) ([]byte, error) {
	r.Version = Version
	record, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return json.Marshal(envelope{Version: Version, Sum: checksum(r.Instance.UID, record), Record: record})
}

func decode(uid string, data []byte) (r Record, err error) {
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return r, err
	}
	switch {
	case e.Version > Version:
		return r, fmt.Errorf("version %d: %w", e.Version, ErrNewer)
	case e.Version == 1 && e.Record == nil:
		return r, json.Unmarshal(data, &r)
	case e.Version != Version:
		return r, fmt.Errorf("its version is %d", e.Version)
	}
	if sum := checksum(uid, e.Record); sum != e.Sum {
		return r, fmt.Errorf("its checksum is %08x, and its content has %08x", e.Sum, sum)
	}
	return r, json.Unmarshal(e.Record, &r)
}

// damagedRecord returns an error that says what the loss of one record means, and what to do.
func damagedRecord(path, uid string, err error) error {
	return fmt.Errorf("%w: %s: the record of instance %s: %w. All instances continue to run. Restore the file from a copy, or run riklet repair, which removes only this record. The riklet then stops this instance and starts it again. Its volumes on this node are lost, and its restart count grows",
		ErrDamaged, path, uid, err)
}

// Put saves a record. It is durable when Put returns. Concurrent calls share a commit.
func (s *Store) Put(r Record) error {
	data, err := encode(r)
	if err != nil {
		return fmt.Errorf("encoding the record of instance %s: %w", r.Instance.UID, err)
	}
	return s.write(r.Instance.UID, data)
}

// Delete removes a record. A missing record is no error.
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

// flush commits until nothing is pending.
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

// Close waits for pending writes and closes the file.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.writers.Wait()
	return s.db.Close()
}

// BootID returns the ID of the current run of the machine's kernel.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot ID: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
