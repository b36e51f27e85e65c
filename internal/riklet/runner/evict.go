package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/mounts"
)

// The root of a container, an emptyDir on disk and the files of an App have no size of their
// own. When the node's disk is nearly full, the instance that uses most of what it did not
// request is ended, as a kubelet does, and what it wrote is removed.

// diskUse is what an instance has written on the node's disk.
type diskUse struct {
	m         *machine
	priority  int32
	used      int64
	requested int64
}

func (u diskUse) excess() int64 { return u.used - u.requested }

// Evict ends one instance, to make room on the node's disk, and tells which; "" if none uses more
// than it requested. Until the room is there no other one is ended.
func (d *Driver) Evict(ctx context.Context) (uid string, err error) {
	var uses []diskUse
	for _, m := range d.all() {
		m.mu.Lock()
		phase, seen := m.status.Status.Phase, m.seen
		m.mu.Unlock()
		if !seen || phase != rikv1alpha1.InstanceRunning && phase != rikv1alpha1.InstanceCreating {
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

// evictable chooses the instance of the lowest priority, and of those the one that uses most
// beyond its request.
func evictable(uses []diskUse) (victim diskUse, found bool) {
	uses = slices.DeleteFunc(slices.Clone(uses), func(u diskUse) bool { return u.excess() <= 0 })
	if len(uses) == 0 {
		return victim, false
	}
	return slices.MinFunc(uses, func(a, b diskUse) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(b.excess(), a.excess()))
	}), true
}

// evict is for the owner of an instance, which may have ended meanwhile.
func (m *machine) evict(message string) {
	if m.rec.Stop == nil && m.rec.Final == nil && !m.rec.Terminated {
		m.finish(outcome{rikv1alpha1.InstanceFailed, reasonEvicted, message})
	}
}

// diskUse adds up what an instance has written. Its template never changes.
func (d *Driver) diskUse(ctx context.Context, m *machine) (diskUse, error) {
	t := m.rec.Instance.Template
	u := diskUse{m: m, priority: t.Priority, requested: t.EffectiveRequests().Bytes(rikv1alpha1.ResourceDisk)}
	places := []string{d.diskVolume(m.uid, ""), d.appUpper(m.uid), d.scratch(m.uid)}
	if t.Kind != rikv1alpha1.KindApp && !t.Virtual() {
		for _, c := range allContainers(t) {
			places = append(places, d.cfg.Images.Written(containerID(m.uid, c.Name)))
		}
	}
	for _, place := range places {
		used, err := allocated(ctx, place)
		if err != nil {
			return u, fmt.Errorf("measuring what instance %s has written: %w", m.uid, err)
		}
		u.used += used
	}
	return u, nil
}

// allocated is what files take of a disk, holes not counted. Instances change them meanwhile.
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
				total += st.Blocks * 512 // of stat(2), whatever the file system's are
			}
		}
		return nil
	})
	return total, err
}

// endByItself takes back what an instance that ended has. What it wrote stays for who looks at
// its end, unless the room is needed: then it goes at once.
func (m *machine) endByItself() time.Time {
	if m.rec.Final.Reason == reasonEvicted {
		return m.end(m.rec.Final.At, allButLogs)
	}
	return m.end(m.rec.Final.At.Add(m.grace()), processes)
}

// removeWritten removes what an instance wrote, but for its logs.
func (d *Driver) removeWritten(uid string) error {
	return errors.Join(mounts.RemoveAll(d.diskVolume(uid, "")), mounts.RemoveAll(d.appUpper(uid)),
		ignoreMissing(os.Remove(d.scratch(uid))), ignoreMissing(os.Remove(d.diskNoteFile(uid))))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
