// Package manager is the Node Manager: it obeys the scheduler's orders with
// the drivers and turns what the drivers see into observations.
//
// One goroutine, [Manager.Run], owns all of its state. Orders and news of the
// drivers only wake it, so neither a slow scheduler nor a slow driver holds up
// the other, and nothing is done twice at once.
package manager

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/checkpoint"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

const (
	// disallowedGrace leaves time for the hard signal within the 10 s in which a
	// node stops what it may not run.
	disallowedGrace = 8 * time.Second
	// sweepInterval bounds how long a template that nobody uses stays on disk.
	sweepInterval = 10 * time.Minute
)

// Objects give templates and are told who uses them; *objects.Store.
type Objects interface {
	Revision(namespace, name string) (*rikv1alpha1.InstanceTemplate, error)
	Retry() time.Time
	Use(uid, namespace string, template *rikv1alpha1.InstanceTemplate)
	Release(uid string)
	Retain(inUse func(namespace, name string) bool) error
	Fence(namespace string) (proven time.Time, free bool)
	AskFence(namespace string)
}

// Outbox takes observations; *contact.Outbox.
type Outbox interface {
	Put(*schedulerv1.Observation)
	Ack(uid string, sequence int64) bool
	Drop(uid string)
}

// Config of a [Manager]. Everything is required but for Held and Moved.
type Config struct {
	// Drivers have recovered before Run is called. One may be that of several kinds.
	Drivers map[rikv1alpha1.WorkloadKind]instance.Driver
	Objects Objects
	Outbox  Outbox
	Ledger  *checkpoint.Ledger
	// Allowed is called after the first Allowed was obeyed.
	Allowed func()
	// Held is called when [Manager.Hold] has changed. It must not block. May be nil.
	Held func()
	// Moved is called when an operator has moved the node to another cluster: what the node
	// said when it registered, such as its term, is of the one before. May be nil.
	Moved  func()
	Logger *slog.Logger
}

// Manager obeys orders. Its exported methods may be called from any goroutine
// and do not block, except Run.
type Manager struct {
	cfg  Config
	wake chan struct{} // one token while there is something to do

	mu     sync.Mutex
	orders []*schedulerv1.Order
	// contact is news that the loop has not seen yet; nil for none.
	contact *bool
	infos   map[string]Info
	hold    *schedulerv1.Hold // what held waits for, for other goroutines

	// What follows belongs to the goroutine of Run.

	runs map[string]*run
	// forgotten are instances that a driver was told to forget and may not yet
	// have forgotten: what it still says of them is old.
	forgotten map[string]bool
	allowed   bool // an Allowed was obeyed: runs is all that there is
	held      held
	deadline  time.Time // when fenced instances stop; zero while in contact
	sweepAt   time.Time // zero: nothing to sweep
	connected bool
	// began is when Run was called; asked when a proof was last asked for, by namespace.
	// proofAt is when fences have to be looked at; zero: never.
	began   time.Time
	asked   map[string]time.Time
	proofAt time.Time
	// cutOff is true from the moment at which fenced instances stop until an
	// Allowed says what may run.
	cutOff bool
}

// Info is what the node knows of an instance beside what its driver sees.
type Info struct {
	UID, Namespace, Name, Workload string
	// Containers names them; the first is meant when none is named.
	Containers []string
	// Source is the first container's image, or where a function or an app comes
	// from; Version is an app's.
	Source, Version string
	// HostPorts are those that it has in the node's own network.
	HostPorts []rikv1alpha1.Port
}

// run is one instance that the node has, or was ordered to have.
type run struct {
	uid    string
	order  *schedulerv1.Run // nil for one that a driver recovered and no order named yet
	driver instance.Driver  // nil while its template is awaited, and when none can run it
	used   bool             // Objects knows that it uses its template
	stop   bool             // it was ordered to go
	// after is the time of its fence, zero if it has none, and home the namespace that it is
	// in. found: it was here when the riklet began.
	after time.Duration
	home  string
	found bool

	seen int64 // sequence of the driver's observation that was last passed on

	sent   int64 // sequence of the last observation
	phase  rikv1alpha1.InstancePhase
	reason string
	text   string
}

// New returns a manager that has not begun.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, wake: make(chan struct{}, 1), runs: map[string]*run{}, forgotten: map[string]bool{}, asked: map[string]time.Time{}, infos: map[string]Info{}}
}

// Order queues an order.
func (m *Manager) Order(order *schedulerv1.Order) {
	m.mu.Lock()
	m.orders = append(m.orders, order)
	m.mu.Unlock()
	m.Changed()
}

// Contact says whether the scheduler is heard of.
func (m *Manager) Contact(connected bool) {
	m.mu.Lock()
	m.contact = &connected
	m.mu.Unlock()
	m.Changed()
}

// Changed makes the manager look at the drivers and the objects again.
func (m *Manager) Changed() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// HostPorts are the ports that instances here have in the node's own network.
func (m *Manager) HostPorts() []rikv1alpha1.Port {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ports []rikv1alpha1.Port
	for _, info := range m.infos {
		ports = append(ports, info.HostPorts...)
	}
	return ports
}

// drivers are those of all kinds, each once.
func (m *Manager) drivers() []instance.Driver {
	var list []instance.Driver
	for _, d := range m.cfg.Drivers {
		if !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}

// List gives the UIDs that a driver has anything of.
func (m *Manager) List() []string {
	uids := []string{}
	for _, d := range m.drivers() {
		uids = append(uids, d.List()...)
	}
	slices.Sort(uids)
	return uids
}

// Driver finds who runs an instance.
func (m *Manager) Driver(uid string) (instance.Driver, bool) {
	for _, d := range m.drivers() {
		if slices.Contains(d.List(), uid) {
			return d, true
		}
	}
	return nil, false
}

// Info gives what is known of an instance; only its UID before its template is
// here.
func (m *Manager) Info(uid string) Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	if info, ok := m.infos[uid]; ok {
		return info
	}
	return Info{UID: uid}
}

// Run obeys until ctx ends. It stops no instance then.
func (m *Manager) Run(ctx context.Context) error {
	m.began = time.Now()
	m.recovered()
	m.recall()
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

// recovered takes over what the drivers found.
func (m *Manager) recovered() {
	for _, d := range m.drivers() {
		for _, uid := range d.List() {
			m.runs[uid] = &run{uid: uid, driver: d, found: true}
		}
	}
}

// step does all that there is to do. It is level-based: a lost wake-up costs
// time, nothing else.
func (m *Manager) step() {
	m.mu.Lock()
	orders, contact := m.orders, m.contact
	m.orders, m.contact = nil, nil
	m.mu.Unlock()
	if contact != nil {
		m.hear(*contact)
	}
	for _, order := range orders {
		m.obey(order)
	}
	for _, r := range m.runs {
		m.start(r)
	}
	m.observe()
	m.fence()
	m.proofAt = m.prove(time.Now())
	m.sweep()
}

// next is when step has to be done at the latest.
func (m *Manager) next() time.Time {
	first := time.Now().Add(time.Hour)
	for _, t := range []time.Time{m.cfg.Objects.Retry(), m.deadline, m.sweepAt, m.proofAt} {
		if !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

// obey does one order, unless its term is not the highest.
func (m *Manager) obey(order *schedulerv1.Order) {
	switch {
	case order.GetAdmitted() != nil:
		if err := m.cfg.Ledger.SetTimeout(time.Duration(order.GetAdmitted().GetTimeoutMillis()) * time.Millisecond); err != nil {
			m.cfg.Logger.Error("timeout is kept in memory only", "err", err)
		}
		return
	case order.GetConfirmed() != nil:
		m.confirmed(order.GetConfirmed().GetId())
		return
	case m.foreign(order):
		m.refuseForeign(order)
		return
	case order.GetAck() != nil:
		// An acknowledgement of a controller that is no longer active promises
		// nothing; one without a term comes from the scheduler itself.
		if term := order.GetTerm(); term == 0 || term >= m.cfg.Ledger.Term() {
			m.acknowledged(order.GetAck())
		}
		return
	}
	err := m.cfg.Ledger.Obey(order.GetTerm())
	if errors.Is(err, checkpoint.ErrLowerTerm) {
		m.cfg.Logger.Warn("order refused", "err", err)
		m.holdBack(rikv1alpha1.ConfirmLowerTerm, nil, order)
		return
	}
	if err != nil {
		m.cfg.Logger.Error("term is kept in memory only", "term", order.GetTerm(), "err", err)
	}
	switch {
	case order.GetAllowed() != nil:
		m.allow(order)
	case order.GetDismissed() != nil:
		m.dismissed()
	case order.GetRun() != nil:
		m.ordered(order.GetRun())
	case order.GetStop() != nil:
		m.stopped(order.GetStop())
	}
}

// allow is told all that may run here and stops the rest: at once what was deleted, and
// what the cluster has no record of unless that is too much.
func (m *Manager) allow(order *schedulerv1.Order) {
	list := order.GetAllowed()
	here := m.here()
	gone, unknown := split(here, list)
	for _, in := range list.GetInstances() {
		m.ordered(in)
	}
	for _, uid := range gone {
		m.cfg.Logger.Info("stopping what may not run here", "instance", uid)
		m.end(m.runs[uid], disallowedGrace)
	}
	m.endUnmade(list)
	if tooMany(len(unknown), len(here)-len(gone)) && !m.cfg.Ledger.Moved() {
		m.holdBack(rikv1alpha1.ConfirmUnknownInstances, unknown, order)
	} else {
		for _, uid := range unknown {
			m.cfg.Logger.Info("stopping what may not run here", "instance", uid)
			m.end(m.runs[uid], disallowedGrace)
		}
		m.setHeld(held{})
		if err := m.cfg.Ledger.Adopt(order.GetCluster()); err != nil {
			m.cfg.Logger.Error("the cluster is kept in memory only", "err", err)
		}
	}
	first := !m.allowed
	m.allowed, m.cutOff = true, false
	m.sweepAt = time.Now()
	if first {
		m.cfg.Allowed()
	}
}

// ordered remembers that an instance is to run. start does the rest.
func (m *Manager) ordered(in *schedulerv1.Run) {
	r := m.runs[in.GetUid()]
	if r == nil {
		if in.GetEnded() {
			return // there is nothing to keep
		}
		r = &run{uid: in.GetUid()}
		m.runs[in.GetUid()] = r
	}
	if r.order == nil {
		r.order = in
	}
}

// stopped takes one instance away, wherever it is.
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

// end leaves the confirmation to the driver: only it knows that nothing is
// left. Without a driver nothing was ever made.
func (m *Manager) end(r *run, grace time.Duration) {
	r.stop = true
	if r.driver != nil {
		r.driver.Stop(r.uid, grace)
		return
	}
	m.send(r, &rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceTerminated, Reason: "NotHere", Message: "the node has nothing of the instance"})
}

// acknowledged forgets an instance whose end the controller knows.
func (m *Manager) acknowledged(ack *schedulerv1.Ack) {
	r := m.runs[ack.GetUid()]
	if !m.cfg.Outbox.Ack(ack.GetUid(), ack.GetSequence()) || r == nil || r.phase != rikv1alpha1.InstanceTerminated {
		return
	}
	if r.driver != nil {
		m.forgotten[r.uid] = true
		r.driver.Forget(r.uid)
	}
	m.cfg.Objects.Release(r.uid)
	m.cfg.Outbox.Drop(r.uid)
	m.keepFence(r.uid, false)
	if err := m.cfg.Ledger.Prove(r.uid, "", 0); err != nil {
		m.cfg.Logger.Error("an instance's fence is forgotten in memory only", "instance", r.uid, "err", err)
	}
	delete(m.runs, r.uid)
	m.mu.Lock()
	delete(m.infos, r.uid)
	m.mu.Unlock()
	if m.allowed && m.sweepAt.IsZero() {
		m.sweepAt = time.Now().Add(sweepInterval)
	}
}

// sweep lets go of templates that nobody needs. Until an Allowed came, the
// revisions of what was recovered are not known.
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
		m.cfg.Logger.Warn("templates without a use were not removed", "err", err)
	}
}
