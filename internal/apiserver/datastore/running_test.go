package datastore

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestReclaim: the command returns the space of deleted objects and of old revisions.
func TestReclaim(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Reclaim(t.Context(), dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Reclaim() without a server = %v, want %v", err, ErrNotRunning)
	}
	store, err := Open(t.Context(), Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for i := range 20 {
		if _, err := store.client.Put(t.Context(), fmt.Sprintf("/registry/%d", i), strings.Repeat("x", 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.client.Delete(t.Context(), "/registry/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	r, err := Reclaim(t.Context(), dir)
	if err != nil || r.Before <= r.After || r.After > 4<<20 || r.Full || r.Cleared {
		t.Errorf("Reclaim() = %+v, %v; want less than 4 MiB", r, err)
	}
	sql := t.TempDir()
	other, err := Open(t.Context(), Config{Endpoint: "sqlite://", Dir: sql, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := Reclaim(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "by itself") {
		t.Errorf("Reclaim() of SQLite = %v", err)
	}
}
