// Package manager is the Node Manager. It carries out the scheduler's orders with the node's
// driver, and turns the driver's observations into observations for the scheduler.
//
// One goroutine, [Manager.Run], owns all of its state. Orders and changes in the driver only
// wake it up. Thus a slow scheduler does not delay a driver or the reverse, and nothing happens
// twice at the same time.
package manager

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/fencing"
	"rik.dev/rik/internal/riklet/checkpoint"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/wakeup"
)

const (
	// disallowedGrace leaves time for SIGKILL within the 10 s in which a node stops instances
	// that it may not run.
	disallowedGrace = 8 * time.Second
	// sweepInterval bounds how long an unused template stays on disk.
	sweepInterval = 10 * time.Minute
)

// Objects supplies templates and tracks which instances use them. *objects.Store implements it.
type Objects interface {
	Revision(namespace, name string) (*rikv1alpha1.InstanceTemplate, error)
	Retry() time.Time
	Use(uid, namespace string, template *rikv1alpha1.InstanceTemplate)
	Release(uid string)
	Retain(inUse func(namespace, name string) bool) error
	Fence(namespace string) fencing.Proof
	AskFence(namespace string)
}

// Outbox sends observations. *connection.Outbox implements it.
type Outbox interface {
	Put(*schedulerv1.Observation)
	Ack(uid string, sequence int64) bool
	Drop(uid string)
}

// Config configures a [Manager]. Every field except Held and Moved is required.
type Config struct {
	// Kinds are the kinds of workload that the node's driver runs.
	Kinds      []rikv1alpha1.WorkloadKind
	Objects    Objects
	Outbox     Outbox
	Checkpoint *checkpoint.Store
	// Allowed is called after the first Allowed order was carried out.
	Allowed func()
	// Held is called when [Manager.Hold] has changed. It must not block. It may be nil.
	Held func()
	// Moved is called when an operator has moved the node to another cluster. The data of the
	// node's registration, such as its term, then belongs to the former cluster. It may be nil.
	Moved  func()
	Logger *slog.Logger
}

// Manager carries out orders. Its exported methods may be called from any goroutine and do not
// block, except Run.
type Manager struct {
	cfg    Config
	driver instance.Runner // does not change after Use
	wake   wakeup.Signal   // set while there is work

	mu     sync.Mutex
	orders []*schedulerv1.Order
	// contact is a change of the connection that the loop has not handled yet. It is nil if there
	// is none.
	contact *bool
	infos   map[string]Info
	hold    *schedulerv1.Hold // a copy of held.hold for other goroutines

	// The following fields belong to the goroutine of Run.

	runs map[string]*run
	// forgotten are instances that the driver was ordered to forget. Until it has, its
	// observations about them are old.
	forgotten map[string]bool
	allowed   bool // an Allowed order was carried out, so runs is complete
	held      held
	deadline  time.Time // when fenced instances stop; zero while connected
	sweepAt   time.Time // zero: nothing to sweep
	connected bool
	// began is when Run was called. asked is when a proof was last requested, by namespace.
	// proofAt is when fences must be checked next; zero means never.
	began   time.Time
	asked   map[string]time.Time
	proofAt time.Time
	// disconnectedAt is true from the moment at which fenced instances stop until the next Allowed
	// order.
	disconnectedAt bool
}

// Info is what the node knows about an instance in addition to the driver's observations.
type Info struct {
	Namespace, Name string
	// Containers are the names of its containers. The first one is the default.
	Containers []string
	// Images are the images that it needs, as in its template.
	Images []string
	// HostPorts are its ports in the node's own network.
	HostPorts []rikv1alpha1.Port
}

// run is one instance that the node has, or was ordered to have.
type run struct {
	uid   string
	order *schedulerv1.Run // nil if the driver recovered it and no order named it yet
	// driven is true if the driver has it: not before its template arrives, and not if the driver
	// refused it.
	driven bool
	used   bool // Objects counts it as a user of its template
	stop   bool // it was ordered to stop
	// after is the time of its fence, or zero if it has none. home is its namespace. found is
	// true if it was on the node when the riklet started.
	after time.Duration
	home  string
	found bool

	seen int64 // sequence number of the driver's last observation that was sent

	// phase, reason and text are those of the last observation that was sent.
	phase  rikv1alpha1.InstancePhase
	reason string
	text   string
}

// New returns a manager. Use completes it, and Run starts it.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, wake: wakeup.New(), runs: map[string]*run{}, forgotten: map[string]bool{}, asked: map[string]time.Time{}, infos: map[string]Info{}}
}

// Order queues an order.
func (m *Manager) Order(order *schedulerv1.Order) {
	m.mu.Lock()
	m.orders = append(m.orders, order)
	m.mu.Unlock()
	m.Changed()
}

// Contact sets whether the node is connected to the scheduler.
func (m *Manager) Contact(connected bool) {
	m.mu.Lock()
	m.contact = &connected
	m.mu.Unlock()
	m.Changed()
}

// Changed makes the manager check the driver and the objects again. It may be called before Use.
func (m *Manager) Changed() {
	m.wake.Wake()
}

// HostPorts returns the ports of all instances in the node's own network.
func (m *Manager) HostPorts() []rikv1alpha1.Port {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ports []rikv1alpha1.Port
	for _, info := range m.infos {
		ports = append(ports, info.HostPorts...)
	}
	return ports
}

// Use sets the node's driver. It is called once, before all other methods except Changed. The
// driver must have recovered before Run is called.
func (m *Manager) Use(driver instance.Runner) { m.driver = driver }

// List returns the UIDs of all instances that the driver has.
func (m *Manager) List() []string {
	uids := append([]string{}, m.driver.List()...)
	slices.Sort(uids)
	return uids
}

// Has reports whether the driver has an instance.
func (m *Manager) Has(uid string) bool { return slices.Contains(m.driver.List(), uid) }

// Info returns what is known about an instance. It is empty before the template has arrived.
func (m *Manager) Info(uid string) Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.infos[uid]
}

// Run carries out orders until ctx ends. It stops no instance when it returns.
func (m *Manager) Run(ctx context.Context) error {
	m.began = time.Now()
	m.recovered()
	m.restoreFences()
	m.observe()
	m.lost()
	for {
		m.step()
		timer := time.NewTimer(time.Until(m.next()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-m.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// recovered adds the instances that the driver found.
func (m *Manager) recovered() {
	for _, uid := range m.driver.List() {
		m.runs[uid] = &run{uid: uid, driven: true, found: true}
	}
}

// step does all pending work. It is level-based: a lost wake-up only causes a delay.
func (m *Manager) step() {
	m.mu.Lock()
	orders, contact := m.orders, m.contact
	m.orders, m.contact = nil, nil
	m.mu.Unlock()
	if contact != nil {
		m.setConnected(*contact)
	}
	for _, order := range orders {
		m.applyOrder(order)
	}
	for _, r := range m.runs {
		m.start(r)
	}
	m.observe()
	m.fence()
	m.proofAt = m.prove(time.Now())
	m.sweep()
}

// next returns when step must run again at the latest.
func (m *Manager) next() time.Time {
	first := time.Now().Add(time.Hour)
	for _, t := range []time.Time{m.cfg.Objects.Retry(), m.deadline, m.sweepAt, m.proofAt} {
		if !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

// applyOrder carries out one order, unless its term is lower than the highest one.
func (m *Manager) applyOrder(order *schedulerv1.Order) {
	switch {
	case order.GetAdmitted() != nil:
		if err := m.cfg.Checkpoint.SetTimeout(time.Duration(order.GetAdmitted().GetTimeoutMillis()) * time.Millisecond); err != nil {
			m.cfg.Logger.Error("saving the node timeout failed; it is only in memory", "err", err)
		}
		return
	case order.GetConfirmed() != nil:
		m.confirmed(order.GetConfirmed().GetId())
		return
	case m.fromOtherCluster(order):
		m.refuseOtherCluster(order)
		return
	case order.GetAck() != nil:
		// An acknowledgement of a controller that is no longer active is void. An acknowledgement
		// without a term is from the scheduler itself.
		if term := order.GetTerm(); term == 0 || term >= m.cfg.Checkpoint.Term() {
			m.acknowledged(order.GetAck())
		}
		return
	}
	err := m.cfg.Checkpoint.AcceptTerm(order.GetTerm())
	if errors.Is(err, checkpoint.ErrLowerTerm) {
		m.cfg.Logger.Warn("order refused", "err", err)
		m.holdBack(rikv1alpha1.ConfirmLowerTerm, nil, order)
		return
	}
	if err != nil {
		m.cfg.Logger.Error("saving the term failed; it is only in memory", "term", order.GetTerm(), "err", err)
	}
	switch {
	case order.GetAllowed() != nil:
		m.allow(order)
	case order.GetDismissed() != nil:
		m.nodeDeleted()
	case order.GetRun() != nil:
		m.ordered(order.GetRun())
	case order.GetStop() != nil:
		m.stopped(order.GetStop())
	}
}

// allow handles the complete list of instances that may run here, and stops the others. It stops
// deleted instances at once. It stops instances of which the cluster has no record only if they
// are not too many.
func (m *Manager) allow(order *schedulerv1.Order) {
	list := order.GetAllowed()
	presentInstances := m.presentInstances()
	gone, unknown := split(presentInstances, list)
	for _, in := range list.GetInstances() {
		m.ordered(in)
	}
	for _, uid := range gone {
		m.cfg.Logger.Info("stopping an instance that must not run on this node", "instance", uid)
		m.end(m.runs[uid], disallowedGrace)
	}
	m.endUncreated(list)
	// After a restore, the cluster knows nothing of what began since the backup.
	keep := list.GetKeepUnknown() && len(unknown) > 0 || tooMany(len(unknown), len(presentInstances)-len(gone))
	if keep && !m.cfg.Checkpoint.Moved() {
		m.holdBack(rikv1alpha1.ConfirmUnknownInstances, unknown, order)
	} else {
		for _, uid := range unknown {
			m.cfg.Logger.Info("stopping an instance that must not run on this node", "instance", uid)
			m.end(m.runs[uid], disallowedGrace)
		}
		m.setHeld(held{})
		if err := m.cfg.Checkpoint.SetClusterID(order.GetCluster()); err != nil {
			m.cfg.Logger.Error("saving the cluster failed; it is only in memory", "err", err)
		}
	}
	first := !m.allowed
	m.allowed, m.disconnectedAt = true, false
	m.sweepAt = time.Now()
	if first {
		m.cfg.Allowed()
	}
}

// ordered records that an instance must run. start does the rest.
func (m *Manager) ordered(in *schedulerv1.Run) {
	r := m.runs[in.GetUid()]
	if r == nil {
		if in.GetEnded() {
			return // its end is already known
		}
		r = &run{uid: in.GetUid()}
		m.runs[in.GetUid()] = r
	}
	if r.order == nil {
		r.order = in
	}
}

// stopped handles an order to stop one instance.
func (m *Manager) stopped(order *schedulerv1.StopOrder) {
	grace := time.Duration(order.GetGraceSeconds()) * time.Second
	if order.GetForce() {
		grace = 0
	}
	r := m.runs[order.GetUid()]
	if r == nil {
		r = &run{uid: order.GetUid()}
		m.runs[order.GetUid()] = r
	}
	m.end(r, grace)
}

// end stops an instance. The driver confirms the end, because only the driver knows when nothing
// is left. Without a driver, nothing was created.
func (m *Manager) end(r *run, grace time.Duration) {
	r.stop = true
	if r.driven {
		m.driver.Stop(r.uid, grace)
		return
	}
	m.send(r, &rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceTerminated, Reason: "NotHere", Message: "the node does not have the instance"})
}

// acknowledged forgets an instance when the controller has acknowledged its end.
func (m *Manager) acknowledged(ack *schedulerv1.Ack) {
	r := m.runs[ack.GetUid()]
	if !m.cfg.Outbox.Ack(ack.GetUid(), ack.GetSequence()) || r == nil || r.phase != rikv1alpha1.InstanceTerminated {
		return
	}
	if r.driven {
		m.forgotten[r.uid] = true
		m.driver.Forget(r.uid)
	}
	m.cfg.Objects.Release(r.uid)
	m.cfg.Outbox.Drop(r.uid)
	m.saveFence(r.uid, false)
	if err := m.cfg.Checkpoint.SetProof(r.uid, "", 0); err != nil {
		m.cfg.Logger.Error("removing a saved fence failed; it is removed only in memory", "instance", r.uid, "err", err)
	}
	delete(m.runs, r.uid)
	m.mu.Lock()
	delete(m.infos, r.uid)
	m.mu.Unlock()
	if m.allowed && m.sweepAt.IsZero() {
		m.sweepAt = time.Now().Add(sweepInterval)
	}
}

// sweep removes unused templates. Before an Allowed order, the revisions of recovered instances
// are not known.
func (m *Manager) sweep() {
	if m.sweepAt.IsZero() || time.Now().Before(m.sweepAt) {
		return
	}
	m.sweepAt = time.Time{}
	type name struct{ namespace, name string }
	used := map[name]bool{}
	for _, r := range m.runs {
		if r.order != nil {
			used[name{r.order.GetNamespace(), r.order.GetRevision()}] = true
		}
	}
	if err := m.cfg.Objects.Retain(func(namespace, revision string) bool { return used[name{namespace, revision}] }); err != nil {
		m.cfg.Logger.Warn("unused revisions were not removed", "err", err)
	}
}
