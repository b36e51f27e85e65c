package kine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// withSQLite opens a SQLite datastore, calls use, and closes the datastore.
func withSQLite(t *testing.T, source, dir string, use func(*Server, *clientv3.Client)) {
	t.Helper()
	s, err := Start(t.Context(), Config{Source: source, Dir: dir, SocketDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	use(s, client)
	if err := errors.Join(client.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}

func create(t *testing.T, client *clientv3.Client, from, to, size int) {
	t.Helper()
	for i := from; i < to; i++ {
		key := fmt.Sprintf("/registry/%d", i)
		answer, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
			Then(clientv3.OpPut(key, strings.Repeat("x", size))).Commit()
		if err != nil || !answer.Succeeded {
			t.Fatalf("writing: %v, %v", answer, err)
		}
	}
}

func count(t *testing.T, client *clientv3.Client) int64 {
	t.Helper()
	got, err := client.Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return got.Count
}

// TestTheMainFileIsCompleteAfterAStop: after a normal stop a copy of the main file is complete,
// and only its user can read it.
func TestTheMainFileIsCompleteAfterAStop(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	withSQLite(t, "sqlite://", dir, func(_ *Server, client *clientv3.Client) { create(t, client, 0, 50, 1000) })
	if info, err := os.Stat(path + "-wal"); err == nil && info.Size() > 0 {
		t.Errorf("the log has %d bytes after a stop, want none", info.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file = %v, %v; want 0600", info.Mode(), err)
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(copied, data, 0o600); err != nil {
		t.Fatal(err)
	}
	withSQLite(t, "sqlite://"+copied, "", func(_ *Server, client *clientv3.Client) {
		if n := count(t, client); n < 50 { // kine adds one object of its own
			t.Errorf("the copy has %d objects, want 50", n)
		}
	})
}

// TestTheFileShrinks: free pages return to the disk, also in a file that was created without
// that mode.
func TestTheFileShrinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	withSQLite(t, "sqlite://", dir, func(s *Server, client *clientv3.Client) {
		if _, err := s.file.db.ExecContext(t.Context(), "PRAGMA auto_vacuum"); err != nil {
			t.Fatal(err)
		}
		create(t, client, 0, 200, 60000)
		if err := s.file.checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := size()
		if _, err := s.file.db.ExecContext(t.Context(), "DELETE FROM kine WHERE name LIKE '/registry/1%'"); err != nil {
			t.Fatal(err)
		}
		if err := s.file.vacuum(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after := size(); after > before*6/10 {
			t.Errorf("the file has %d bytes after more than half was deleted, and had %d", after, before)
		}
	})
}

// opened counts this process's file descriptors of a file.
func opened(t *testing.T, path string) int {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, d := range descriptors {
		if target, err := os.Readlink(filepath.Join("/proc/self/fd", d.Name())); err == nil && target == path {
			n++
		}
	}
	return n
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	withSQLite(t, "sqlite://", dir, func(_ *Server, client *clientv3.Client) {
		done := make(chan error, 64)
		for i := range 64 {
			go func() {
				key := fmt.Sprintf("/registry/%d", i)
				_, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, "x")).Commit()
				done <- err
			}()
		}
		for range 64 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		// The sqliteFile has one more connection.
		if n := opened(t, filepath.Join(dir, "state.db")); n > sqliteConnections+1 {
			t.Errorf("64 writers left %d connections, want %d at most", n, sqliteConnections+1)
		}
	})
}

func TestFilesThatAreNoDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole := filepath.Join(dir, "state.db")
	withSQLite(t, "sqlite://", dir, func(_ *Server, client *clientv3.Client) { create(t, client, 0, 300, 2000) })
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	damagedPages := append([]byte(nil), data...)
	for i := 5 * 4096; i < 40*4096; i++ {
		damagedPages[i] = byte(i * 7)
	}
	for name, tc := range map[string]struct {
		make func(path string) error
		says []string
	}{
		"a directory":    {func(path string) error { return os.Mkdir(path, 0o700) }, []string{"is not a file"}},
		"another file":   {func(path string) error { return os.WriteFile(path, []byte("hello, this is text"), 0o600) }, []string{"not a SQLite database", "backup", "--new-cluster"}},
		"damaged pages":  {func(path string) error { return os.WriteFile(path, damagedPages, 0o600) }, []string{"backup", "--new-cluster"}},
		"truncated":      {func(path string) error { return os.WriteFile(path, data[:20*4096], 0o600) }, []string{"backup", "--new-cluster"}},
		"only the log":   {func(path string) error { return os.WriteFile(path+"-wal", data[:4096], 0o600) }, []string{"-wal", "backup"}},
		"no such folder": {func(path string) error { return nil }, []string{"no such file or directory"}},
	} {
		path := filepath.Join(t.TempDir(), "x.db")
		if name == "no such folder" {
			path = filepath.Join(filepath.Dir(path), "none", "x.db")
		}
		if err := tc.make(path); err != nil {
			t.Fatal(err)
		}
		s, err := Start(t.Context(), Config{Source: "sqlite://" + path, SocketDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			t.Errorf("%s: it is opened", name)
			_ = s.Close()
			continue
		}
		for _, want := range append(tc.says, path) {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Start() = %v, want it to say %q", name, err, want)
			}
		}
	}
}

// TestOpeningEndsWithItsCaller: Start retries an unreachable database until the caller's
// context ends.
func TestOpeningEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	why := errors.New("the test ends the wait")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, err := Start(ctx, Config{Source: "postgres://u@127.0.0.1:1/rik", SocketDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Error("a database without a server is opened")
	}
}
