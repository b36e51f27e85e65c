package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/internal/qmp"
	"rik.dev/rik/internal/riklet/vmm/internal/socket"
)

// A snapshot is QEMU's migration stream, saved and restored through a unix socket. With a socket
// the VMM's user needs no permission for the directory. Every version of QEMU supports it (files
// by name came with 8.2, files by descriptor end with 9.1).
const (
	memoryFile = "memory"
	originFile = "machine.json"
	// outSocket receives a snapshot, and inSocket restores one. Both are in the VMM's directory.
	outSocket = "snapshot-out"
	inSocket  = "snapshot-in"
	// devices is more than the size of a machine's devices in the stream.
	devices = 64 << 20
)

// origin describes the machine of a snapshot. Only the same machine can continue from it.
type origin struct {
	VMM         string `json:"vmm"`
	Version     string `json:"version"`
	Accelerator string `json:"accelerator"`
	VCPUs       int    `json:"vcpus"`
	Mebibytes   int64  `json:"memoryMebibytes"`
	Disks       []disk `json:"disks"`
	NICs        int    `json:"nics"`
}

type disk struct {
	ID       string `json:"id"`
	ReadOnly bool   `json:"readOnly"`
	Bytes    int64  `json:"bytes"`
}

func originOf(m vmm.Machine) (origin, error) {
	o := origin{VMM: "qemu", VCPUs: m.VCPUs, Mebibytes: mebibytes(m.MemoryBytes), NICs: len(m.NICs)}
	for _, d := range m.Disks {
		info, err := os.Stat(d.Path)
		if err != nil {
			return o, err
		}
		o.Disks = append(o.Disks, disk{ID: d.ID, ReadOnly: d.ReadOnly, Bytes: info.Size()})
	}
	return o, nil
}

func readOrigin(dir string) (origin, error) {
	var o origin
	b, err := os.ReadFile(filepath.Join(dir, originFile))
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	return o, err
}

// validateSnapshot refuses to restore into a machine that differs from the saved one.
func validateSnapshot(m vmm.Machine) error {
	was, err := readOrigin(m.Restore)
	if err != nil {
		return fmt.Errorf("%w: %s is not a snapshot of this driver: %w", vmm.ErrInvalid, m.Restore, err)
	}
	is, err := originOf(m)
	if err != nil {
		return err
	}
	is.Version, is.Accelerator = was.Version, was.Accelerator
	before, _ := json.Marshal(was)
	now, _ := json.Marshal(is)
	if string(before) != string(now) {
		return fmt.Errorf("%w: the snapshot in %s is of another machine: it was %s, and this is %s", vmm.ErrInvalid, m.Restore, before, now)
	}
	return nil
}

// validateOrigin refuses a snapshot of another QEMU, because the stream's format depends on the
// version.
func (f *found) validateOrigin(m vmm.Machine) error {
	was, err := readOrigin(m.Restore)
	if err != nil {
		return err
	}
	if was.Version != f.Capabilities.Version || was.Accelerator != f.Capabilities.Accelerator {
		return fmt.Errorf("%w: the snapshot in %s was created by QEMU %s under %s, and this is %s under %s: start a new machine instead",
			vmm.ErrInvalid, m.Restore, was.Version, was.Accelerator, f.Capabilities.Version, f.Capabilities.Accelerator)
	}
	return nil
}

// Snapshot writes a paused VM into an empty directory. The snapshot is complete when the
// directory has a file machine.json.
func (v *VM) Snapshot(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty: a snapshot needs a directory of its own", dir)
	}
	err = v.with(ctx, func(c *qmp.Client) error {
		s, err := status(ctx, c)
		if err != nil {
			return err
		}
		if s != statePaused && s != statePostmigrate {
			return fmt.Errorf("the machine %s is %q: pause it first", v.m.ID, s)
		}
		return v.save(ctx, c, dir)
	})
	if err != nil {
		_ = os.Remove(filepath.Join(dir, memoryFile))
		return fmt.Errorf("saving machine %s: %w", v.m.ID, err)
	}
	return nil
}

func (v *VM) save(ctx context.Context, c *qmp.Client, dir string) error {
	o, err := v.describe(ctx, c)
	if err != nil {
		return err
	}
	if err := v.thaw(ctx, c); err != nil {
		return err
	}
	listener, err := v.listen()
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	// QEMU has no value for "unlimited". No disk is faster than this.
	if err := c.Execute(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": int64(1) << 40}, nil); err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() { received <- v.receive(ctx, listener, filepath.Join(dir, memoryFile)) }()
	err = v.send(ctx, c)
	if err != nil {
		_ = listener.Close()
	}
	if err := errors.Join(err, <-received); err != nil {
		return err
	}
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, originFile), b)
}

// describe returns the origin of the snapshot.
func (v *VM) describe(ctx context.Context, c *qmp.Client) (origin, error) {
	o, err := originOf(v.m)
	if err != nil {
		return o, err
	}
	if o.Version, err = version(ctx, c); err != nil {
		return o, err
	}
	var kvm struct {
		Enabled bool `json:"enabled"`
	}
	err = c.Execute(ctx, "query-kvm", nil, &kvm)
	o.Accelerator = TCG
	if kvm.Enabled {
		o.Accelerator = KVM
	}
	return o, err
}

func version(ctx context.Context, c *qmp.Client) (string, error) {
	var v struct {
		QEMU struct {
			Major int `json:"major"`
			Minor int `json:"minor"`
			Micro int `json:"micro"`
		} `json:"qemu"`
	}
	err := c.Execute(ctx, "query-version", nil, &v)
	return fmt.Sprintf("%d.%d.%d", v.QEMU.Major, v.QEMU.Minor, v.QEMU.Micro), err
}

// thaw prepares a VM that was saved before for another save. QEMU saves a VM twice only if it
// has run in between, even for a moment.
func (v *VM) thaw(ctx context.Context, c *qmp.Client) error {
	s, err := status(ctx, c)
	if err != nil || s != statePostmigrate {
		return err
	}
	if err := c.Execute(ctx, "cont", nil, nil); err != nil {
		return err
	}
	return c.Execute(ctx, "stop", nil, nil)
}

// listen creates a socket to which the VMM may connect.
func (v *VM) listen() (*net.UnixListener, error) {
	path := filepath.Join(directory(v.m), outSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if int(v.m.UID) != os.Geteuid() {
		err = os.Lchown(path, int(v.m.UID), int(v.m.GID))
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// receive writes the data from the VMM to a file, at most as much as the machine can have.
func (v *VM) receive(ctx context.Context, l *net.UnixListener, path string) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	conn, err := l.AcceptUnix()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	defer func() { _ = conn.Close() }()
	if err := socket.Validate(conn, v.m.UID); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	most := v.m.MemoryBytes + v.m.MemoryBytes/8 + devices
	n, err := io.Copy(f, io.LimitReader(conn, most))
	if err == nil && n == most {
		err = fmt.Errorf("the VMM sent more than %d bytes", most)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// send starts the migration and waits for its end.
func (v *VM) send(ctx context.Context, c *qmp.Client) error {
	if err := c.Execute(ctx, "migrate", map[string]any{"uri": "unix:" + outSocket}, nil); err != nil {
		return err
	}
	for {
		done, err := migrated(ctx, c)
		if done || err != nil {
			return err
		}
		if !pause.For(ctx, poll) {
			// Cancel the migration, or the VM would stay partially saved. Use a context that has
			// not ended; QEMU answers at once, or the end of the socket ends the call.
			_ = c.Execute(context.WithoutCancel(ctx), "migrate_cancel", nil, nil)
			return context.Cause(ctx)
		}
	}
}

func migrated(ctx context.Context, c *qmp.Client) (bool, error) {
	var m struct {
		Status string `json:"status"`
		Error  string `json:"error-desc"`
	}
	if err := c.Execute(ctx, "query-migrate", nil, &m); err != nil {
		return false, err
	}
	switch m.Status {
	case "completed":
		return true, nil
	case "failed", "canceled":
		return false, fmt.Errorf("QEMU %s: %.200s", m.Status, m.Error)
	default:
		return false, nil
	}
}

// restore sends QEMU the memory for which it waits.
func (v *VM) restore(ctx context.Context) error {
	f, err := os.Open(filepath.Join(v.m.Restore, memoryFile))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	err = v.with(ctx, func(c *qmp.Client) error {
		if err := c.Execute(ctx, "migrate-incoming", map[string]any{"uri": "unix:" + inSocket}, nil); err != nil {
			return err
		}
		if err := v.sendSnapshot(ctx, f); err != nil {
			return err
		}
		return awaitMemory(ctx, c)
	})
	if err != nil {
		return fmt.Errorf("restoring machine %s from %s: %w", v.m.ID, v.m.Restore, err)
	}
	return nil
}

func (v *VM) sendSnapshot(ctx context.Context, f *os.File) error {
	conn, err := socket.Connect(ctx, filepath.Join(directory(v.m), inSocket), v.m.UID)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := io.Copy(conn, f); err != nil {
		return err
	}
	return conn.CloseWrite()
}

func awaitMemory(ctx context.Context, c *qmp.Client) error {
	for {
		s, err := status(ctx, c)
		if err != nil || s != stateIncoming {
			return err
		}
		if !pause.For(ctx, poll) {
			return context.Cause(ctx)
		}
	}
}
