package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rik.dev/rik/internal/pause"
)

const (
	// spaceInterval is the pause between two checks of the database size.
	spaceInterval = 30 * time.Second
	// spaceEveryFull is that pause while the quota is used up.
	spaceEveryFull = 2 * time.Second
	// spaceTimeout bounds one check. A defragmentation of 8 GiB takes most of it.
	spaceTimeout = 5 * time.Minute
	// warnAt is the share of the quota, in percent, above which the administrator is warned.
	warnAt = 60
	// clearBelow is the share of the quota, in percent, below which writes are allowed again.
	// Above it the next write would be refused.
	clearBelow = 95
	// startShrinkMegabytes is the minimum gain for a defragmentation at the start.
	startShrinkMegabytes = 100
	// spaceLogged is the pause between two log messages with the same content.
	spaceLogged = 10 * time.Minute
)

// ErrFull is returned by Space when the quota is used up.
var ErrFull = errors.New("the datastore is full")

// usage is the size of the database.
type usage struct {
	size, inUse int64 // bytes of the file, and of its used pages
	quota       int64
	alarm       bool // etcd refuses writes
}

// action is the reaction to a usage.
type action struct {
	// compact drops old revisions. etcd refuses the API server's compaction while it is full.
	compact bool
	// defragment returns free pages to the disk. Requests wait for it, so that it runs only while
	// writes are refused anyway, at the start, and on request.
	defragment   bool
	disarm, warn bool
}

func decideSpace(u usage) action {
	a := action{compact: u.alarm, warn: u.alarm || u.inUse*100 >= u.quota*warnAt}
	a.defragment = u.alarm && u.size*100 >= u.quota*clearBelow && u.inUse*100 < u.quota*clearBelow
	a.disarm = u.alarm && u.size*100 < u.quota*clearBelow
	return a
}

// space keeps the database below its quota if possible, and reports when it is not.
type space struct {
	logger *slog.Logger
	quota  int64
	client *clientv3.Client
	server string

	mu     sync.Mutex
	latest usage
	// warned is when the last warning was logged: false for a nearly full quota, true for a full
	// one.
	warned map[bool]time.Time
}

// newSpace connects to the server of which it is a part.
func newSpace(endpoint string, quota int64, logger *slog.Logger) (*space, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("connecting to the embedded etcd: %w", err)
	}
	return &space{logger: logger, quota: quota, client: client, server: endpoint, warned: map[bool]time.Time{}}, nil
}

// keep checks the size until ctx ends.
func (s *space) keep(ctx context.Context) {
	for {
		interval := spaceInterval
		if s.full() != nil {
			interval = spaceEveryFull
		}
		if !pause.For(ctx, interval) {
			return
		}
		if err := s.maintain(ctx); err != nil && ctx.Err() == nil {
			s.logger.Warn("reading the size of the datastore failed", "err", err)
		}
	}
}

// maintain checks the size once and performs the necessary actions.
func (s *space) maintain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, spaceTimeout)
	defer cancel()
	u, err := s.look(ctx)
	if err != nil {
		return err
	}
	a := decideSpace(u)
	if a.compact {
		if err := s.compact(ctx); err != nil {
			return err
		}
		if u, err = s.look(ctx); err != nil {
			return err
		}
		a = decideSpace(u)
	}
	if a.defragment {
		began := time.Now()
		if _, err := s.client.Defragment(ctx, s.server); err != nil {
			return fmt.Errorf("defragmenting the datastore: %w", err)
		}
		before := u.size
		if u, err = s.look(ctx); err != nil {
			return err
		}
		s.logger.Info("the datastore was defragmented", "bytesBefore", before, "bytesAfter", u.size, "took", time.Since(began).Round(time.Millisecond))
		a = decideSpace(u)
	}
	if a.disarm {
		if _, err := s.client.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
			return fmt.Errorf("allowing writes again: %w", err)
		}
		s.logger.Info("the datastore accepts writes again", "bytes", u.size, "quota", u.quota)
		if u, err = s.look(ctx); err != nil {
			return err
		}
	}
	s.note(u, a.warn)
	return nil
}

func (s *space) look(ctx context.Context) (usage, error) {
	status, err := s.client.Status(ctx, s.server)
	if err != nil {
		return usage{}, fmt.Errorf("reading the size of the datastore: %w", err)
	}
	u := usage{size: status.DbSize, inUse: status.DbSizeInUse, quota: s.quota}
	alarms, err := s.client.AlarmList(ctx)
	if err != nil {
		return usage{}, fmt.Errorf("reading the alarms of the datastore: %w", err)
	}
	for _, alarm := range alarms.Alarms {
		u.alarm = u.alarm || alarm.Alarm == etcdserverpb.AlarmType_NOSPACE
	}
	return u, nil
}

// compact drops all revisions except the latest. Clients that read an older one must start
// again.
func (s *space) compact(ctx context.Context) error {
	now, err := s.client.Get(ctx, "\x00", clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("reading the revision of the datastore: %w", err)
	}
	if _, err := s.client.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical()); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compacting the datastore: %w", err)
	}
	return nil
}

func (s *space) note(u usage, warn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = u
	if !warn || time.Since(s.warned[u.alarm]) < spaceLogged {
		return
	}
	s.warned[u.alarm] = time.Now()
	if u.alarm {
		s.logger.Error("the datastore's quota is used up: nothing can be stored; next: delete objects, or start the server with a larger --datastore-quota",
			"bytesInUse", u.inUse, "quota", u.quota)
		return
	}
	s.logger.Warn("much of the datastore's quota is used; next: delete objects, or start the server with a larger --datastore-quota",
		"bytesInUse", u.inUse, "quota", u.quota)
}

// full returns ErrFull while nothing can be stored.
func (s *space) full() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.latest.alarm {
		return nil
	}
	return fmt.Errorf("%w: %d of %d bytes are in use: delete objects, or start the server with a larger --datastore-quota", ErrFull, s.latest.inUse, s.latest.quota)
}
