package simulate

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/pause"
	schedulerv1 "rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/wakeup"
)

type workerStream = grpc.BidiStreamingClient[schedulerv1.WorkerMessage, schedulerv1.Order]

// node is one simulated riklet. One goroutine runs it. A second goroutine only receives orders
// from the stream into inbox.
type node struct {
	config   *Config
	name     string
	index    int
	register *schedulerv1.Register

	// term is the highest term that the node accepted.
	term      int64
	instances map[string]*instance
	due       dueList

	mu    sync.Mutex
	inbox []*schedulerv1.Order
	ready wakeup.Signal
}

// instance is the node's state of an instance.
type instance struct {
	uid      string
	sequence int64
	phase    rikv1alpha1.InstancePhase
	started  metav1.Time
}

// due is a later step of an instance. Delays are the same for all instances, so steps of one
// kind fall due in the order in which they were added.
type due struct {
	at  time.Time
	uid string
}

type dueList struct{ starts, stops []due }

func newNode(c *Config, index int) (*node, error) {
	n := &node{config: c, name: c.NodeName(index), index: index, instances: map[string]*instance{}, ready: wakeup.New()}
	sent := rikv1alpha1.NodeStatus{
		Capacity: c.Allocatable, Allocatable: c.Allocatable,
		Info: rikv1alpha1.NodeInfo{
			MachineID: "simulated-" + n.name, BootID: "simulated", AgentVersion: "simulated",
			OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH, Hostname: n.name,
			InternalAddress: n.address(0), Kinds: []rikv1alpha1.WorkloadKind{rikv1alpha1.KindPod},
			Runtimes: []string{"runc"},
		},
	}
	encoded, err := sent.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding the status of node %s: %w", n.name, err)
	}
	n.register = &schedulerv1.Register{
		NodeName: n.name, MachineId: sent.Info.MachineID, BootId: sent.Info.BootID, Version: sent.Info.AgentVersion,
		Status: encoded, Labels: map[string]string{rikv1alpha1.LabelHostname: n.name},
	}
	if c.Zones > 0 {
		n.register.Labels[rikv1alpha1.LabelZone] = fmt.Sprintf("zone-%d", index%c.Zones)
	}
	return n, nil
}

// address returns an address of this node from 10.0.0.0/8, at which nothing listens.
func (n *node) address(host int) string {
	return fmt.Sprintf("10.%d.%d.%d", n.index/256%256, n.index%256, host%254+1)
}

// run connects again after each disconnection, until ctx ends.
func (n *node) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := n.connect(ctx)
		n.config.Logger.Info("simulated node disconnected", "node", n.name, "err", err)
		pause.For(ctx, n.config.RetryDelay)
	}
	return nil
}

// connect joins the scheduler and works until the stream ends.
func (n *node) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, release, err := n.config.Dial(ctx, n.name)
	if err != nil {
		return fmt.Errorf("dialing the scheduler: %w", err)
	}
	defer release()
	stream, err := schedulerv1.NewWorkerClient(conn).Connect(ctx)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	n.register.Running, n.register.HighestTerm = nil, n.term
	for uid := range n.instances {
		n.register.Running = append(n.register.Running, uid)
	}
	n.inbox = nil
	if err := stream.Send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Register{Register: n.register}}); err != nil {
		return fmt.Errorf("registering: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.listen(stream) }()
	err = n.work(ctx, stream, ended)
	cancel()
	// If work returned an error, the stream ends because of our own cancellation.
	if end := <-ended; err == nil {
		err = end
	}
	return err
}

// listen receives orders until the stream ends.
func (n *node) listen(stream workerStream) error {
	for {
		o, err := stream.Recv()
		if err != nil {
			return err
		}
		n.mu.Lock()
		n.inbox = append(n.inbox, o)
		n.mu.Unlock()
		n.ready.Wake()
	}
}

// work performs the due steps until the stream ends. It then puts the error of listen back into
// ended.
func (n *node) work(ctx context.Context, stream workerStream, ended chan error) error {
	heartbeat := 5 * time.Second
	beat := time.Now().Add(heartbeat)
	timer := time.NewTimer(heartbeat)
	defer timer.Stop()
	for {
		timer.Reset(time.Until(n.next(beat)))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			ended <- err
			return nil
		case <-n.ready:
			interval, err := n.execute(stream)
			if err != nil {
				return err
			}
			if interval > 0 {
				heartbeat, beat = interval, time.Now().Add(interval)
			}
		case <-timer.C:
		}
		now := time.Now()
		if err := n.proceed(stream, now); err != nil {
			return err
		}
		if !now.Before(beat) {
			beat = now.Add(heartbeat)
			m := &schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Heartbeat{Heartbeat: &schedulerv1.Heartbeat{}}}
			if err := stream.Send(m); err != nil {
				return fmt.Errorf("sending a heartbeat: %w", err)
			}
		}
	}
}

// next returns the time of the next due step or heartbeat.
func (n *node) next(beat time.Time) time.Time {
	for _, list := range [][]due{n.due.starts, n.due.stops} {
		if len(list) > 0 && list[0].at.Before(beat) {
			beat = list[0].at
		}
	}
	return beat
}

// execute executes the orders in the inbox. It returns the heartbeat interval if an order
// contained one.
func (n *node) execute(stream workerStream) (interval time.Duration, err error) {
	n.mu.Lock()
	orders := n.inbox
	n.inbox = nil
	n.mu.Unlock()
	for _, o := range orders {
		if a := o.GetAdmitted(); a != nil {
			interval = time.Duration(a.HeartbeatMillis) * time.Millisecond
			continue
		}
		if o.Term < n.term {
			n.config.Logger.Warn("refused an order with a lower term", "node", n.name, "term", o.Term)
			continue
		}
		n.term = o.Term
		if err := n.carryOut(stream, o); err != nil {
			return interval, err
		}
	}
	return interval, nil
}

func (n *node) carryOut(stream workerStream, o *schedulerv1.Order) error {
	switch x := o.Message.(type) {
	case *schedulerv1.Order_Allowed:
		return n.allow(stream, x.Allowed)
	case *schedulerv1.Order_Run:
		return n.start(stream, x.Run)
	case *schedulerv1.Order_Stop:
		return n.stop(stream, x.Stop.Uid)
	}
	return nil
}

// allow starts and stops instances until the node has exactly the full set. It reports the
// instances again that already run.
func (n *node) allow(stream workerStream, a *schedulerv1.Allowed) error {
	allowed := make(map[string]bool, len(a.Instances))
	for _, run := range a.Instances {
		allowed[run.Uid] = true
		if in := n.instances[run.Uid]; in != nil {
			if err := n.observe(stream, in, in.phase); err != nil {
				return err
			}
			continue
		}
		if err := n.start(stream, run); err != nil {
			return err
		}
	}
	for uid := range n.instances {
		if !allowed[uid] {
			if err := n.stop(stream, uid); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *node) start(stream workerStream, run *schedulerv1.Run) error {
	if run.Ended || n.instances[run.Uid] != nil {
		return nil
	}
	in := &instance{uid: run.Uid}
	n.instances[run.Uid] = in
	n.due.starts = append(n.due.starts, due{time.Now().Add(n.config.StartDelay), run.Uid})
	return n.observe(stream, in, rikv1alpha1.InstanceCreating)
}

// stop confirms the stop of an instance, even if the node never had it.
func (n *node) stop(stream workerStream, uid string) error {
	in := n.instances[uid]
	if in == nil {
		return n.observe(stream, &instance{uid: uid, sequence: time.Now().UnixNano()}, rikv1alpha1.InstanceTerminated)
	}
	if in.phase == rikv1alpha1.InstanceDestroying {
		return nil
	}
	n.due.stops = append(n.due.stops, due{time.Now().Add(n.config.StopDelay), uid})
	return n.observe(stream, in, rikv1alpha1.InstanceDestroying)
}

// proceed performs the steps that have fallen due.
func (n *node) proceed(stream workerStream, now time.Time) error {
	for len(n.due.starts) > 0 && !now.Before(n.due.starts[0].at) {
		in := n.instances[n.due.starts[0].uid]
		n.due.starts = n.due.starts[1:]
		if in == nil || in.phase != rikv1alpha1.InstanceCreating {
			continue
		}
		in.started = metav1.NewTime(now)
		if err := n.observe(stream, in, rikv1alpha1.InstanceRunning); err != nil {
			return err
		}
	}
	for len(n.due.stops) > 0 && !now.Before(n.due.stops[0].at) {
		in := n.instances[n.due.stops[0].uid]
		n.due.stops = n.due.stops[1:]
		if in == nil {
			continue
		}
		delete(n.instances, in.uid)
		if err := n.observe(stream, in, rikv1alpha1.InstanceTerminated); err != nil {
			return err
		}
	}
	return nil
}

// observe reports the phase of an instance.
func (n *node) observe(stream workerStream, in *instance, phase rikv1alpha1.InstancePhase) error {
	in.sequence++
	in.phase = phase
	seen := rikv1alpha1.InstanceStatus{Phase: phase, Sequence: in.sequence}
	if phase == rikv1alpha1.InstanceRunning {
		seen.Ready, seen.StartedAt = true, &in.started
		seen.Address, seen.HostAddress = n.address(len(n.instances)), n.address(0)
	}
	encoded, err := seen.Marshal()
	if err != nil {
		return fmt.Errorf("encoding the status of instance %s: %w", in.uid, err)
	}
	err = stream.Send(&schedulerv1.WorkerMessage{Message: &schedulerv1.WorkerMessage_Observation{
		Observation: &schedulerv1.Observation{Uid: in.uid, Sequence: in.sequence, Phase: string(phase), Status: encoded},
	}})
	if err != nil {
		return fmt.Errorf("sending an observation: %w", err)
	}
	return nil
}
