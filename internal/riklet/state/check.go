package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/boltfile"
)

// Check reads all records of a file that no process has open, and changes nothing. It returns the
// number of records and the UIDs of the instances whose records are damaged. The error satisfies
// ErrDamaged if the file as a whole is damaged, and ErrNewer if a later version wrote a record. A
// missing file has no records.
func Check(path string) (records int, broken []string, err error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return 0, nil, nil
	}
	if err := boltfile.Check(path); err != nil {
		if errors.Is(err, boltfile.ErrDamaged) {
			return 0, nil, damaged(path, err)
		}
		return 0, nil, fmt.Errorf("opening the state %s (another riklet may be using it): %w", path, err)
	}
	err = boltfile.View(path, func(tx *bolt.Tx) error {
		b := tx.Bucket(bucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(uid, data []byte) error {
			records++
			_, err := decode(string(uid), data)
			if errors.Is(err, ErrNewer) {
				return fmt.Errorf("record of instance %s: %w", uid, err)
			}
			if err != nil {
				broken = append(broken, string(uid))
			}
			return nil
		})
	})
	return records, broken, err
}

// Repair removes the damaged records of a file that no process has open, after it has saved each
// one in the directory dir. It returns the UIDs of their instances. It repairs no file that is
// damaged as a whole.
func Repair(path, dir string) (removed []string, err error) {
	_, broken, err := Check(path)
	if err != nil || len(broken) == 0 {
		return nil, err
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType})
	if err != nil {
		return nil, fmt.Errorf("opening the state %s (another riklet may be using it): %w", path, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	err = db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucket)
		for _, uid := range broken {
			if err := atomicfile.Write(filepath.Join(dir, fileName(uid)), b.Get([]byte(uid))); err != nil {
				return fmt.Errorf("saving the record of instance %s: %w", uid, err)
			}
			if err := b.Delete([]byte(uid)); err != nil {
				return err
			}
		}
		return nil
	})
	return broken, errors.Join(err, db.Close())
}

// fileName is a file name for a UID from a damaged file.
func fileName(uid string) string { return fmt.Sprintf("record-%x", uid) }
