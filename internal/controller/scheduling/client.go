// Package scheduling is the controller's end of the scheduler's Sync stream. It sends the
// current state to the scheduler and passes the scheduler's messages to the reconcilers.
//
// It is level-based. Each session begins with the full state, and later changes are computed
// from the views when they are sent. Losing the scheduler, the stream or the controller loses
// no state, because all state is in the views.
//
// Reads: the views of nodes, revisions and instances. Writes: nothing.
package scheduling

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/instance"
	"rik.dev/rik/internal/controller/node"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// Times between attempts to connect to the scheduler.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
	// lasting is how long a session must last so that the next delay starts again at the minimum.
	lasting = 10 * time.Second
)

// Sink handles the scheduler's messages. Its methods must not block.
type Sink interface {
	// SessionBegan is called before any message of a session is passed on.
	SessionBegan()
	// Welcomed is called when the scheduler has accepted the session. An open port alone does not
	// show that a scheduler is there, and a scheduler may refuse the session.
	Welcomed()
	SessionEnded()
	Bind(uid types.UID, b instance.Binding)
	Explain(uid types.UID, u instance.Unplaced)
	Observe(uid types.UID, o instance.Observation)
	Displace(uid types.UID, forUID types.UID)
	Report(name string, r node.Report)
}

// Config configures a Client. All fields are required unless they say otherwise.
type Config struct {
	Dial     func(ctx context.Context) (*grpc.ClientConn, error)
	Identity string
	Term     int64
	// Cluster is the cluster's identity. It is empty if it is not known.
	Cluster string
	// Restored means that the cluster was restored from a backup.
	Restored bool
	// Active returns an error once the lease has ended. Then the client sends nothing.
	Active func() error
	// DeletedNodes returns the UIDs of Nodes that were deleted on purpose.
	DeletedNodes func() []types.UID
	Instances    *index.Instances
	Nodes        *index.Objects[*rikv1alpha1.Node]
	Revisions    *index.Objects[*rikv1alpha1.WorkloadRevision]
	Tombstones   func() []instance.Tombstone
	Sink         Sink
	Logger       *slog.Logger
	Metrics      *Metrics
}

// Client keeps a session with the scheduler open while it runs.
type Client struct {
	config Config
	outbox *outbox
}

// New creates a client and subscribes it to the views. The sink may be set later, but before
// Run, because sink and client refer to each other.
func New(c Config) *Client {
	l := &Client{config: c, outbox: newOutbox()}
	c.Instances.Subscribe(func(before, after *rikv1alpha1.Instance) {
		in := after
		if in == nil {
			in = before
		}
		l.outbox.add(func(b *batch) { b.instances[in.UID] = struct{}{} })
	})
	c.Nodes.Subscribe(func(before, after *rikv1alpha1.Node) {
		n := after
		if n == nil {
			n = before
		}
		l.outbox.add(func(b *batch) { b.nodes[n.Name] = struct{}{} })
	})
	c.Revisions.Subscribe(func(before, after *rikv1alpha1.WorkloadRevision) {
		r := after
		if r == nil {
			r = before
		}
		key := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
		l.outbox.add(func(b *batch) { b.revisions[key] = struct{}{} })
	})
	return l
}

// SetSink sets the handler of the scheduler's messages.
func (l *Client) SetSink(s Sink) { l.config.Sink = s }

// Acknowledge informs the scheduler whether a binding is durable.
func (l *Client) Acknowledge(uid types.UID, node string, durable bool) {
	l.outbox.add(func(b *batch) { b.acks = append(b.acks, ack{uid: uid, node: node, durable: durable}) })
}

// Tombstone sends the scheduler the UID of an instance that no node may run.
func (l *Client) Tombstone(t instance.Tombstone) {
	l.outbox.add(func(b *batch) { b.tombstones = append(b.tombstones, t) })
}

// Run keeps a session open until ctx ends.
func (l *Client) Run(ctx context.Context) error {
	backoff := newBackoff()
	for ctx.Err() == nil {
		begin := time.Now()
		err := l.session(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(begin) > lasting {
			backoff = newBackoff()
		}
		delay := backoff.Step()
		l.config.Logger.Warn("the session with the scheduler ended", "again", delay, "err", err)
		pause.For(ctx, delay)
	}
	return nil //nolint:nilerr // it was told to end
}

// maxMessage is twice the size that the scheduler accepts from a node. The scheduler passes the
// nodes' messages on, and a large message of one node must not end the session for all nodes.
const maxMessage = 32 << 20

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: minBackoff, Factor: 2, Jitter: 0.2, Steps: 100, Cap: maxBackoff}
}

// session runs one stream from Hello to its end.
func (l *Client) session(ctx context.Context) error {
	conn, err := l.config.Dial(ctx)
	if err != nil {
		return fmt.Errorf("dialing the scheduler: %w", err)
	}
	defer conn.Close()
	group, ctx := errgroup.WithContext(ctx)
	stream, err := schedulerv1.NewSchedulerClient(conn).Sync(ctx, grpc.MaxCallRecvMsgSize(maxMessage))
	if err != nil {
		return fmt.Errorf("opening the stream: %w", err)
	}
	l.config.Metrics.sessions.Inc()
	l.config.Sink.SessionBegan()
	defer l.config.Sink.SessionEnded()
	s := newSession(&l.config, l.outbox, stream)
	group.Go(func() error { return s.send(ctx) })
	group.Go(s.receive)
	return group.Wait()
}
