package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rik.dev/rik/internal/testkit/output"
	"rik.dev/rik/internal/testkit/poll"
)

func TestDecideSpace(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	for name, tc := range map[string]struct {
		u    usage
		want action
	}{
		"small":                         {usage{size: 10 * mb, inUse: 5 * mb, quota: 1000 * mb}, action{}},
		"nearly full":                   {usage{size: 900 * mb, inUse: 850 * mb, quota: 1000 * mb}, action{warn: true}},
		"much is free":                  {usage{size: 700 * mb, inUse: 100 * mb, quota: 1000 * mb}, action{}},
		"full of objects":               {usage{size: 1000 * mb, inUse: 990 * mb, quota: 1000 * mb, alarm: true}, action{compact: true, warn: true}},
		"full of free pages":            {usage{size: 1000 * mb, inUse: 900 * mb, quota: 1000 * mb, alarm: true}, action{compact: true, warn: true, defragment: true}},
		"full before the quota is more": {usage{size: 1000 * mb, inUse: 990 * mb, quota: 2000 * mb, alarm: true}, action{compact: true, warn: true, disarm: true}},
	} {
		if got := decideSpace(tc.u); got != tc.want {
			t.Errorf("%s: decideSpace() = %+v, want %+v", name, got, tc.want)
		}
	}
}

// TestAFullDatabase: a datastore reports when its quota is used up. It accepts writes again by
// itself after objects were deleted, and with a larger quota after a restart.
func TestAFullDatabase(t *testing.T) {
	t.Parallel()
	var log output.Buffer
	cfg := Config{Dir: t.TempDir(), SocketDir: t.TempDir(), Quota: 24 << 20, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	end := func() {
		t.Helper()
		if err := errors.Join(client.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	}
	written := 0
	fill := func() {
		t.Helper()
		// A refused write may fit once free pages are returned.
		for s.Space() == nil {
			if written++; written > 500 {
				t.Fatal("the quota was never used up")
			}
			if _, err := client.Put(t.Context(), fmt.Sprintf("/registry/%03d", written), strings.Repeat("x", 1<<20)); err != nil {
				if err := s.space.maintain(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	fill()
	if err := s.Space(); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "--datastore-quota") {
		t.Errorf("Space() of a full database = %v, want ErrFull with the flag", err)
	}
	if err := s.space.maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := log.String(); strings.Count(text, "quota is used up") != 1 {
		t.Errorf("the log says:\n%s", text)
	}
	if _, err := client.Delete(t.Context(), "/registry/00", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	// The space that a compaction frees is visible some commits later.
	poll.Until(t, time.Minute, "there is space again", func(ctx context.Context) error {
		return errors.Join(s.space.maintain(ctx), s.Space())
	})
	if _, err := client.Put(t.Context(), "/registry/again", "x"); err != nil {
		t.Errorf("writing after objects were deleted: %v", err)
	}
	fill()
	if r, err := Reclaim(t.Context(), s.Endpoint()); err != nil || !r.Full || r.Cleared || r.Quota != cfg.Quota {
		t.Errorf("Reclaim() of a database full of objects = %+v, %v", r, err)
	}
	end()
	cfg.Quota = 0
	if s, err = Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if client, err = clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()}); err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	if _, err := client.Put(t.Context(), "/registry/larger", "x"); err != nil {
		t.Errorf("writing with a larger quota: %v", err)
	}
	end()
}
