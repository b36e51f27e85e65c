package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc"
)

const (
	// leaderWait bounds the wait of a write for a leader.
	leaderWait = 4 * time.Second
	// settleTime is how long a write that was sent to a lost leader may still take under the next
	// one, which commits what it has received.
	settleTime = 500 * time.Millisecond
)

// errLeaderLost cancels a write whose leader was lost.
var errLeaderLost = errors.New("the leader was lost")

// errStopping is the answer of a member that was removed.
var errStopping = rpctypes.ErrGRPCStopped

// intercept makes writes wait for a leader, and ends those that were sent to a leader that was lost.
// etcd itself would refuse the former at once, and would let the latter wait for seven seconds. The
// answer to the latter is the same: the write may have happened.
func (s *Server) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	server := s.raft.Load()
	if server != nil {
		// etcd panics in some requests to a member that was removed, until it has stopped.
		removed := func() bool { return server.IsIDRemoved(uint64(server.MemberID())) }
		if removed() {
			return nil, errStopping
		}
		defer func() {
			if removed() && recover() != nil {
				err = errStopping
			}
		}()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.given, cancel)()
	if server == nil || !proposes(request) {
		answer, err := handle(ctx, request)
		if err != nil && s.given.Err() != nil {
			err = rpctypes.ErrGRPCNoLeader
		}
		return answer, err
	}
	deadline := time.Now().Add(leaderWait)
	for {
		changed := server.LeaderChangedNotify()
		if server.Lead() == raft.None {
			awaitLeader(ctx, changed, time.Until(deadline))
			changed = server.LeaderChangedNotify()
		}
		answer, err := underLeader(ctx, changed, request, handle)
		// A dropped write was sent to no member.
		if !dropped(err) || ctx.Err() != nil || time.Now().After(deadline) {
			return answer, err
		}
		awaitLeader(ctx, changed, min(settleTime, time.Until(deadline)))
	}
}

// drainWait is how long a server that stops waits for a leader.
const drainWait = 3 * time.Second

// Drain is called when the server begins to stop. If the members have no leader then, and do not elect
// one soon, all requests end: otherwise each would delay the stop until its timeout.
func (s *Server) Drain() {
	if s.cluster == nil {
		return
	}
	s.running.Go(func() {
		missing := time.Now()
		for {
			if s.etcd.Server.Lead() != raft.None {
				missing = time.Now()
			} else if time.Since(missing) >= drainWait {
				s.giveUp()
				return
			}
			select {
			case <-s.ended:
				return
			case <-time.After(joinPause):
			}
		}
	})
}

// proposes reports whether a request is a write.
func proposes(request any) bool {
	switch r := request.(type) {
	case *etcdserverpb.PutRequest, *etcdserverpb.DeleteRangeRequest, *etcdserverpb.CompactionRequest, *etcdserverpb.LeaseGrantRequest:
		return true
	case *etcdserverpb.TxnRequest:
		for _, op := range slices.Concat(r.GetSuccess(), r.GetFailure()) {
			if op.GetRequestRange() == nil {
				return true
			}
		}
	}
	return false
}

func dropped(err error) bool {
	return err != nil && strings.Contains(err.Error(), raft.ErrProposalDropped.Error())
}

func awaitLeader(ctx context.Context, changed <-chan struct{}, limit time.Duration) {
	timer := time.NewTimer(max(limit, 0))
	defer timer.Stop()
	select {
	case <-changed:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// underLeader handles a write, and cancels it when the leader has changed.
func underLeader(ctx context.Context, changed <-chan struct{}, request any, handle grpc.UnaryHandler) (any, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-done:
			return
		case <-changed:
		}
		timer := time.NewTimer(settleTime)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			cancel(errLeaderLost)
		}
	}()
	answer, err := handle(ctx, request)
	if err != nil && errors.Is(context.Cause(ctx), errLeaderLost) {
		return nil, rpctypes.ErrGRPCTimeoutDueToLeaderFail
	}
	return answer, err
}
