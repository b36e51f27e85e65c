package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Reclaimed is the result of Reclaim, in bytes.
type Reclaimed struct {
	// Before and After are the size of the file.
	Before, After int64
	// InUse is the used part of the file, and Quota its limit.
	InUse, Quota int64
	// Cleared is whether the server refused writes before, and accepts them now. Full is whether it
	// still refuses them.
	Cleared, Full bool
}

// Reclaim compacts and defragments a running server, and clears the alarm of a full quota if
// there is space again.
func Reclaim(ctx context.Context, endpoint string) (r Reclaimed, err error) {
	s, err := newSpace(endpoint, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.client.Close()) }()
	status, err := s.client.Status(ctx, endpoint)
	if err != nil {
		return r, fmt.Errorf("reading the size of the datastore: %w", err)
	}
	if s.quota = status.DbSizeQuota; s.quota == 0 {
		return r, errors.New("the datastore is not an etcd: a SQL database returns free space by itself")
	}
	before, err := s.look(ctx)
	if err != nil {
		return r, err
	}
	if err := s.compact(ctx); err != nil {
		return r, err
	}
	if _, err := s.client.Defragment(ctx, endpoint); err != nil {
		return r, fmt.Errorf("defragmenting the datastore: %w", err)
	}
	after, err := s.look(ctx)
	if err != nil {
		return r, err
	}
	r = Reclaimed{Before: before.size, After: after.size, InUse: after.inUse, Quota: s.quota, Full: after.alarm}
	if decideSpace(after).disarm {
		if _, err := s.client.AlarmDisarm(ctx, &clientv3.AlarmMember{Alarm: etcdserverpb.AlarmType_NONE}); err != nil {
			return r, fmt.Errorf("allowing writes again: %w", err)
		}
		r.Cleared, r.Full = true, false
	}
	return r, nil
}
