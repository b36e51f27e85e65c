package etcd

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"rik.dev/rik/internal/apiserver/datastore/checksum"
	"rik.dev/rik/internal/boltfile"
)

// errFiles is returned for files with which etcd could not start, or could start only with a
// loss of data.
var errFiles = errors.New("the files of the embedded etcd are damaged")

// Check reads the files of a stopped etcd in the directory of [Config], and changes nothing. The
// error names what is damaged, and the next step. Objects are the stored objects as far as they
// were read; a database of more than 1 GiB is not.
func Check(dir string) (checksum.Objects, error) {
	dir = filepath.Join(dir, "etcd")
	objects, err := check(dir)
	if err != nil {
		err = explain(dir, err)
	}
	return objects, err
}

// check reads the files of a stopped etcd, and changes nothing. For most damage, etcd itself
// ends the process with a stack trace. For a lost log it waits forever. After a damaged record
// it cuts off the rest of the log, which may contain acknowledged writes.
func check(dir string) (objects checksum.Objects, err error) {
	defer func() {
		if r := recover(); r != nil { // a panic of etcd's decoders
			err = fmt.Errorf("%w: %v", errFiles, r)
		}
	}()
	f := files{
		db: filepath.Join(dir, "member", "snap", "db"), snaps: filepath.Join(dir, "member", "snap"), wal: filepath.Join(dir, "member", "wal"),
	}
	if err := f.checkDatabase(); err != nil {
		return objects, err
	}
	if err := f.checkLog(); err != nil {
		return objects, err
	}
	return f.checkObjects()
}

// checkObjects reads the objects of a database that is not too large to be read at each start.
func (f *files) checkObjects() (checksum.Objects, error) {
	info, err := os.Stat(f.db)
	if errors.Is(err, fs.ErrNotExist) {
		return checksum.Objects{}, nil // checkLog has accepted that
	}
	if err != nil {
		return checksum.Objects{}, fmt.Errorf("reading etcd's database: %w", err)
	}
	if info.Size() == 0 || info.Size() > boltfile.MaxBytes {
		return checksum.Objects{}, nil
	}
	objects, err := checkObjects(f.db)
	if err != nil {
		return objects, fmt.Errorf("reading the objects in etcd's database: %w", err)
	}
	return objects, objects.Err()
}

type files struct {
	db, snaps, wal string
	// applied is the index of the last log entry in the database. 0 means none.
	applied uint64
}

func (f *files) checkDatabase() error {
	info, err := os.Stat(f.db)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		return nil // etcd rebuilds it from the whole log, if there is one
	}
	if err != nil {
		return fmt.Errorf("reading etcd's database: %w", err)
	}
	err = boltfile.Check(f.db)
	if err == nil {
		err = boltfile.View(f.db, func(tx *bolt.Tx) error {
			var index []byte
			if meta := tx.Bucket([]byte("meta")); meta != nil {
				index = meta.Get([]byte("consistent_index"))
			}
			if len(index) == 8 {
				f.applied = binary.BigEndian.Uint64(index)
			} else if hasMembers(tx) {
				return fmt.Errorf("%w: the index of the last entry of the log is missing", boltfile.ErrDamaged)
			}
			return checkMembership(tx)
		})
	}
	if errors.Is(err, boltfile.ErrDamaged) {
		return fmt.Errorf("%w: the database with the objects of the cluster cannot be read: %w", errFiles, err)
	}
	return err
}

func (f *files) checkLog() error {
	names, err := filepath.Glob(filepath.Join(f.wal, "*.wal"))
	if err != nil {
		return err
	}
	if len(names) == 0 {
		if f.applied == 0 {
			return nil // a new cluster
		}
		return fmt.Errorf("%w: the write-ahead log in %s is missing; it contained the last writes, which the database in %s may lack", errFiles, f.wal, f.db)
	}
	slices.Sort(names)
	var log writeAheadLog
	for i, name := range names {
		if err := log.readFile(name, i == len(names)-1); err != nil {
			return fmt.Errorf("%w: the write-ahead log %s with the last writes cannot be read: %w", errFiles, name, err)
		}
	}
	if !log.hasMetadata {
		return fmt.Errorf("%w: the write-ahead log %s is empty; it contained the last writes, which the database in %s may lack", errFiles, names[len(names)-1], f.db)
	}
	snapshot := f.snapshot(log.snapshots)
	switch {
	case max(log.last, snapshot) < f.applied:
		return fmt.Errorf("%w: the write-ahead log in %s ends at entry %d, and the database in %s has entry %d: the last writes of the log are lost", errFiles, f.wal, max(log.last, snapshot), f.db, f.applied)
	case log.first > snapshot+1:
		return fmt.Errorf("%w: the write-ahead log in %s begins at entry %d, and no snapshot in %s contains the entries before", errFiles, f.wal, log.first, f.snaps)
	case f.applied < snapshot:
		return fmt.Errorf("%w: the database %s is missing or older than the snapshot of entry %d in %s", errFiles, f.db, snapshot, f.snaps)
	}
	return nil
}

// snapshot returns the index of the newest of the log's snapshots with a readable file, or 0.
func (f *files) snapshot(of []walpb.Snapshot) uint64 {
	for _, s := range slices.Backward(of) {
		name := filepath.Join(f.snaps, fmt.Sprintf("%016x-%016x.snap", s.Term, s.Index))
		if _, err := snap.Read(zap.NewNop(), name); s.Index > 0 && err == nil {
			return s.Index
		}
	}
	return 0
}

// writeAheadLog is the content of etcd's log that check needs.
type writeAheadLog struct {
	hasMetadata bool
	first, last uint64 // indexes of entries; 0: none
	snapshots   []walpb.Snapshot
	crc         uint32 // at the end of the last file read
}

// Types of records. Package wal does not export all of them.
const (
	metadataRecord = wal.MetadataType
	entryRecord    = wal.EntryType
	crcRecord      = wal.CrcType
	snapshotRecord = wal.SnapshotType
)

// readFile reads one file. The last file may end within a record, such as after a power
// failure. That record was not acknowledged.
func (l *writeAheadLog) readFile(name string, last bool) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	decoder := wal.NewDecoder(fileutil.NewFileReader(file))
	for record := new(walpb.Record); ; {
		err := decoder.Decode(record)
		if errors.Is(err, io.EOF) || last && errors.Is(err, io.ErrUnexpectedEOF) {
			l.crc = decoder.LastCRC()
			return nil
		}
		if err == nil {
			err = l.take(decoder, record)
		}
		if err != nil {
			return err
		}
	}
}

func (l *writeAheadLog) take(decoder wal.Decoder, record *walpb.Record) error {
	switch record.Type {
	case crcRecord:
		// The first record of a file continues the checksum of the previous file.
		was := decoder.LastCRC()
		if was == 0 {
			was = l.crc
		}
		if was != 0 && record.Crc != was {
			return wal.ErrCRCMismatch
		}
		decoder.UpdateCRC(record.Crc)
	case metadataRecord:
		l.hasMetadata = true
	case entryRecord:
		var entry raftpb.Entry
		if err := entry.Unmarshal(record.Data); err != nil {
			return err
		}
		l.first = cmp.Or(l.first, entry.Index)
		l.last = entry.Index
	case snapshotRecord:
		var s walpb.Snapshot
		if err := s.Unmarshal(record.Data); err != nil {
			return err
		}
		l.snapshots = append(l.snapshots, s)
	}
	return nil
}
