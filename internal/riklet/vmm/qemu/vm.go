package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/internal/qmp"
	"rik.dev/rik/internal/riklet/vmm/internal/socket"
)

const (
	// poll is the interval of checks for states that QEMU does not announce.
	poll = 10 * time.Millisecond
	// startedFile is a file in the machine's directory. It distinguishes a restored VM that was
	// started from one that has only loaded its memory, because for QEMU both are paused.
	startedFile = "vmm-started"
)

// VM is a connection to QEMU. It holds no socket: QEMU serves one connection at a time, so each
// request opens a new one, and any number of agents can send requests.
type VM struct {
	m vmm.Machine
	// turn allows one call at a time to connect, so that the calls of one agent do not fill the
	// socket's queue.
	turn chan struct{}
}

var _ vmm.VM = (*VM)(nil)

// Connect waits until QEMU answers on its socket.
func (d *Driver) Connect(ctx context.Context, m vmm.Machine) (vmm.VM, error) {
	v := &VM{m: m, turn: make(chan struct{}, 1)}
	for {
		_, err := v.status(ctx)
		if err == nil {
			return v, nil
		}
		// The state request itself may fail because ctx ends; that also means ErrGone.
		if !errors.Is(err, vmm.ErrGone) && ctx.Err() == nil {
			return nil, err
		}
		if !pause.For(ctx, poll) {
			return nil, fmt.Errorf("%w: machine %s: %w", vmm.ErrGone, m.ID, context.Cause(ctx))
		}
	}
}

// with runs a function on a new connection.
func (v *VM) with(ctx context.Context, f func(*qmp.Client) error) error {
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c, err := qmp.Dial(ctx, filepath.Join(directory(v.m), qmpSocket), v.m.UID)
	if err != nil {
		return v.translate(err)
	}
	defer func() { _ = c.Close() }()
	return v.translate(f(c))
}

func (v *VM) translate(err error) error {
	if errors.Is(err, socket.ErrGone) {
		return fmt.Errorf("%w: machine %s: %w", vmm.ErrGone, v.m.ID, err)
	}
	return err
}

func (v *VM) do(ctx context.Context, command string) error {
	return v.with(ctx, func(c *qmp.Client) error { return c.Execute(ctx, command, nil, nil) })
}

// QEMU's run states that matter here (qapi/run-state.json).
const (
	statePrelaunch   = "prelaunch"
	stateIncoming    = "inmigrate"
	stateRunning     = "running"
	statePaused      = "paused"
	statePostmigrate = "postmigrate"
	stateSaving      = "finish-migrate"
	stateShutdown    = "shutdown"
)

func (v *VM) status(ctx context.Context) (string, error) {
	var s string
	err := v.with(ctx, func(c *qmp.Client) (err error) {
		s, err = status(ctx, c)
		return err
	})
	return s, err
}

func status(ctx context.Context, c *qmp.Client) (string, error) {
	var s struct {
		Status string `json:"status"`
	}
	err := c.Execute(ctx, "query-status", nil, &s)
	return s.Status, err
}

// State returns the state that QEMU reports.
func (v *VM) State(ctx context.Context) (vmm.State, error) {
	s, err := v.status(ctx)
	if err != nil {
		return "", err
	}
	switch s {
	case statePrelaunch, stateIncoming:
		return vmm.StateNotStarted, nil
	case stateRunning:
		return vmm.StateRunning, nil
	case statePaused, statePostmigrate, stateSaving:
		if v.waits() {
			return vmm.StateNotStarted, nil
		}
		return vmm.StatePaused, nil
	case stateShutdown:
		return vmm.StateShutdown, nil
	default:
		return "", fmt.Errorf("QEMU is in the state %.40q: stop the machine and start it again", s)
	}
}

// waits reports whether a restored VM has never been started.
func (v *VM) waits() bool {
	if v.m.Restore == "" {
		return false
	}
	_, err := os.Lstat(v.started())
	return errors.Is(err, os.ErrNotExist)
}

func (v *VM) started() string { return filepath.Join(v.m.Dir, startedFile) }

// Start boots the guest, or loads the snapshot and resumes it. A VM that was started before
// stays unchanged, even if it is paused.
func (v *VM) Start(ctx context.Context) error {
	s, err := v.status(ctx)
	if err != nil {
		return err
	}
	switch {
	case s == statePrelaunch:
		return v.do(ctx, "cont")
	case s == stateIncoming:
		if err := v.restore(ctx); err != nil {
			return err
		}
		return v.resume(ctx)
	case s == statePaused && v.waits():
		return v.resume(ctx)
	case s == stateShutdown:
		return fmt.Errorf("the guest of machine %s has powered off: start a new one", v.m.ID)
	default:
		return nil
	}
}

func (v *VM) resume(ctx context.Context) error {
	if err := v.do(ctx, "cont"); err != nil {
		return err
	}
	if err := os.WriteFile(v.started(), nil, 0o600); err != nil {
		return fmt.Errorf("recording that the machine was started: %w", err)
	}
	return nil
}

// Pause stops the guest's processors.
func (v *VM) Pause(ctx context.Context) error {
	return v.when(ctx, "stop", map[string]bool{stateRunning: true}, statePaused, statePostmigrate, stateSaving)
}

// Resume continues them.
func (v *VM) Resume(ctx context.Context) error {
	return v.when(ctx, "cont", map[string]bool{statePaused: true, statePostmigrate: true}, stateRunning)
}

// when runs a command in the states in from, does nothing in the states in done, and refuses in
// all others.
func (v *VM) when(ctx context.Context, command string, from map[string]bool, done ...string) error {
	return v.with(ctx, func(c *qmp.Client) error {
		s, err := status(ctx, c)
		if err != nil {
			return err
		}
		if from[s] && !v.waits() {
			return c.Execute(ctx, command, nil, nil)
		}
		for _, d := range done {
			if s == d && !v.waits() {
				return nil
			}
		}
		return fmt.Errorf("the machine %s is %q: start it first", v.m.ID, s)
	})
}

// Shutdown presses the power button. A guest without a driver for it does not react; the usual
// way is the init's own Shutdown.
func (v *VM) Shutdown(ctx context.Context) error { return v.do(ctx, "system_powerdown") }

// Close does nothing.
func (v *VM) Close() error { return nil }
