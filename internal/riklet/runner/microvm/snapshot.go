package microvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/vmm"
)

// A snapshot is a directory next to the instance's logs, which only root can read. It contains
// what the VMM driver writes about the machine, and instance.json. instance.json is written last
// and removed first. The writable disk stays where it is, and belongs to the snapshot as long as
// instance.json exists.

func (p paths) snapshot(uid string) string { return filepath.Join(p.RootDir(uid), "snapshot") }

func (p paths) snapshotFile(uid string) string {
	return filepath.Join(p.snapshot(uid), "instance.json")
}

// snapshotNote describes the machine of a snapshot, except its memory.
type snapshotNote struct {
	Disks  []vmm.Disk
	Images map[string]vmImage
	// Files are the VMM driver's files, with their sizes.
	Files map[string]int64
	// Scratch is the stamp of the writable disk. It shows whether the disk was written to later.
	Scratch fileStamp
}

type fileStamp struct {
	Bytes    int64
	Modified time.Time
}

func stampOf(path string) (fileStamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return fileStamp{}, err
	}
	return fileStamp{Bytes: info.Size(), Modified: info.ModTime().UTC()}, nil
}

// Exists reports whether there is a snapshot that was not used yet.
func (e *machines) Exists(uid string) bool {
	_, err := os.Lstat(e.paths().snapshotFile(uid))
	return err == nil
}

// useSnapshot marks a snapshot as used, so that the instance does not resume from it twice.
// From then on the disks change.
func (p paths) useSnapshot(uid string) error {
	if err := os.Remove(p.snapshotFile(uid)); err != nil {
		return err
	}
	return atomicfile.SyncDir(p.snapshot(uid))
}

func (p paths) removeSnapshot(uid string) error {
	if err := os.Remove(p.snapshotFile(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(p.snapshot(uid))
}

// slowDisk is the lowest speed at which snapshots may be written and read: 16 MiB a second.
const slowDisk = 16 << 20

func snapshotTimeout(memoryBytes int64) time.Duration {
	return vmTimeout + time.Duration(memoryBytes/slowDisk)*time.Second
}

// errNoSnapshots is returned if the node's VMM does not support snapshots.
var errNoSnapshots = fmt.Errorf("%w: this node's VMM writes no snapshots; suspend the instance in memory", errors.ErrUnsupported)

// Settle pauses the machine after the guest init has prepared for a snapshot.
func (e *machines) Settle(ctx context.Context, uid string) error {
	if e.vm == nil {
		return ErrNone
	}
	note, err := e.note(uid)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, vmTimeout, errors.New("the microVM did not get ready for a snapshot"))
	defer cancel()
	found, err := e.vm.Driver.Probe(ctx)
	if err != nil {
		return err
	}
	if !found.Snapshot {
		return errNoSnapshots
	}
	if err := checkSnapshotSpace(e.paths().RootDir(uid), note.Machine.MemoryBytes); err != nil {
		return err
	}
	vm, err := e.vm.Driver.Connect(ctx, note.Machine)
	if err != nil {
		return err
	}
	defer vm.Close()
	// The machine may already be suspended in memory. The guest init must run to handle the
	// request.
	if err := vm.Resume(ctx); err != nil {
		return err
	}
	if err := e.guest(uid).Keep(ctx); err != nil {
		return err
	}
	return vm.Pause(ctx)
}

// A snapshot leaves a reserve free on the disk: a fiftieth of the disk, at most 512 MiB, the same
// as block images.
const (
	reserveShare = 50
	maxReserve   = 512 << 20
	// deviceMemoryBytes is an upper bound for the state of a machine's devices in a snapshot.
	deviceMemoryBytes = 64 << 20
)

// checkSnapshotSpace rejects a snapshot that might fill the disk. Memory that the guest has never
// used occupies no space in a snapshot, but only the VMM knows its size.
func checkSnapshotSpace(dir string, memoryBytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("reading the size of the file system of %s: %w", dir, err)
	}
	return checkSpace(int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize, memoryBytes)
}

func checkSpace(free, size, memoryBytes int64) error {
	reserve := min(size/reserveShare, maxReserve)
	need := memoryBytes + memoryBytes/8 + deviceMemoryBytes // the drivers' own bound
	if free-need >= reserve {
		return nil
	}
	return fmt.Errorf("no space for the microVM's memory: %d MiB are free on the node's disk, the snapshot may need %d MiB, and %d MiB must stay free. Remove files or instances, or suspend it in memory",
		free>>20, need>>20, reserve>>20)
}

// Write makes the VMM write the machine to disk, and then writes the note of the snapshot.
func (e *machines) Write(ctx context.Context, uid string) error {
	d := e.paths()
	note, err := e.note(uid)
	if err != nil {
		return err
	}
	if err := d.removeSnapshot(uid); err != nil {
		return err
	}
	if err := os.Mkdir(d.snapshot(uid), 0o700); err != nil {
		return err
	}
	timeout := snapshotTimeout(note.Machine.MemoryBytes)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the microVM's memory was not written within %v", timeout))
	defer cancel()
	vm, err := e.vm.Driver.Connect(ctx, note.Machine)
	if err != nil {
		return errors.Join(err, d.removeSnapshot(uid))
	}
	defer vm.Close()
	if err := vm.Snapshot(ctx, d.snapshot(uid)); err != nil {
		return errors.Join(err, d.removeSnapshot(uid))
	}
	if err := d.noteSnapshot(uid, note); err != nil {
		return errors.Join(err, d.removeSnapshot(uid))
	}
	return nil
}

// noteSnapshot writes instance.json durably, which makes the snapshot valid.
func (p paths) noteSnapshot(uid string, vm vmNote) (err error) {
	note := snapshotNote{Disks: vm.Machine.Disks, Images: vm.Images}
	if note.Files, err = sizesIn(p.snapshot(uid)); err != nil {
		return err
	}
	if note.Scratch, err = stampOf(p.scratch(uid)); err != nil {
		return err
	}
	data, err := json.Marshal(note)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(p.snapshotFile(uid), data); err != nil {
		return err
	}
	return atomicfile.SyncDir(p.RootDir(uid))
}

// sizesIn returns the sizes of the files in a directory.
func sizesIn(dir string) (map[string]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		sizes[e.Name()] = info.Size()
	}
	return sizes, nil
}

// usedSnapshotError marks an error that occurred after the snapshot was used, when the guest may
// have continued.
func (v *sandbox) usedSnapshotError(err error) error {
	if err == nil || !v.Restore {
		return err
	}
	return &engine.SnapshotError{Err: err}
}
