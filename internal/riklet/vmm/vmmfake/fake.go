// Package vmmfake is a running fake of a VMM, for tests of the users of a vmm.Driver. It boots
// nothing, but starts a process of the machine's user. The process can be paused and killed, and
// serves a channel with the guest's real protocol. A process "in the guest" is a process of this
// machine, without its own root. Disks, networks and volumes are accepted but not used.
//
// The process is the test's own program, whose TestMain calls Main first, or the program in the
// directory double.
package vmmfake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/internal/socket"
	"rik.dev/rik/internal/riklet/vmm/internal/stage"
)

// Names in a machine's directory.
const (
	ownDir        = "vmm"
	programFile   = "program"
	controlSocket = "control"
	guestSocket   = "guest"
)

const (
	poll      = 5 * time.Millisecond
	maxAnswer = 64 << 10
)

// Driver is the vmm.Driver of the fake.
type Driver struct {
	// Program is the file of a program that calls Main; empty means the test's own. A separate
	// program starts faster than a large test.
	Program string
}

var _ vmm.Driver = Driver{}

// Name returns "fake".
func (Driver) Name() string { return "fake" }

// Probe always succeeds. The fake boots nothing and enforces no limits.
func (Driver) Probe(context.Context) (vmm.Capabilities, error) {
	return vmm.Capabilities{Version: "1", Accelerator: "none"}, nil
}

// Validate reports every problem of a machine. A machine with Restore is invalid.
func (Driver) Validate(m vmm.Machine) error {
	err := m.Validate()
	if m.Restore != "" {
		err = errors.Join(err, fmt.Errorf("%w: %w", vmm.ErrInvalid, vmm.ErrUnsupported))
	}
	return err
}

func directory(m vmm.Machine) string { return filepath.Join(m.Dir, ownDir) }

// Channel returns the socket on which the fake serves the guest's protocol.
func (Driver) Channel(m vmm.Machine) guest.Channel {
	return guest.Channel{Socket: filepath.Join(directory(m), guestSocket)}
}

// Prepare links the program to a path where the machine's user can run it.
func (d Driver) Prepare(_ context.Context, m vmm.Machine) (launch.Process, error) {
	if err := d.Validate(m); err != nil {
		return launch.Process{}, err
	}
	if err := d.prepare(m); err != nil {
		return launch.Process{}, errors.Join(err, stage.Remove(directory(m)))
	}
	return launch.Process{
		// Use the working directory, because the user may lack access to the directories above.
		Argv: []string{"/proc/self/cwd/" + programFile, word, strconv.FormatInt(m.MemoryBytes, 10)},
		Env:  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Dir:  directory(m), Enclosed: true, UID: m.UID, GID: m.GID, Cgroups: m.Cgroups,
	}, nil
}

func (d Driver) prepare(m vmm.Machine) error {
	owner := stage.Owner{UID: m.UID, GID: m.GID}
	program := d.Program
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		program = self
	}
	if err := stage.Directory(directory(m), owner); err != nil {
		return err
	}
	files := map[string]string{programFile: program}
	for _, disk := range m.Disks {
		if disk.ReadOnly {
			files["disk-"+disk.ID] = disk.Path
		}
	}
	for name, path := range files {
		if err := stage.ReadOnly(path, filepath.Join(directory(m), name), owner); err != nil {
			return err
		}
	}
	return nil
}

// Cleanup removes what Prepare created.
func (Driver) Cleanup(_ context.Context, m vmm.Machine) error {
	if !filepath.IsAbs(m.Dir) {
		return fmt.Errorf("%w: the directory %q is not absolute", vmm.ErrInvalid, m.Dir)
	}
	return stage.Remove(directory(m))
}

// Connect waits until the fake answers.
func (Driver) Connect(ctx context.Context, m vmm.Machine) (vmm.VM, error) {
	v := &VM{m: m}
	for {
		_, err := v.State(ctx)
		if err == nil {
			return v, nil
		}
		if !errors.Is(err, vmm.ErrGone) && ctx.Err() == nil {
			return nil, err
		}
		if !pause.For(ctx, poll) {
			return nil, fmt.Errorf("%w: machine %s: %w", vmm.ErrGone, m.ID, context.Cause(ctx))
		}
	}
}

// VM is a connection to the fake. Each order opens a new connection.
type VM struct{ m vmm.Machine }

var _ vmm.VM = (*VM)(nil)

// order is a request to the fake, and reply its answer, each as a line of JSON.
type order struct {
	Do string `json:"do"`
}

type reply struct {
	Error   string      `json:"error,omitempty"`
	State   vmm.State   `json:"state"`
	Metrics vmm.Metrics `json:"metrics"`
}

// The orders.
const (
	doState    = "state"
	doStart    = "start"
	doPause    = "pause"
	doResume   = "resume"
	doShutdown = "shutdown"
)

func (v *VM) ask(ctx context.Context, do string) (reply, error) {
	var r reply
	err := v.exchange(ctx, do, &r)
	switch {
	case err != nil && ctx.Err() != nil:
		return r, fmt.Errorf("%s: %w", do, context.Cause(ctx))
	case err != nil:
		if err = socket.Gone(err); errors.Is(err, socket.ErrGone) {
			err = fmt.Errorf("%w: %w", vmm.ErrGone, err)
		}
		return r, fmt.Errorf("%s: %w", do, err)
	case r.Error != "":
		return r, fmt.Errorf("%s: %.200s", do, r.Error)
	}
	return r, nil
}

func (v *VM) exchange(ctx context.Context, do string, r *reply) error {
	conn, err := socket.Connect(ctx, filepath.Join(directory(v.m), controlSocket), v.m.UID)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err := json.NewEncoder(conn).Encode(order{Do: do}); err != nil {
		return err
	}
	return json.NewDecoder(io.LimitReader(conn, maxAnswer)).Decode(r)
}

func (v *VM) do(ctx context.Context, what string) error {
	_, err := v.ask(ctx, what)
	return err
}

// Start makes the fake serve the guest's end of the channel.
func (v *VM) Start(ctx context.Context) error { return v.do(ctx, doStart) }

// State returns the state that the fake reports.
func (v *VM) State(ctx context.Context) (vmm.State, error) {
	r, err := v.ask(ctx, doState)
	if err == nil && r.State == "" {
		err = errors.New("the fake did not report its state")
	}
	return r.State, err
}

// Pause stops every process of the guest, and its channel.
func (v *VM) Pause(ctx context.Context) error { return v.do(ctx, doPause) }

// Resume continues them.
func (v *VM) Resume(ctx context.Context) error { return v.do(ctx, doResume) }

// Snapshot always fails.
func (v *VM) Snapshot(ctx context.Context, _ string) error {
	if _, err := v.State(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%w: the fake VMM has no memory to write", vmm.ErrUnsupported)
}

// Shutdown ends the guest's processes and then the fake.
func (v *VM) Shutdown(ctx context.Context) error { return v.do(ctx, doShutdown) }

// Metrics returns the memory assigned to the machine.
func (v *VM) Metrics(ctx context.Context) (vmm.Metrics, error) {
	r, err := v.ask(ctx, doState)
	return r.Metrics, err
}

// Close does nothing.
func (v *VM) Close() error { return nil }
