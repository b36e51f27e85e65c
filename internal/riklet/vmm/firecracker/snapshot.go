package firecracker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/internal/stage"
)

const (
	originFile = "machine.json"
	// maxStateSize is more than the size of the state of a machine's devices.
	maxStateSize = 64 << 20
)

// origin describes the machine of a snapshot. Only the same machine can continue from it.
type origin struct {
	VMM       string `json:"vmm"`
	VCPUs     int    `json:"vcpus"`
	Mebibytes int64  `json:"memoryMebibytes"`
	Disks     []disk `json:"disks"`
	NICs      int    `json:"nics"`
}

type disk struct {
	ID       string `json:"id"`
	ReadOnly bool   `json:"readOnly"`
	Bytes    int64  `json:"bytes"`
}

func originOf(m vmm.Machine) (origin, error) {
	o := origin{VMM: execName, VCPUs: m.VCPUs, Mebibytes: mebibytes(m.MemoryBytes), NICs: len(m.NICs)}
	for _, d := range m.Disks {
		info, err := os.Stat(d.Path)
		if err != nil {
			return o, err
		}
		o.Disks = append(o.Disks, disk{ID: d.ID, ReadOnly: d.ReadOnly, Bytes: info.Size()})
	}
	return o, nil
}

// validateSnapshot refuses to restore into a machine that differs from the saved one.
// Firecracker itself checks its version.
func validateSnapshot(m vmm.Machine) error {
	was, err := os.ReadFile(filepath.Join(m.Restore, originFile))
	if err != nil {
		return fmt.Errorf("%w: %s is not a snapshot of this driver: %w", vmm.ErrInvalid, m.Restore, err)
	}
	o, err := originOf(m)
	if err != nil {
		return err
	}
	is, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if string(was) != string(is) {
		return fmt.Errorf("%w: the snapshot in %s is of another machine: it was %.500s, and this is %s", vmm.ErrInvalid, m.Restore, was, is)
	}
	return nil
}

// Snapshot makes Firecracker write a paused VM into its jail, and moves the files into an empty
// directory. The snapshot is complete when the directory has a file machine.json.
func (v *VM) Snapshot(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty: a snapshot needs a directory of its own", dir)
	}
	s, err := v.State(ctx)
	if err != nil {
		return err
	}
	if s != vmm.StatePaused {
		return fmt.Errorf("the machine %s is %q: pause it first", v.m.ID, s)
	}
	// Check before anything is written, so that a machine that could not be restored stays
	// unchanged.
	if err := v.restorable(ctx); err != nil {
		return err
	}
	if err := v.save(ctx, dir); err != nil {
		for _, name := range []string{memoryFile, stateFile} {
			_ = os.Remove(filepath.Join(dir, name))
		}
		return fmt.Errorf("saving machine %s: %w", v.m.ID, err)
	}
	return nil
}

func (v *VM) save(ctx context.Context, dir string) error {
	o, err := originOf(v.m)
	if err != nil {
		return err
	}
	out := filepath.Join(v.d.root(v.m), outDir)
	if err := stage.Directory(out, stage.Owner{UID: v.m.UID, GID: v.m.GID}); err != nil {
		return err
	}
	defer func() { _ = stage.Remove(out) }()
	err = v.api.put(ctx, "/snapshot/create", snapshotCreate{
		Type: "Full", State: "/" + filepath.Join(outDir, stateFile), Memory: "/" + filepath.Join(outDir, memoryFile),
	})
	if err != nil {
		return err
	}
	for name, most := range map[string]int64{memoryFile: v.m.MemoryBytes + maxStateSize, stateFile: maxStateSize} {
		if err := v.take(ctx, filepath.Join(outDir, name), filepath.Join(dir, name), most); err != nil {
			return err
		}
	}
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, originFile), b)
}

// restorable refuses a version that cannot restore this machine.
func (v *VM) restorable(ctx context.Context) error {
	i, err := v.api.info(ctx)
	if err != nil || len(v.m.NICs) == 0 || !older(i.Version, restoresNetworks) {
		return err
	}
	return fmt.Errorf("%w: Firecracker %.20q does not restore machines with network interfaces: install %s or later, and start a new machine",
		vmm.ErrUnsupported, i.Version, restoresNetworks)
}

// take moves a file out of the jail, or copies it to another file system. The VMM controls the
// jail. Therefore take follows no links, and accepts only a regular file that the VMM owns, with
// a plausible size.
func (v *VM) take(ctx context.Context, name, target string, most int64) error {
	jail, err := os.OpenRoot(v.d.root(v.m))
	if err != nil {
		return err
	}
	defer func() { _ = jail.Close() }()
	in, err := jail.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return fmt.Errorf("Firecracker wrote %v of %d bytes as %s, which is not a snapshot", info.Mode(), info.Size(), name) //nolint:staticcheck // a name
	}
	err = v.move(in, filepath.Join(v.d.root(v.m), name), target)
	if errors.Is(err, unix.EXDEV) {
		err = duplicate(ctx, in, target, info.Size())
	}
	return err
}

// move renames a file that was opened. It then checks that it is the same file, at a place where
// the VMM cannot change it any more, because the VMM may have replaced it.
func (v *VM) move(in *os.File, from, target string) error {
	was, err := in.Stat()
	if err != nil {
		return err
	}
	if err := os.Rename(from, target); err != nil {
		return err
	}
	is, err := os.Lstat(target)
	if err != nil {
		return err
	}
	st, ok := is.Sys().(*syscall.Stat_t)
	if !ok || !os.SameFile(was, is) || st.Nlink != 1 || st.Uid != v.m.UID {
		return errors.Join(fmt.Errorf("%s is not the file that Firecracker wrote", from), os.Remove(target))
	}
	// The same as for a copy: owned by root, readable for all, in a directory that only root can
	// enter.
	return errors.Join(os.Lchown(target, 0, 0), os.Chmod(target, 0o644), in.Sync())
}

// duplicate copies a file that was opened.
func duplicate(ctx context.Context, in *os.File, target string, size int64) error {
	// Readable for all, in a directory that only root can enter: the VMM that continues from it
	// reads it.
	out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	// Pass the file itself, so that the kernel copies. The context is checked between pieces.
	err = copyPieces(ctx, out, in, size)
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

func copyPieces(ctx context.Context, out, in *os.File, size int64) error {
	const piece = 64 << 20
	for done := int64(0); done < size; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := io.CopyN(out, in, min(piece, size-done))
		done += n
		if err != nil {
			return err
		}
	}
	return nil
}

// load loads the snapshot. The guest stays paused.
func (v *VM) load(ctx context.Context) error {
	if err := v.restorable(ctx); err != nil {
		return err
	}
	if err := v.count(ctx); err != nil {
		return err
	}
	l := snapshotLoad{
		State:  "/" + filepath.Join(inDir, stateFile),
		Memory: memoryBackend{Type: "File", Path: "/" + filepath.Join(inDir, memoryFile)},
	}
	for i, n := range v.m.NICs {
		l.Networks = append(l.Networks, networkOverride{ID: nicID(i), Device: n.TAP})
	}
	if err := v.api.put(ctx, "/snapshot/load", l); err != nil {
		return fmt.Errorf("restoring machine %s from %s: %w", v.m.ID, v.m.Restore, err)
	}
	return nil
}
