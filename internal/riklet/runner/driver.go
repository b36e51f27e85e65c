package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/state"
)

// Driver runs the instances of one node. See instance.Driver for the contract of its methods.
type Driver struct {
	cfg     Config
	paths   engine.Paths
	engines []*engine.Engine
	store   *state.Store
	cgroups cgroup.Layout
	swap    bool
	files   uint64 // hard limit of open files
	// capabilities is the bounding set of every process that the node starts.
	capabilities spec.CapabilitySet
	bootID       string
	shims        []string // the cgroup.procs files of the supervisors' cgroup
	startSlots   chan struct{}
	last         atomic.Int64 // sequence number of the latest observation

	mu       sync.Mutex // guards the fields below
	machines map[string]*machine
	lost     map[string]map[string]state.Container // container runs without a record, by UID
	ctx      context.Context                       // the context of Run; nil before Run
	group    sync.WaitGroup
}

var _ instance.Driver = (*Driver)(nil)

// New creates a Driver. Until Recover, it touches only its directories and its state file. Close
// releases the state file.
func New(cfg Config) (*Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configuring the runner: %w", err)
	}
	cfg = cfg.withDefaults()
	if os.Geteuid() != 0 {
		return nil, errors.New("running instances needs root")
	}
	if err := os.MkdirAll(filepath.Join(cfg.Root, engine.Instances), 0o700); err != nil {
		return nil, fmt.Errorf("creating the state directory: %w", err)
	}
	store, err := state.Open(filepath.Join(cfg.Root, recordsFile))
	if err != nil {
		return nil, err
	}
	d := &Driver{
		cfg: cfg, paths: engine.Paths{Root: cfg.Root, Run: cfg.Run}, store: store, startSlots: make(chan struct{}, cfg.StartsAtOnce),
		machines: map[string]*machine{}, lost: map[string]map[string]state.Container{},
	}
	d.engines = newEngines(d)
	// The sequence is based on the time, so that it grows over restarts without a disk write for
	// each number.
	d.last.Store(cfg.Clock.Now().UnixMicro())
	return d, nil
}

// Close releases the state file. Run must have returned.
func (d *Driver) Close() error {
	d.mu.Lock()
	machines := d.machines
	d.machines = map[string]*machine{}
	d.mu.Unlock()
	for _, m := range machines {
		m.disconnect()
	}
	return d.store.Close()
}

// Run drives every instance until ctx ends.
func (d *Driver) Run(ctx context.Context) error {
	d.mu.Lock()
	d.ctx = ctx
	for _, m := range d.machines {
		d.launchLocked(m)
	}
	d.mu.Unlock()
	<-ctx.Done()
	d.mu.Lock()
	d.ctx = nil
	d.mu.Unlock()
	d.group.Wait()
	return nil
}

func (d *Driver) launchLocked(m *machine) {
	if ctx := d.ctx; ctx != nil && ctx.Err() == nil {
		d.group.Go(func() { m.run(ctx) })
	}
}

// Ensure accepts an instance and starts it.
func (d *Driver) Ensure(in instance.Instance) error {
	if err := d.validate(in); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.machines[in.UID] != nil {
		return nil
	}
	rec := state.Record{BootID: d.bootID, Instance: in}
	runs, lost := d.lost[in.UID]
	if lost {
		rec = afterRecordLoss(rec, runs, d.cfg.Clock.Now())
		delete(d.lost, in.UID)
	}
	m := newMachine(d, rec)
	m.dirty = lost
	d.addLocked(m)
	return nil
}

func (d *Driver) addLocked(m *machine) {
	d.machines[m.uid] = m
	d.launchLocked(m)
}

// Stop ends an instance and removes what it has on the node.
func (d *Driver) Stop(uid string, grace time.Duration) {
	d.mu.Lock()
	m := d.machines[uid]
	if m == nil {
		// This node has no such instance. Report it as terminated.
		delete(d.lost, uid)
		m = newMachine(d, state.Record{BootID: d.bootID, Terminated: true, Instance: instance.Instance{UID: uid}})
		m.publish()
		d.addLocked(m)
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	m.post(func() { m.stop(grace) })
}

// Forget drops an instance that has terminated.
func (d *Driver) Forget(uid string) {
	if m := d.machine(uid); m != nil {
		m.post(m.forget)
	}
}

// remove removes a machine from the driver's map.
func (d *Driver) remove(m *machine) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.machines[m.uid] == m {
		delete(d.machines, m.uid)
	}
}

func (d *Driver) machine(uid string) *machine {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.machines[uid]
}

func (d *Driver) all() []*machine {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]*machine, 0, len(d.machines))
	for _, m := range d.machines {
		list = append(list, m)
	}
	return list
}

// List returns the UIDs of all instances.
func (d *Driver) List() []string {
	var uids []string
	for _, m := range d.all() {
		uids = append(uids, m.uid)
	}
	return uids
}

// Observations returns the latest observation of each instance.
func (d *Driver) Observations() []instance.Observation {
	var list []instance.Observation
	for _, m := range d.all() {
		if o, ok := m.observation(); ok {
			list = append(list, o)
		}
	}
	return list
}

// ObjectsChanged makes the instances check the ConfigMaps and Secrets that they mount. They also
// check them at regular intervals.
func (d *Driver) ObjectsChanged() {
	for _, m := range d.all() {
		m.post(m.refreshVolumes)
	}
}

// Usage measures the resource usage of an instance.
func (d *Driver) Usage(uid string) (instance.Usage, error) {
	m := d.machine(uid)
	if m == nil {
		return instance.Usage{}, instance.ErrUnknown
	}
	o, _ := m.observation()
	u := instance.Usage{At: d.cfg.Clock.Now()}
	if o.Status.StartedAt != nil {
		u.StartedAt = o.Status.StartedAt.Time
	}
	stats, err := d.cgroups.Stats(d.cgroup(uid))
	if err != nil {
		return u, fmt.Errorf("%w: measuring instance %s: %w", instance.ErrNotRunning, uid, err)
	}
	u.CPUNanos, u.MemoryBytes = stats.CPUNanos, stats.MemoryBytes
	if m.engine != nil && !o.Status.Suspended {
		u.VM = m.engine.Usage(m.engineRunning())
	}
	return u, nil
}

// sequence returns the sequence number of the next observation.
func (d *Driver) sequence() int64 {
	for {
		last := d.last.Load()
		next := max(last+1, d.cfg.Clock.Now().UnixMicro())
		if d.last.CompareAndSwap(last, next) {
			return next
		}
	}
}

// startSlot waits until fewer than StartsAtOnce containers are starting.
func (d *Driver) startSlot(ctx context.Context) (release func(), err error) {
	select {
	case d.startSlots <- struct{}{}:
		return func() { <-d.startSlots }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
