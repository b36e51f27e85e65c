package checksum_test

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apiserver/pkg/storage/value"
	"pgregory.net/rapid"

	"rik.dev/rik/internal/apiserver/datastore/checksum"
)

// TestEveryFlippedBitIsFound: a value is read as it was stored. With any one bit changed, in
// value, checksum or key, it is never read as another value.
func TestEveryFlippedBitIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringMatching(`/registry/[a-z./]{1,40}`).Draw(t, "key")
		plain := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "value")
		stored := checksum.Add(key, plain)
		got, checked, err := checksum.Check(key, stored)
		if err != nil || !checked || string(got) != string(plain) {
			t.Fatalf("got %x, checked %v: %v", got, checked, err)
		}
		if _, _, err := checksum.Check(key+"x", stored); !errors.Is(err, checksum.ErrDamaged) {
			t.Fatalf("the value was read under another key: %v", err)
		}
		bit := rapid.IntRange(0, len(stored)*8-1).Draw(t, "bit")
		stored[bit/8] ^= 1 << (bit % 8)
		if got, _, err := checksum.Check(key, stored); !errors.Is(err, checksum.ErrDamaged) {
			t.Fatalf("with bit %d changed: got %x, %v", bit, got, err)
		}
		if got, _, err := checksum.Check(key, stored[:rapid.IntRange(len(checksum.Prefix), len(stored)-1).Draw(t, "length")]); !errors.Is(err, checksum.ErrDamaged) {
			t.Fatalf("truncated: got %x, %v", got, err)
		}
	})
}

// TestOldValuesAreStale: a value from before checksums is read, and the next update stores it
// with one.
func TestOldValuesAreStale(t *testing.T) {
	key := value.DefaultContext("/registry/x")
	wrapped := checksum.Wrap(nil)
	plain, stale, err := wrapped.TransformFromStorage(context.Background(), []byte("old"), key)
	if err != nil || string(plain) != "old" || !stale {
		t.Fatalf("got %q, stale %v: %v", plain, stale, err)
	}
	stored, err := wrapped.TransformToStorage(context.Background(), plain, key)
	if err != nil {
		t.Fatal(err)
	}
	plain, stale, err = wrapped.TransformFromStorage(context.Background(), stored, key)
	if err != nil || string(plain) != "old" || stale {
		t.Fatalf("got %q, stale %v: %v", plain, stale, err)
	}
}

func BenchmarkAddAndCheck(b *testing.B) {
	plain := make([]byte, 600) // the size of an Instance
	key := "/registry/rik.dev/instances/default/web-abcde"
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := checksum.Check(key, checksum.Add(key, plain)); err != nil {
			b.Fatal(err)
		}
	}
}
