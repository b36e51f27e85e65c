package etcd

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// stopped creates the files of an etcd with the given number of objects, and stops it.
func stopped(t *testing.T, objects int) Config {
	t.Helper()
	cfg := Config{Dir: t.TempDir(), SocketDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	withClient(t, cfg, func(client *clientv3.Client) {
		var group sync.WaitGroup
		for worker := range 50 {
			group.Go(func() {
				for i := worker; i < objects; i += 50 {
					if _, err := client.Put(t.Context(), fmt.Sprintf("/registry/%d", i), strings.Repeat("x", 500)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
	})
	return cfg
}

func withClient(t *testing.T, cfg Config, use func(*clientv3.Client)) {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	use(client)
	if err := errors.Join(client.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}

// TestDamagedFiles: before this fix, etcd ended with a stack trace, waited forever, or
// continued without the last writes. Now each case is an error that names the file and the next
// step, and no file is changed.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	page := os.Getpagesize()
	for name, tc := range map[string]struct {
		spoil func(f files) error
		says  []string
	}{
		"no log":              {func(f files) error { return os.RemoveAll(f.wal) }, []string{"write-ahead log", "is missing"}},
		"no file in the log":  {func(f files) error { return os.Remove(newest(f)) }, []string{"write-ahead log"}},
		"an empty log":        {func(f files) error { return os.Truncate(newest(f), 0) }, []string{"write-ahead log"}},
		"a log cut short":     {func(f files) error { return os.Truncate(newest(f), 60000) }, []string{"write-ahead log", "ends at entry"}},
		"a log overwritten":   {func(f files) error { return overwrite(newest(f), 10*page, 3*page, true) }, []string{"write-ahead log"}},
		"a log without start": {func(f files) error { return overwrite(oldest(f), 0, page, true) }, []string{"write-ahead log"}},
		"a file for the log": {func(f files) error {
			return errors.Join(os.RemoveAll(f.wal), os.WriteFile(f.wal, nil, 0o600))
		}, []string{"write-ahead log", "is missing"}},
		"random pages":     {func(f files) error { return overwrite(f.db, 3*page, 800*page, true) }, []string{"the database", "snap/db"}},
		"pages of zeros":   {func(f files) error { return overwrite(f.db, 3*page, 800*page, false) }, []string{"the database", "snap/db"}},
		"a short database": {func(f files) error { return os.Truncate(f.db, 100000) }, []string{"the database", "snap/db"}},
		"a directory": {func(f files) error {
			return errors.Join(os.Remove(f.db), os.Mkdir(f.db, 0o700))
		}, []string{"the database", "not a regular file"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := stopped(t, 1000)
			dir := filepath.Join(cfg.Dir, "etcd")
			if err := tc.spoil(filesOf(dir)); err != nil {
				t.Fatal(err)
			}
			before := names(t, dir)
			_, err := Start(t.Context(), cfg)
			if !errors.Is(err, errFiles) {
				t.Fatalf("Start() = %v, want %v", err, errFiles)
			}
			for _, want := range append(tc.says, "restore the data directory from a copy", "--new-cluster") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Start() = %q, want it to say %q", err, want)
				}
			}
			if after := names(t, dir); !slices.Equal(before, after) {
				t.Errorf("files before %q, after %q", before, after)
			}
		})
	}
}

// TestWholeFiles: etcd starts with undamaged files, and with files that can be rebuilt, also if
// there is a snapshot.
func TestWholeFiles(t *testing.T) {
	t.Parallel()
	cfg := stopped(t, 1000)
	count := func() {
		t.Helper()
		withClient(t, cfg, func(client *clientv3.Client) {
			got, err := client.Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil || got.Count != 1000 {
				t.Errorf("%d objects, %v; want 1000", got.Count, err)
			}
		})
	}
	count()
	// Rebuild from the log alone.
	if err := os.Remove(filesOf(filepath.Join(cfg.Dir, "etcd")).db); err != nil {
		t.Fatal(err)
	}
	count()
}

func TestFilesWithASnapshot(t *testing.T) {
	t.Parallel()
	cfg := stopped(t, snapshotCount+1000)
	dir := filepath.Join(cfg.Dir, "etcd")
	if snaps, err := filepath.Glob(filepath.Join(dir, "member", "snap", "*.snap")); err != nil || len(snaps) == 0 {
		t.Fatalf("there are the snapshots %q, %v; the test needs one", snaps, err)
	}
	withClient(t, cfg, func(*clientv3.Client) {})
	// The log from the snapshot on is not enough to rebuild the database.
	if err := os.Remove(filesOf(dir).db); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), cfg); !errors.Is(err, errFiles) || !strings.Contains(err.Error(), "missing or older than the snapshot") {
		t.Errorf("Start() without the database = %v, want %v", err, errFiles)
	}
}

func filesOf(dir string) files {
	return files{db: filepath.Join(dir, "member", "snap", "db"), snaps: filepath.Join(dir, "member", "snap"), wal: filepath.Join(dir, "member", "wal")}
}

func logFiles(f files) []string {
	names, _ := filepath.Glob(filepath.Join(f.wal, "*.wal"))
	slices.Sort(names)
	return names
}

func newest(f files) string { n := logFiles(f); return n[len(n)-1] }
func oldest(f files) string { return logFiles(f)[0] }

func overwrite(path string, at, length int, random bool) error {
	data := make([]byte, length)
	if random {
		_, _ = rand.Read(data)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, int64(at))
	return errors.Join(err, f.Close())
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
