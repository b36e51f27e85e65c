package etcd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rik.dev/rik/internal/apiserver/datastore/checksum"
)

// flip changes the first bit of every occurrence of text in a file. Pages that bbolt has freed
// contain older copies.
func flip(t *testing.T, path, text string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for at := len(content); ; found++ {
		at = bytes.LastIndex(content[:at], []byte(text))
		if at < 0 {
			break
		}
		content[at] ^= 1
	}
	if found == 0 {
		t.Fatalf("%s does not contain %q", path, text)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// rewrite replaces the records for which change returns another one.
func rewrite(t *testing.T, path string, change func(revision, record []byte) []byte) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	err = db.Update(func(tx *bolt.Tx) error {
		bucket := tx.Bucket([]byte("key"))
		records := map[string][]byte{}
		_ = bucket.ForEach(func(revision, record []byte) error {
			if other := change(revision, record); other != nil {
				records[string(revision)] = other
			}
			return nil
		})
		for revision, record := range records {
			changed++
			if err := bucket.Put([]byte(revision), record); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil || changed == 0 {
		t.Fatalf("%d records changed: %v", changed, err)
	}
}

func put(t *testing.T, client *clientv3.Client, name, content string) {
	t.Helper()
	key := "/registry/" + name
	if _, err := client.Put(t.Context(), key, string(checksum.Add(key, []byte(content)))); err != nil {
		t.Fatal(err)
	}
}

// TestFlippedBitsInObjects: a bit that flips in a stored object stops the start with an error
// that names the object. Before rik had checksums, the server served the changed object.
func TestFlippedBitsInObjects(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		write func(t *testing.T, client *clientv3.Client)
		flip  string
		spoil func(t *testing.T, path string)
		want  []string // the damaged objects; none: etcd starts
	}{
		"value":    {flip: "content of three", want: []string{"/registry/three"}},
		"checksum": {flip: string(checksum.Add("/registry/three", []byte("content of three"))[len(checksum.Prefix):][:4]), want: []string{"/registry/three"}},
		"key":      {flip: "three\x10", want: []string{"/registry/uhree"}},
		"an old revision": {
			write: func(t *testing.T, client *clientv3.Client) { put(t, client, "three", "newer") },
			flip:  "content of three",
		},
		"a deletion": {
			write: func(t *testing.T, client *clientv3.Client) {
				if _, err := client.Delete(t.Context(), "/registry/four"); err != nil {
					t.Fatal(err)
				}
			},
			spoil: func(t *testing.T, path string) {
				rewrite(t, path, func(revision, record []byte) []byte {
					if len(revision) != tombstoneBytes {
						return nil
					}
					return bytes.Replace(record, []byte("four"), []byte("gour"), 1)
				})
			},
			want: []string{"a deletion of /registry/gour"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := stopped(t, 0)
			withClient(t, cfg, func(client *clientv3.Client) {
				for _, name := range []string{"one", "two", "three", "four"} {
					put(t, client, name, "content of "+name)
				}
				if tc.write != nil {
					tc.write(t, client)
				}
			})
			f := filesOf(filepath.Join(cfg.Dir, "etcd"))
			if tc.spoil != nil {
				tc.spoil(t, f.db)
			} else {
				flip(t, f.db, tc.flip)
			}
			s, err := Start(t.Context(), cfg)
			if len(tc.want) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, checksum.ErrObjects) {
				t.Fatalf("Start() = %v, want %v", err, checksum.ErrObjects)
			}
			for _, want := range append(tc.want, "rik repair") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Start() = %q, want it to say %q", err, want)
				}
			}
		})
	}
}

// TestOrdinaryDatabasesHaveNoDamage: after updates, deletions, creations again and compaction,
// no object is called damaged.
func TestOrdinaryDatabasesHaveNoDamage(t *testing.T) {
	t.Parallel()
	for back := range int64(8) { // a compaction at each kind of revision
		t.Run(fmt.Sprint(back), func(t *testing.T) {
			t.Parallel()
			testOrdinary(t, back)
		})
	}
}

func testOrdinary(t *testing.T, back int64) {
	cfg := stopped(t, 0)
	withClient(t, cfg, func(client *clientv3.Client) {
		for round := range 6 {
			for i := range 40 {
				key := fmt.Sprintf("/registry/%d", i)
				if i%3 == round%3 {
					if _, err := client.Delete(t.Context(), key); err != nil {
						t.Fatal(err)
					}
					continue
				}
				put(t, client, fmt.Sprint(i), fmt.Sprintf("content %d", round))
			}
			if round%2 == 1 {
				got, err := client.Get(t.Context(), "/registry/1")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := client.Compact(t.Context(), got.Header.Revision-back, clientv3.WithCompactPhysical()); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
	o, err := checkObjects(filesOf(filepath.Join(cfg.Dir, "etcd")).db)
	if err != nil || len(o.Damaged) > 0 || o.Checked == 0 {
		t.Errorf("got %+v, %v; want checked objects and none damaged", o, err)
	}
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAnyFlippedBit: any one flipped bit in the database is an error of the start, or changes
// nothing that a client reads.
func TestAnyFlippedBit(t *testing.T) {
	t.Parallel()
	cfg := stopped(t, 0)
	withClient(t, cfg, func(client *clientv3.Client) {
		for i := range 60 {
			put(t, client, fmt.Sprint(i), strings.Repeat(fmt.Sprint(i), 100))
		}
	})
	read := func(cfg Config) (all []string, err error) {
		s, err := Start(t.Context(), cfg)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}})
		if err != nil {
			return nil, err
		}
		defer client.Close()
		got, err := client.Get(t.Context(), "/registry/", clientv3.WithPrefix())
		if err != nil {
			return nil, err
		}
		for _, kv := range got.Kvs {
			plain, _, err := checksum.Check(string(kv.Key), kv.Value)
			if err != nil {
				return nil, err
			}
			all = append(all, fmt.Sprintf("%s=%s", kv.Key, plain))
		}
		return all, nil
	}
	want, err := read(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := filesOf(filepath.Join(cfg.Dir, "etcd")).db
	used := usedBytes(t, db)
	flips, seed := 12, uint64(rand.Uint32())
	if text := os.Getenv("RIK_DRILL_ROUNDS"); text != "" {
		flips = 20 * atoi(t, text)
	}
	if text := os.Getenv("RIK_DRILL_SEED"); text != "" {
		seed = uint64(atoi(t, text))
	}
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("RIK_DRILL_SEED=%d", seed)
	refused, unchanged := 0, 0
	for i := range flips {
		copied := cfg
		copied.Dir, copied.SocketDir = t.TempDir(), t.TempDir()
		if err := os.CopyFS(filepath.Join(copied.Dir, "etcd"), os.DirFS(filepath.Join(cfg.Dir, "etcd"))); err != nil {
			t.Fatal(err)
		}
		at := used[random.IntN(len(used))]
		flipBit(t, filesOf(filepath.Join(copied.Dir, "etcd")).db, at, i%8)
		around := surroundings(t, filesOf(filepath.Join(copied.Dir, "etcd")).db, at)
		got, err := read(copied)
		if err := os.RemoveAll(copied.Dir); err != nil { // its log alone has 64 MB
			t.Error(err)
		}
		switch {
		case err != nil:
			refused++
		case slices.Equal(got, want):
			unchanged++
		default:
			t.Errorf("bit %d of byte %d: etcd started with other objects; around it is %q", i%8, at, around)
			for j := range max(len(got), len(want)) {
				if j >= len(got) || j >= len(want) || got[j] != want[j] {
					t.Logf("%d of %d and %d: %.60s", j, len(got), len(want), got[min(j, len(got)-1)])
					break
				}
			}
		}
	}
	t.Logf("refused %d, unchanged %d", refused, unchanged)
	if refused == 0 {
		t.Error("no flipped bit was found")
	}
}

// usedBytes returns the offsets of the bytes that are not zero. Most of a small database is empty.
func usedBytes(t *testing.T, path string) (used []int64) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range content {
		if b != 0 {
			used = append(used, int64(i))
		}
	}
	return used
}

// surroundings returns the bytes before and after an offset.
func surroundings(t *testing.T, path string, at int64) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content[max(0, at-60):min(at+60, int64(len(content)))]
}

func flipBit(t *testing.T, path string, at int64, bit int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	b[0] ^= 1 << bit
	_, werr := f.WriteAt(b, at)
	if err := errors.Join(err, werr, f.Close()); err != nil {
		t.Fatal(err)
	}
}
