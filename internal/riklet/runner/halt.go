package runner

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/runner/engine"
)

// How long Halt waits for processes after SIGTERM, and how often it looks. A machine that shuts
// down gives them at most 90 s (systemd's DefaultTimeoutStopSec); this removal is interactive.
const (
	haltTimeout  = 10 * time.Second
	haltInterval = 50 * time.Millisecond
)

// halted is the boot ID of records whose processes Halt ended. It differs from every real one, so
// Recover treats the instance as after a boot.
const halted = "halted"

// Halt ends all processes of all instances, as a shutdown of the machine does: SIGTERM first, and
// SIGKILL after at most ten seconds. It removes their cgroups, namespaces and mounts. The records,
// volumes, logs and images stay, so the next agent starts the instances again as after a boot.
// Call it after Recover, instead of Run. It is idempotent.
func (d *Driver) Halt(ctx context.Context) error {
	var group errgroup.Group
	group.SetLimit(concurrentRecoveries)
	for _, m := range d.all() {
		group.Go(func() error {
			running := m.shim != nil
			m.disconnect()
			d.terminate(ctx, m.uid)
			if err := d.tearDown(ctx, m.in, processes); err != nil {
				return err
			}
			if !running {
				return nil // Recover has recorded why
			}
			rec := m.rec
			rec.BootID = halted
			return d.store.Put(rec)
		})
	}
	err := group.Wait()
	d.killLeftoverShims(nil)
	d.keepNetwork(ctx, nil)
	ctx, cancel := context.WithTimeout(ctx, engine.EndTimeout)
	defer cancel()
	err = errors.Join(err, d.cgroups.Destroy(ctx, d.cfg.CgroupParent), mounts.UnmountBelow(d.cfg.Run))
	if err != nil {
		return err
	}
	return mounts.Clear(d.cfg.Run)
}

// terminate sends SIGTERM to the processes of an instance, and waits for their end.
func (d *Driver) terminate(ctx context.Context, uid string) {
	end := time.Now().Add(haltTimeout)
	for _, pid := range d.cgroups.Processes(d.cgroup(uid)) {
		// A process that has ended in the meantime needs no signal.
		_ = unix.Kill(pid, unix.SIGTERM)
	}
	for time.Now().Before(end) && len(d.cgroups.Processes(d.cgroup(uid))) > 0 {
		if !pause.For(ctx, haltInterval) {
			return
		}
	}
}
