package boltfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// newFile writes a database with branch pages, overflow pages, nested buckets and free pages.
// With NoFreelistSync the file has no list of free pages, like etcd's.
func newFile(t *testing.T, options *bolt.Options) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	db, err := bolt.Open(path, 0o600, options)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		err := db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("objects"))
			if err != nil {
				return err
			}
			inner, err := b.CreateBucketIfNotExists([]byte("inner"))
			if err != nil {
				return err
			}
			for i := range 300 {
				key := fmt.Appendf(nil, "key-%d-%d", round, i)
				if err := errors.Join(b.Put(key, make([]byte, 100+20*i)), inner.Put(key, key)); err != nil {
					return err
				}
			}
			return b.Delete([]byte("key-0-7"))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// kinds are the options that change the format of a file.
var kinds = map[string]*bolt.Options{"with a list of free pages": nil, "without": {NoFreelistSync: true}}

func TestCheckTakesWhatIsWhole(t *testing.T) {
	t.Parallel()
	for kind, options := range kinds {
		path := newFile(t, options)
		for range 2 {
			if err := Check(path); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{empty, filepath.Join(t.TempDir(), "missing")} {
		if err := Check(path); err != nil {
			t.Errorf("Check(%s) = %v, want nothing", filepath.Base(path), err)
		}
	}
}

func TestCheckFindsDamage(t *testing.T) {
	t.Parallel()
	page := int64(os.Getpagesize())
	overwrite := func(at, bytes int64, fill func([]byte)) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			t.Helper()
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			data := make([]byte, bytes)
			fill(data)
			_, err = f.WriteAt(data, at)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	random := func(b []byte) { _, _ = rand.Read(b) }
	for name, spoil := range map[string]func(*testing.T, string){
		"both meta pages":    overwrite(0, 2*page, func([]byte) {}),
		"pages of zeros":     overwrite(20*page, 400*page, func([]byte) {}),
		"random pages":       overwrite(20*page, 400*page, random),
		"all but meta pages": overwrite(2*page, 1000*page, random),
		"truncated":          func(t *testing.T, path string) { truncate(t, path, 30*page) },
		"another file":       func(t *testing.T, path string) { truncate(t, path, 0); overwrite(0, 5000, random)(t, path) },
		"a directory": func(t *testing.T, path string) {
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for kind, options := range kinds {
				path := newFile(t, options)
				spoil(t, path)
				for range 2 { // the first call must leave no lock
					if err := Check(path); !errors.Is(err, ErrDamaged) {
						t.Errorf("%s: Check() = %v, want ErrDamaged", kind, err)
					}
				}
			}
		})
	}
}

// TestCheckSurvivesEveryPage damages one page after the other. The check must return for each of
// them.
func TestCheckSurvivesEveryPage(t *testing.T) {
	t.Parallel()
	for kind, options := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			surviveEveryPage(t, newFile(t, options))
		})
	}
}

func surviveEveryPage(t *testing.T, path string) {
	t.Helper()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	spoiled := filepath.Join(t.TempDir(), "spoiled")
	found := 0
	for at := 0; at+page <= len(whole); at += page * 41 {
		data := append([]byte(nil), whole...)
		_, _ = rand.Read(data[at : at+page])
		if err := os.WriteFile(spoiled, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Check(spoiled); errors.Is(err, ErrDamaged) {
			found++
		} else if err != nil {
			t.Errorf("page %d: %v", at/page, err)
		}
	}
	if found == 0 {
		t.Error("no damage was found")
	}
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}
