// Package boltfile checks bbolt database files before they are used. bbolt trusts its pages:
// a damaged one ends the process with a panic, or with a fault in the mapped file.
package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// ErrDamaged is returned by [Check] for a file that is not a complete bbolt database.
var ErrDamaged = errors.New("the file is damaged")

// MaxBytes is the size up to which [Check] reads a file. Reading 1 GiB takes about a second
// when the file is in memory, and as long as the disk needs when it is not.
const MaxBytes = 1 << 30

// lockTimeout is how long Check waits for a process that has the file open.
const lockTimeout = time.Second

// Check reads all of a database, and returns ErrDamaged if a page is invalid. It changes
// nothing. A missing or empty file is valid, because bbolt creates a new database in it. A file
// above [MaxBytes] is not read. Values have no checksums, so damage in them is not detected.
func Check(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() && (info.Size() == 0 || info.Size() > MaxBytes) {
		return nil
	}
	err = View(path, func(tx *bolt.Tx) error {
		// The first pass reads every page in this goroutine, where a page fault is an error. The
		// second pass checks the pages against each other and against the list of free pages, in
		// a goroutine of bbolt.
		w := &walker{}
		if err := tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return w.walk(b) }); err != nil {
			return err
		}
		if tx.DB().NoFreelistSync {
			return nil
		}
		var first error
		for problem := range tx.Check() {
			if first == nil {
				first = fmt.Errorf("%w: %w", ErrDamaged, problem)
			}
		}
		return first
	})
	if err != nil {
		return err
	}
	if err := checkLayout(path); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// View runs a read-only transaction on a database that no process has open for writing. For a
// damaged page it returns ErrDamaged instead of crashing the process. read must not start
// goroutines that use the transaction.
func View(path string, read func(*bolt.Tx) error) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is not a regular file", ErrDamaged, path)
	}
	// Use a separate goroutine, because debug.SetPanicOnFault applies to one goroutine.
	done := make(chan error, 1)
	go func() { done <- view(path, read) }()
	if err := <-done; err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func view(path string, read func(*bolt.Tx) error) (err error) {
	debug.SetPanicOnFault(true)
	var file *os.File
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
			if file != nil {
				_ = file.Close() // this releases its lock
			}
		}
	}()
	// If the file has no list of free pages, bbolt builds one in a separate goroutine, where a
	// damaged page would crash the process.
	listed, err := listsFreePages(path)
	if err != nil {
		return err
	}
	db, err := bolt.Open(path, 0, &bolt.Options{
		ReadOnly: true, PreLoadFreelist: listed, NoFreelistSync: !listed, FreelistType: bolt.FreelistMapType, Timeout: lockTimeout, NoStatistics: true,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			var err error
			file, err = os.OpenFile(name, flag, mode)
			return file, err
		},
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("another process has the file open: %w", err)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	err = db.View(read)
	return errors.Join(err, db.Close())
}

// listsFreePages reports whether the file has a list of its free pages. etcd's files have none.
// It reads the two meta pages. Each has 16 bytes of header, and then magic, version, page size
// and flags with four bytes each. The root bucket with 16 bytes follows, and then the page of
// the list, which is all ones in a file without one.
func listsFreePages(path string) (bool, error) {
	const header, pageSizeAt, listAt, length = 16, 8, 32, 40
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	meta := make([]byte, header+length)
	size := int64(os.Getpagesize())
	for i := range int64(2) {
		if _, err := file.ReadAt(meta, i*size); err != nil {
			return false, fmt.Errorf("%w: reading its first pages: %w", ErrDamaged, err)
		}
		if i == 0 {
			if n := binary.NativeEndian.Uint32(meta[header+pageSizeAt:]); n >= 512 && n <= 1<<16 {
				size = int64(n)
			}
		}
		if binary.NativeEndian.Uint64(meta[header+listAt:]) == math.MaxUint64 {
			return false, nil
		}
	}
	return true, nil
}

// walker reads all keys and values, which triggers the faults of damaged pages.
type walker struct{ sum byte }

func (w *walker) walk(b *bolt.Bucket) error {
	var last []byte
	return b.ForEach(func(key, value []byte) error {
		if last != nil && bytes.Compare(last, key) >= 0 {
			return fmt.Errorf("%w: the keys %x and %x are not in order", ErrDamaged, last, key)
		}
		last = key
		if value == nil {
			if inner := b.Bucket(key); inner != nil {
				return w.walk(inner)
			}
		}
		if n := len(value); n > 0 {
			w.sum ^= value[0] ^ value[n-1]
		}
		return nil
	})
}
