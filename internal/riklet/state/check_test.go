package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// TestADamagedRecordIsFoundAndRemoved: a bit that flips in a record is an error with the instance
// and the next step, and Repair removes only this record. Before records had checksums, the
// riklet used the changed record.
func TestADamagedRecordIsFoundAndRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	for i := range 5 {
		if err := s.Put(record(fmt.Sprint("uid-", i))); err != nil {
			t.Fatal(err)
		}
	}
	err := s.db.Update(func(tx *bolt.Tx) error {
		data := tx.Bucket(bucket).Get([]byte("uid-3"))
		return tx.Bucket(bucket).Put([]byte("uid-3"), []byte(strings.Replace(string(data), "busybox", "busycox", 1)))
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Load()
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "uid-3") || !strings.Contains(err.Error(), "riklet repair") {
		t.Errorf("Load() = %v; want the instance and the next step", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	records, broken, err := Check(path)
	if err != nil || records != 5 || !slices.Equal(broken, []string{"uid-3"}) {
		t.Fatalf("Check() = %d, %q, %v", records, broken, err)
	}
	saved := filepath.Join(t.TempDir(), "saved")
	removed, err := Repair(path, saved)
	if err != nil || !slices.Equal(removed, []string{"uid-3"}) {
		t.Fatalf("Repair() = %q, %v", removed, err)
	}
	content, err := os.ReadFile(filepath.Join(saved, fileName("uid-3")))
	if err != nil || !strings.Contains(string(content), "busycox") {
		t.Errorf("the saved record is %q, %v", content, err)
	}
	got, err := open(t, path).Load()
	if err != nil || len(got) != 4 {
		t.Errorf("Load() after the repair: %d records, %v; want 4", len(got), err)
	}
}

// TestRecordsOfVersion1AreRead: records from before there were checksums.
func TestRecordsOfVersion1AreRead(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	err := s.db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(bucket).Put([]byte("a"), []byte(`{"version":1,"bootID":"b","instance":{"uid":"a"}}`))
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Load()
	if err != nil || len(got) != 1 || got[0].BootID != "b" {
		t.Errorf("Load() = %+v, %v", got, err)
	}
}
