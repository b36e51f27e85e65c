package connection

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/wakeup"
)

// admission bounds the wait for the answer to Register.
const admission = 30 * time.Second

// Scheduler is the node's end of the scheduler's Worker service.
type Scheduler struct {
	// Dial connects to the scheduler. Required.
	Dial DialFunc
	// Register describes the node. It is called for each connection. Required.
	Register func() *schedulerv1.Register
	// Heartbeat is called for each heartbeat. If whole is true, the result must contain
	// everything, even if it has not changed. Required.
	Heartbeat func(whole bool) *schedulerv1.Heartbeat
	// News is readable when a heartbeat should be sent at once. It may be nil.
	News <-chan struct{}
	// Orders handles one order at a time. It must not block. Required.
	Orders func(*schedulerv1.Order)
	// Contact is called when the node is admitted and when it has lost the scheduler. It must not
	// block. Required.
	Contact func(connected bool)
	// Hold returns the pending confirmation of the node, or nil if there is none. The function
	// may be nil.
	Hold func() *schedulerv1.Hold
	// Outbox holds the observations to send. Required.
	Outbox *Outbox
	// Logger logs the state of the connection. Required.
	Logger *slog.Logger

	mu    sync.Mutex
	again wakeup.Signal // set while Reconnect waits
	held  wakeup.Signal // set while a change of Hold is unsent
}

// errAgain ends a session so that another one starts.
var errAgain = errors.New("the node registers again")

// Reconnect makes the node register again, as after every connect. It does not block.
func (s *Scheduler) Reconnect() {
	s.reconnects().Wake()
}

func (s *Scheduler) reconnects() wakeup.Signal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.again == nil {
		s.again = wakeup.New()
	}
	return s.again
}

// HoldChanged makes the node send its pending confirmation. It does not block.
func (s *Scheduler) HoldChanged() {
	s.holds().Wake()
}

func (s *Scheduler) holds() wakeup.Signal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = wakeup.New()
	}
	return s.held
}

// Run maintains the connection until ctx ends.
func (s *Scheduler) Run(ctx context.Context) error {
	reconnect(ctx, "scheduler", s.Logger, s.reconnects(), s.session)
	return nil
}

// session runs one connection, from Register to its loss.
func (s *Scheduler) session(ctx context.Context) (taken bool, err error) {
	conn, err := s.Dial(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	group, ctx := errgroup.WithContext(ctx)
	stream, err := schedulerv1.NewWorkerClient(conn).Connect(ctx)
	if err != nil {
		return false, fmt.Errorf("connecting to the scheduler: %w", err)
	}
	register := &schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Register{Register: s.Register()}}
	if err := stream.Send(register); err != nil {
		// The reason is in the answer, not in the error of Send.
		_, err = stream.Recv()
		return false, fmt.Errorf("registering with the scheduler: %w", err)
	}
	admitted := make(chan time.Duration, 1)
	group.Go(func() error { return s.receive(stream, admitted, &taken) })
	group.Go(func() error { return unlessEnded(s.send(ctx, stream, admitted)) })
	err = group.Wait()
	if taken {
		s.Contact(false)
	}
	return taken, err
}

type workerStream = interface {
	Send(*schedulerv1.WorkerMessage) error
	Recv() (*schedulerv1.Order, error)
}

// receive passes on the orders. taken may be read after receive has returned.
func (s *Scheduler) receive(stream workerStream, admitted chan<- time.Duration, taken *bool) error {
	for {
		order, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("receiving orders: %w", err)
		}
		if a := order.GetAdmitted(); a != nil && !*taken {
			*taken = true
			s.Logger.Info("admitted by the scheduler", "heartbeatMillis", a.GetHeartbeatMillis(), "term", order.GetTerm())
			s.Contact(true)
			// Before the sender starts: it must find everything queued.
			s.Outbox.Again()
			admitted <- interval(a)
		}
		s.Orders(order)
	}
}

// interval returns the heartbeat interval that the scheduler requests, within fixed limits.
func interval(a *schedulerv1.Admitted) time.Duration {
	asked := time.Duration(a.GetHeartbeatMillis()) * time.Millisecond
	if asked <= 0 {
		asked = 5 * time.Second
	}
	return min(max(asked, 100*time.Millisecond), time.Minute)
}

// send sends everything to the scheduler. It sends heartbeats between observations, so that the
// node does not appear dead while a long queue is sent.
func (s *Scheduler) send(ctx context.Context, stream workerStream, admitted <-chan time.Duration) error {
	var interval time.Duration
	timeout := time.NewTimer(admission)
	defer timeout.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.reconnects():
		return errAgain
	case <-timeout.C:
		return errors.New("the scheduler did not admit the node in time")
	case interval = <-admitted:
	}
	if err := stream.Send(heartbeat(s.Heartbeat(true))); err != nil {
		return fmt.Errorf("sending a heartbeat: %w", err)
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	again, holds := s.reconnects(), s.holds()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again:
			return errAgain
		case <-ticker.C:
			if err := stream.Send(heartbeat(s.Heartbeat(false))); err != nil {
				return fmt.Errorf("sending a heartbeat: %w", err)
			}
			s.Outbox.Overdue(time.Now())
		case <-s.News:
			if err := stream.Send(heartbeat(s.Heartbeat(false))); err != nil {
				return fmt.Errorf("sending a heartbeat: %w", err)
			}
		case <-holds:
			if err := stream.Send(s.holdNews()); err != nil {
				return fmt.Errorf("sending the pending confirmation: %w", err)
			}
		case <-s.Outbox.Ready():
			if err := s.flush(stream, ticker.C); err != nil {
				return err
			}
		}
	}
}

// flush sends all observations.
func (s *Scheduler) flush(stream workerStream, tick <-chan time.Time) error {
	for {
		select {
		case <-tick:
			if err := stream.Send(heartbeat(s.Heartbeat(false))); err != nil {
				return fmt.Errorf("sending a heartbeat: %w", err)
			}
		default:
		}
		o := s.Outbox.Next(time.Now())
		if o == nil {
			return nil
		}
		if err := stream.Send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Observation{Observation: o}}); err != nil {
			return fmt.Errorf("sending an observation: %w", err)
		}
	}
}

// holdNews returns the message with the pending confirmation. It is empty if there is none.
func (s *Scheduler) holdNews() *schedulerv1.WorkerMessage {
	hold := &schedulerv1.Hold{}
	if s.Hold != nil {
		if now := s.Hold(); now != nil {
			hold = now
		}
	}
	return &schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Hold{Hold: hold}}
}

func heartbeat(h *schedulerv1.Heartbeat) *schedulerv1.WorkerMessage {
	return &schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Heartbeat{Heartbeat: h}}
}
