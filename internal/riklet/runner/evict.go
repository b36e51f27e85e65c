package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
)

// Container root file systems, emptyDirs on disk and the files of Apps have no size limit. When
// the node's disk is nearly full, the riklet evicts an instance that uses more than it requested,
// as kubelet does, and removes what it wrote.

// diskUse is what an instance has written on the node's disk, in bytes.
type diskUse struct {
	m         *machine
	priority  int32
	used      int64
	requested int64
}

func (u diskUse) excess() int64 { return u.used - u.requested }

// Evict ends one instance to free space on the node's disk, and returns its UID, or "" if no
// instance exceeds its request. It evicts no other instance until that one has released its
// space.
func (d *Driver) Evict(ctx context.Context) (uid string, err error) {
	var uses []diskUse
	for _, m := range d.all() {
		if phase := m.phase(); phase != rikv1alpha1.InstanceRunning && phase != rikv1alpha1.InstanceCreating {
			continue
		}
		if m.evicting.Load() {
			return m.uid, nil
		}
		u, err := d.diskUse(ctx, m)
		if err != nil {
			return "", err
		}
		uses = append(uses, u)
	}
	victim, found := evictable(uses)
	if !found {
		return "", nil
	}
	message := fmt.Sprintf("the node's disk is nearly full, and the instance has written %d MiB to it, %d MiB more than it requested",
		victim.used>>20, victim.excess()>>20)
	victim.m.evicting.Store(true)
	victim.m.post(func() { victim.m.evict(message) })
	return victim.m.uid, nil
}

// evictable returns the instance with the lowest priority. Among several, it returns the one that
// exceeds its request most.
func evictable(uses []diskUse) (victim diskUse, found bool) {
	uses = slices.DeleteFunc(slices.Clone(uses), func(u diskUse) bool { return u.excess() <= 0 })
	if len(uses) == 0 {
		return victim, false
	}
	return slices.MinFunc(uses, func(a, b diskUse) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(b.excess(), a.excess()))
	}), true
}

// evict runs in the goroutine of the machine. The instance may have ended meanwhile.
func (m *machine) evict(message string) {
	if m.rec.Stop == nil && m.rec.Final == nil && !m.rec.Terminated {
		m.finish(outcome{rikv1alpha1.InstanceFailed, reasonEvicted, message})
	}
}

// diskUse adds up what an instance has written. The instance's template never changes.
func (d *Driver) diskUse(ctx context.Context, m *machine) (diskUse, error) {
	t := m.in.Template
	u := diskUse{m: m, priority: t.Priority, requested: t.EffectiveRequests().Bytes(rikv1alpha1.ResourceDisk)}
	if m.engine == nil {
		return u, nil
	}
	for _, place := range m.engine.Written(m.in) {
		used, err := allocated(ctx, place)
		if err != nil {
			return u, fmt.Errorf("measuring the data that instance %s has written: %w", m.uid, err)
		}
		u.used += used
	}
	return u, nil
}

// allocated returns the disk space that the files in a directory occupy, without holes. Instances
// may change the files meanwhile.
func allocated(ctx context.Context, dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if info, err := entry.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				total += st.Blocks * 512 // the unit of st_blocks in stat(2)
			}
		}
		return nil
	})
	return total, err
}

// endByItself tears down an instance that has ended. Its volumes and logs stay for inspection.
// After an eviction its volumes are removed at once, because the space is needed.
func (m *machine) endByItself() time.Time {
	if m.rec.Final.Reason == reasonEvicted {
		return m.end(m.rec.Final.At, allButLogs)
	}
	return m.end(m.rec.Final.At.Add(m.grace()), processes)
}

// removeWritten removes what an instance wrote, except its logs.
func (d *Driver) removeWritten(in instance.Instance) error {
	var errs []error
	for _, e := range d.enginesOf(in) {
		errs = append(errs, e.RemoveWritten(in.UID))
	}
	return errors.Join(errs...)
}
