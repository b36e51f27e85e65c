// Package instancefake implements instance.Driver without real processes: a process is an entry of
// a map. It follows the contract. Tests of the layers above the drivers use it instead of
// containers.
//
// [Host] is the machine. Its processes survive a [Driver], as real processes survive a riklet. A
// test of a restart creates a second driver on the same host.
package instancefake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/wakeup"
)

// Host is a machine with its processes and durable records.
type Host struct {
	mu      sync.Mutex
	records map[string]*record
	last    int64 // sequence
	starts  map[string]int
	changed chan struct{} // closed and replaced at every change
}

// record is what a driver would save on disk, and what the kernel would have in its tables.
type record struct {
	in      instance.Instance
	status  rikv1alpha1.InstanceStatus
	seq     int64
	log     []line
	started bool          // a goroutine of the driver drives it
	stopped chan struct{} // closed when a stop is requested
	grace   time.Duration
	startup time.Time
}

type line struct {
	at   time.Time
	text string
}

// NewHost returns an empty machine.
func NewHost() *Host {
	return &Host{records: map[string]*record{}, starts: map[string]int{}, changed: make(chan struct{})}
}

// Config configures a [Driver].
type Config struct {
	// Changed is called after every change of an observation. It may be nil.
	Changed func()
	// Start does the work of starting an instance, for example a pull. If it returns an error, the
	// instance is Failed. If it is nil, instances start at once.
	Start func(ctx context.Context, in instance.Instance) error
	// StopTakes is how long a process runs after the stop signal. The process is killed after its
	// grace period.
	StopTakes time.Duration
	// ForgetTakes is how long a record stays after Forget.
	ForgetTakes time.Duration
	// Refuse makes Ensure return an error. If it is nil, Ensure accepts every instance.
	Refuse func(in instance.Instance) error
	// Exec replaces the built-in commands of Driver.Exec.
	Exec func(ctx context.Context, uid, container string, options instance.ExecOptions) (int, error)
}

// Driver implements instance.Driver on a [Host].
type Driver struct {
	host *Host
	cfg  Config
	work wakeup.Signal // set while Run has work to do

	mu        sync.Mutex
	recovered bool
}

var _ instance.Driver = (*Driver)(nil)

// Driver returns a new driver for the host. Only one may run at a time.
func (h *Host) Driver(cfg Config) *Driver {
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	if cfg.Start == nil {
		cfg.Start = func(context.Context, instance.Instance) error { return nil }
	}
	return &Driver{host: h, cfg: cfg, work: wakeup.New()}
}

// Recover implements instance.Driver. The driver continues to drive running instances, and restarts
// incomplete work.
func (d *Driver) Recover(context.Context) error {
	d.host.mu.Lock()
	for _, r := range d.host.records {
		r.started = false
	}
	d.host.mu.Unlock()
	d.mu.Lock()
	d.recovered = true
	d.mu.Unlock()
	d.work.Wake()
	return nil
}

// Run implements instance.Driver. A separate goroutine starts and removes each instance.
func (d *Driver) Run(ctx context.Context) error {
	d.mu.Lock()
	recovered := d.recovered
	d.mu.Unlock()
	if !recovered {
		panic("programmer error: Run before Recover")
	}
	group, ctx := errgroup.WithContext(ctx)
	for {
		for _, uid := range d.host.take() {
			group.Go(func() error { d.drive(ctx, uid); return nil })
		}
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-d.work:
		}
	}
}

// take marks the records that need a goroutine as driven.
func (h *Host) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var uids []string
	for _, uid := range slices.Sorted(maps.Keys(h.records)) {
		if r := h.records[uid]; !r.started && r.status.Phase != rikv1alpha1.InstanceTerminated {
			r.started = true
			uids = append(uids, uid)
		}
	}
	return uids
}

// drive starts one instance, and stops it on request.
func (d *Driver) drive(ctx context.Context, uid string) {
	in, phase, stopped := d.host.look(uid)
	if phase == rikv1alpha1.InstanceCreating {
		starting, cancel := context.WithCancel(ctx)
		release := context.AfterFunc(ctx, cancel)
		go func() {
			select {
			case <-stopped:
				cancel()
			case <-starting.Done():
			}
		}()
		err := d.cfg.Start(starting, in)
		release()
		cancel()
		if ctx.Err() != nil {
			return
		}
		d.begin(uid, err)
	}
	select {
	case <-ctx.Done():
	case <-stopped:
		d.end(ctx, uid)
	}
}

func (h *Host) look(uid string) (instance.Instance, rikv1alpha1.InstancePhase, chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.records[uid]
	return r.in, r.status.Phase, r.stopped
}

// begin records the result of starting the instance, unless the instance is being stopped.
func (d *Driver) begin(uid string, err error) {
	d.change(uid, func(r *record) bool {
		if r.status.Phase != rikv1alpha1.InstanceCreating {
			return false
		}
		now := metav1.Now()
		if err != nil {
			r.status.Phase, r.status.Reason, r.status.Message = rikv1alpha1.InstanceFailed, "StartFailed", err.Error()
			r.status.FinishedAt = &now
			return true
		}
		d.host.starts[uid]++
		r.startup = now.Time
		r.status.Phase, r.status.Ready, r.status.StartedAt = rikv1alpha1.InstanceRunning, true, &now
		r.status.Address = "127.0.0.1"
		for _, c := range r.in.Template.Processes() {
			r.status.Containers = append(r.status.Containers, rikv1alpha1.ContainerStatus{
				Name: c.Name, State: rikv1alpha1.ContainerRunning, Ready: true, StartedAt: &now,
			})
		}
		return true
	})
}

// end ends the process, with the stop signal first and SIGKILL after the grace period.
func (d *Driver) end(ctx context.Context, uid string) {
	d.host.mu.Lock()
	wait := min(d.cfg.StopTakes, d.host.records[uid].grace)
	d.host.mu.Unlock()
	if !pause.For(ctx, wait) {
		return
	}
	d.change(uid, func(r *record) bool {
		terminate(r)
		return true
	})
}

func terminate(r *record) {
	r.status = rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceTerminated, Reason: "Stopped", StartedAt: r.status.StartedAt}
}

// change applies f to a record, and reports the change if f returns true.
func (d *Driver) change(uid string, f func(*record) bool) {
	d.host.mu.Lock()
	r := d.host.records[uid]
	reported := r != nil && f(r)
	if reported {
		d.host.last++
		r.seq = d.host.last
		close(d.host.changed)
		d.host.changed = make(chan struct{})
	}
	d.host.mu.Unlock()
	if reported {
		d.cfg.Changed()
	}
}

// Ensure implements instance.Driver.
func (d *Driver) Ensure(in instance.Instance) error {
	if d.cfg.Refuse != nil {
		if err := d.cfg.Refuse(in); err != nil {
			return err
		}
	}
	d.host.mu.Lock()
	_, known := d.host.records[in.UID]
	if !known {
		d.host.records[in.UID] = &record{in: in, stopped: make(chan struct{})}
	}
	d.host.mu.Unlock()
	if known {
		return nil
	}
	d.change(in.UID, func(r *record) bool {
		r.status.Phase = rikv1alpha1.InstanceCreating
		return true
	})
	d.work.Wake()
	return nil
}

// Stop implements instance.Driver.
func (d *Driver) Stop(uid string, grace time.Duration) {
	d.host.mu.Lock()
	if d.host.records[uid] == nil {
		r := &record{in: instance.Instance{UID: uid}, stopped: make(chan struct{}), started: true}
		terminate(r)
		d.host.records[uid] = r
	}
	d.host.mu.Unlock()
	d.change(uid, func(r *record) bool {
		if r.status.Phase == rikv1alpha1.InstanceTerminated {
			return true // repeated order
		}
		if grace < 0 {
			grace = 30 * time.Second
			if seconds := r.in.Template.TerminationGracePeriodSeconds; seconds != nil {
				grace = time.Duration(*seconds) * time.Second
			}
		}
		if r.status.Phase == rikv1alpha1.InstanceDestroying {
			r.grace = min(r.grace, grace)
			return false
		}
		r.grace = grace
		r.status.Phase, r.status.Ready = rikv1alpha1.InstanceDestroying, false
		close(r.stopped)
		return true
	})
	d.work.Wake()
}

// Forget implements instance.Driver.
func (d *Driver) Forget(uid string) {
	if d.cfg.ForgetTakes > 0 {
		time.AfterFunc(d.cfg.ForgetTakes, func() { d.forget(uid) })
		return
	}
	d.forget(uid)
}

func (d *Driver) forget(uid string) {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	if r := d.host.records[uid]; r != nil && r.status.Phase == rikv1alpha1.InstanceTerminated {
		delete(d.host.records, uid)
	}
}

// List implements instance.Driver.
func (d *Driver) List() []string {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	uids := []string{}
	for uid, r := range d.host.records {
		if r.status.Phase != rikv1alpha1.InstanceTerminated {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

// Observations implements instance.Driver.
func (d *Driver) Observations() []instance.Observation {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	all := make([]instance.Observation, 0, len(d.host.records))
	for uid, r := range d.host.records {
		all = append(all, instance.Observation{UID: uid, Sequence: r.seq, Status: *r.status.DeepCopy()})
	}
	return all
}

// Usage implements instance.Driver: one busy core and a mebibyte.
func (d *Driver) Usage(uid string) (instance.Usage, error) {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	r := d.host.records[uid]
	if r == nil {
		return instance.Usage{}, fmt.Errorf("measuring %s: %w", uid, instance.ErrUnknown)
	}
	if r.status.Phase != rikv1alpha1.InstanceRunning {
		return instance.Usage{}, fmt.Errorf("measuring %s: %w", uid, instance.ErrNotRunning)
	}
	now := time.Now()
	return instance.Usage{CPUNanos: uint64(now.Sub(r.startup)), MemoryBytes: 1 << 20, At: now, StartedAt: r.startup}, nil
}

// OnDisk is the message of an instance that is suspended to disk.
const OnDisk = "on disk"

// Suspend suspends an instance. For every place, the memory stays where it is.
func (d *Driver) Suspend(_ context.Context, uid string, in instance.Place) error {
	if in == instance.OnDisk {
		return d.hold(uid, true, OnDisk)
	}
	return d.hold(uid, true, "")
}

// Resume continues the instance.
func (d *Driver) Resume(_ context.Context, uid string) error { return d.hold(uid, false, "") }

func (d *Driver) hold(uid string, suspended bool, message string) error {
	err := instance.ErrUnknown
	d.change(uid, func(r *record) bool {
		if err = nil; r.status.Phase != rikv1alpha1.InstanceRunning {
			err = instance.ErrNotRunning
			return false
		}
		changed := r.status.Suspended != suspended || r.status.Message != message
		r.status.Suspended, r.status.Ready, r.status.Reason, r.status.Message = suspended, !suspended, "", message
		if suspended {
			r.status.Reason = rikv1alpha1.ReasonSuspended
		}
		return changed
	})
	return err
}
