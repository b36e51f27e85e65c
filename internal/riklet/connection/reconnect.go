// Package connection maintains the node's two connections. From the scheduler, the node receives
// orders, and it sends observations. From the controller, it receives the objects that instances
// refer to, and sessions. The node dials both, and dials again after a loss, as long as it runs.
package connection

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// firstPause and maxPause bound the pause before the next attempt to connect.
	firstPause = 250 * time.Millisecond
	maxPause   = 15 * time.Second
)

// DialFunc creates a connection, which the caller closes. The connection need not be established
// yet.
type DialFunc func(ctx context.Context) (*grpc.ClientConn, error)

// connectTimeout bounds one attempt to connect. gRPC's own limit of 20 s would delay the attempt at
// another server.
const connectTimeout = 3 * time.Second

// ConnectTimeout returns the option that bounds an attempt to connect.
func ConnectTimeout() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{Backoff: grpcbackoff.DefaultConfig, MinConnectTimeout: connectTimeout})
}

// KeepAlive returns the client's options for a connection over a network. They detect a peer that
// disappeared without closing the connection. 10 s is the minimum that gRPC allows a client.
// Servers must allow it with a keepalive.EnforcementPolicy.
func KeepAlive() grpc.DialOption {
	return grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true})
}

// reconnect runs sessions one after the other until ctx ends. If a session reports that the peer
// accepted it, the next attempt starts soon. After a receive from now, it starts at once.
func reconnect(ctx context.Context, peer string, logger *slog.Logger, now <-chan struct{}, session func(context.Context) (taken bool, err error)) {
	delays := backoff()
	for {
		taken, err := session(ctx)
		if ctx.Err() != nil {
			return
		}
		if taken {
			delays = backoff()
		}
		delay := delays.Step()
		if errors.Is(err, errAgain) { // nothing is lost
			logger.Info("reconnecting", "peer", peer, "reason", err, "retryIn", delay)
		} else {
			logger.Warn("connection lost", "peer", peer, "err", err, "retryIn", delay)
		}
		timer := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-now:
			delays = backoff()
		case <-timer.C:
		}
		timer.Stop()
	}
}

// unlessEnded drops io.EOF from a sender. gRPC reports to the sender only that the stream has
// ended, and to the receiver why.
func unlessEnded(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// backoff returns the delays between attempts, which double. Half of each delay is random. That
// spreads the attempts of a cluster's nodes, which all lose the same server at the same time.
func backoff() wait.Backoff {
	return wait.Backoff{Duration: firstPause / 2, Factor: 2, Jitter: 1, Steps: math.MaxInt, Cap: maxPause / 2}
}
