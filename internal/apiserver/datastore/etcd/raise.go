package etcd

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// openTimeout is how long Raise waits for another process that uses the database.
const openTimeout = 5 * time.Second

// Raise makes the next revision of a stopped etcd higher than floor, and marks all revisions up to
// it as compacted, so that a watch from one of them is refused. It does what "etcdutl snapshot
// restore --bump-revision --mark-compacted" does, in the files of this member. It changes nothing
// if the revision is higher already.
func Raise(dir string, floor int64) (err error) {
	path := datadir.ToBackendFileName(filepath.Join(dir, "etcd"))
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: openTimeout})
	if err != nil {
		return fmt.Errorf("opening etcd's database %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.Update(func(tx *bolt.Tx) error {
		keys, meta := tx.Bucket(schema.Key.Name()), tx.Bucket(schema.Meta.Name())
		if keys == nil || meta == nil {
			return errors.New("it has no objects")
		}
		if last, _ := keys.Cursor().Last(); last != nil && mvcc.BytesToBucketKey(last).Main >= floor {
			return nil
		}
		if err := keys.Put(mvcc.RevToBytes(mvcc.Revision{Main: floor}, mvcc.NewRevBytes()), []byte{}); err != nil {
			return err
		}
		return meta.Put(schema.ScheduledCompactKeyName, mvcc.RevToBytes(mvcc.Revision{Main: floor}, mvcc.NewRevBytes()))
	})
	if err != nil {
		return fmt.Errorf("raising the revision in %s: %w", path, err)
	}
	return nil
}
