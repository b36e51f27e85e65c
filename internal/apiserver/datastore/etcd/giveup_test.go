package etcd

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// TestDamagedDatabase: etcd panics for such a file in another goroutine. Before this fix, that
// ended the server with a stack trace.
func TestDamagedDatabase(t *testing.T) {
	t.Parallel()
	cfg := Config{Dir: t.TempDir(), SocketDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cfg.Dir, "etcd")
	db := filepath.Join(dir, "member", "snap", "db")
	f, err := os.OpenFile(db, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Overwrite both of its meta pages.
	if _, err := f.WriteAt(make([]byte, 2*os.Getpagesize()), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Start(t.Context(), cfg)
	if err == nil {
		t.Fatal("a damaged database was started")
	}
	for _, want := range []string{dir, "the database with the objects of the cluster cannot be read", "invalid database", "next: ", "restore"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Start() = %q, want it to say %q", err, want)
		}
	}
}

// TestFullDisk: the error of a start that etcd gives up contains its cause.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	end := newStartFailure()
	logger := zap.New(zapcore.NewNopCore(), end.options()...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		//prose:foreign
		logger.Panic("failed to create WAL", zap.String("path", "wal"), zap.Error(&os.PathError{Op: "write", Path: "wal", Err: syscall.ENOSPC}))
	}()
	err := <-end.reported
	<-ended
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Err() = %v, want the cause", err)
	}
	if got := explain("/data/etcd", err).Error(); !strings.Contains(got, "/data/etcd: failed to create WAL: write wal: no space left") || !strings.Contains(got, "next: free ") {
		t.Errorf("explain = %q", got)
	}
}

// TestEtcdFailsOrRuns: the first of the two states wins. A running etcd ends as etcd itself
// does.
func TestEtcdFailsOrRuns(t *testing.T) {
	t.Parallel()
	gone, alive := newStartFailure(), newStartFailure()
	for range 2 { // the second error follows from the first
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			zap.New(zapcore.NewNopCore(), gone.options()...).Fatal("no more")
		}()
		<-ended
	}
	if gone.running() || (<-gone.reported).Error() != "no more" {
		t.Error("what gave up runs, or does not say why")
	}
	if !alive.running() {
		t.Error("what did not give up does not run")
	}
	defer func() {
		if recover() == nil {
			t.Error("what runs goes on after its end")
		}
	}()
	zap.New(zapcore.NewNopCore(), alive.options()...).Panic("no more")
}
