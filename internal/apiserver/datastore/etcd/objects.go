package etcd

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"rik.dev/rik/internal/apiserver/datastore/checksum"
	"rik.dev/rik/internal/boltfile"
)

const (
	// revisionBytes is the length of a key of etcd's bucket "key": the revision as two big-endian
	// 64-bit numbers with one byte between them. A deletion has one more byte.
	revisionBytes  = 17
	tombstoneBytes = revisionBytes + 1
)

// checkObjects reads all revisions in etcd's database and compares them with their checksums. It
// changes nothing. The process must not have the file open.
func checkObjects(path string) (checksum.Objects, error) {
	// suspects are revisions that do not match. They matter only if they are the newest of their
	// key. As the key itself may have changed, a newer revision must continue the same object:
	// it has the same first revision, and a higher version. deletions are the newest deletions,
	// which have no checksum: each follows a revision of the same key that is still in the
	// database, unless it was compacted. Both are few, so that a large database needs no memory
	// per key.
	var o checksum.Objects
	suspects, deletions := map[string]storedRevision{}, map[string]int64{}
	var compacted int64
	err := boltfile.View(path, func(tx *bolt.Tx) error {
		if meta := tx.Bucket([]byte("meta")); meta != nil {
			compacted = number(meta.Get([]byte("scheduledCompactRev")))
		}
		bucket := tx.Bucket([]byte("key"))
		if bucket == nil {
			return nil
		}
		err := bucket.ForEach(func(revision, data []byte) error {
			r := readRevision(revision, data)
			switch {
			case r.damaged:
				suspects[r.key] = r
			case r.deletion:
				deletions[r.key] = r.number
			case r.checked:
				o.Checked++
			default:
				o.Unchecked++
			}
			return nil
		})
		if err != nil || len(suspects)+len(deletions) == 0 {
			return err
		}
		return bucket.ForEach(func(revision, data []byte) error {
			r := readRevision(revision, data)
			if old, ok := suspects[r.key]; ok && !r.damaged && r.number > old.number && r.created == old.created && r.version > old.version {
				delete(suspects, r.key)
			}
			if at, ok := deletions[r.key]; ok && r.number < at {
				delete(deletions, r.key)
			}
			return nil
		})
	})
	for key := range suspects {
		o.Damaged = append(o.Damaged, key)
	}
	for key, at := range deletions {
		if at <= compacted {
			continue
		}
		o.Damaged = append(o.Damaged, "a deletion of "+key)
	}
	slices.Sort(o.Damaged)
	return o, err
}

// storedRevision is one revision of a key in etcd's bucket.
type storedRevision struct {
	// key is the key of the object. If the record cannot be read, it names the revision.
	key string
	// number is the revision, created the revision in which the object was created, and version
	// counts its changes since then.
	number, created, version int64
	// deletion is true if the revision deletes the key, and checked if it has a checksum.
	deletion, checked, damaged bool
}

func readRevision(revision, data []byte) storedRevision {
	r := storedRevision{number: number(revision)}
	if len(data) == 0 {
		return r // raise writes such a record, like etcdutl, to raise the revision
	}
	var kv mvccpb.KeyValue
	wellFormed := (len(revision) == revisionBytes || len(revision) == tombstoneBytes && revision[revisionBytes] == 't') && revision[8] == '_'
	if err := kv.Unmarshal(data); err != nil || !wellFormed || !canonical(&kv, data) {
		r.key, r.damaged = fmt.Sprintf("the object of revision %d", r.number), true
		return r
	}
	r.key, r.created, r.version, r.deletion = string(kv.Key), kv.CreateRevision, kv.Version, len(revision) == tombstoneBytes
	if r.deletion {
		return r
	}
	_, checked, err := checksum.Check(r.key, kv.Value)
	r.checked, r.damaged = checked, err != nil || kv.ModRevision != r.number
	return r
}

// canonical reports whether data is what etcd writes for kv. The decoder skips a field whose
// number has changed.
func canonical(kv *mvccpb.KeyValue, data []byte) bool {
	again, err := kv.Marshal()
	return err == nil && bytes.Equal(again, data)
}

// number returns the main revision of a key of etcd's bucket.
func number(revision []byte) int64 {
	if len(revision) < 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(revision))
}
