// Package connection keeps the node's two connections: to the scheduler, which
// says what to run and is told what is seen, and to the controller, which has
// what instances refer to and opens sessions. Both are dialed by the node,
// and both are dialed again when they are lost, for as long as the node runs.
package connection

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

const (
	// pauseFirst and pauseMost bound the wait before the next try to connect.
	pauseFirst = 250 * time.Millisecond
	pauseMost  = 15 * time.Second
)

// DialFunc makes a connection that the caller closes. It need not be up.
type DialFunc func(ctx context.Context) (*grpc.ClientConn, error)

// KeepAlive are the client's options for a connection over a network: they
// notice a peer that vanished without a word. 10 s is the least that gRPC
// allows a client; servers must allow it with a keepalive.EnforcementPolicy.
func KeepAlive() grpc.DialOption {
	return grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true})
}

// reconnect runs sessions one after the other until ctx ends. A session says
// whether the peer took it; then the next try follows soon.
func reconnect(ctx context.Context, peer string, logger *slog.Logger, session func(context.Context) (taken bool, err error)) {
	pause := pauseFirst
	for {
		taken, err := session(ctx)
		if ctx.Err() != nil {
			return
		}
		if taken {
			pause = pauseFirst
		}
		wait := jitter(pause)
		if errors.Is(err, errAgain) { // nothing is lost
			logger.Info("connecting again", "peer", peer, "why", err, "in", wait)
		} else {
			logger.Warn("connection lost", "peer", peer, "err", err, "retryIn", wait)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, pauseMost)
	}
}

// unlessEnded leaves it to the receiver to say why a stream has ended: gRPC
// tells the sender only that it has.
func unlessEnded(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// jitter spreads the nodes of a cluster over the time from half of d to d: all
// of them lost the same server.
func jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Int64N(int64(d/2)+1))
}
