package firecracker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/vmm"
)

const (
	poll = 10 * time.Millisecond
	// bootArguments set the console, end the VMM if the guest panics or restarts, and disable
	// the search for PCI. The keyboard's controller stays, for SendCtrlAltDel and reboot=k.
	bootArguments = "console=ttyS0 quiet reboot=k panic=-1 pci=off"
	// guestCID is the lowest CID that a guest may have. Each VMM has its own socket, so all
	// guests can have the same one.
	guestCID = 3
)

// The states in Firecracker's API, in answers and in requests.
const (
	saysNotStarted = "Not started"
	saysRunning    = "Running"
	saysPaused     = "Paused"
	logPaused      = "Paused"
	logResumed     = "Resumed"
)

// VM is a connection to Firecracker. It holds no socket: each request opens a new one.
type VM struct {
	d   *Driver
	m   vmm.Machine
	api api

	counting sync.Mutex // held while metrics are read, because each value is reported only once
}

var _ vmm.VM = (*VM)(nil)

// Connect waits until Firecracker answers on its socket.
func (d *Driver) Connect(ctx context.Context, m vmm.Machine) (vmm.VM, error) {
	v := &VM{d: d, m: m, api: d.api(m)}
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

// State returns the state that Firecracker reports.
func (v *VM) State(ctx context.Context) (vmm.State, error) {
	i, err := v.api.info(ctx)
	if err != nil {
		return "", err
	}
	switch i.State {
	case saysNotStarted:
		return vmm.StateNotStarted, nil
	case saysRunning:
		return vmm.StateRunning, nil
	case saysPaused:
		// A loaded snapshot is also paused, but was never started.
		if v.waits() {
			return vmm.StateNotStarted, nil
		}
		return vmm.StatePaused, nil
	default:
		return "", fmt.Errorf("Firecracker is in the state %.40q: stop the machine and start it again", i.State) //nolint:staticcheck // a name
	}
}

// waits reports whether a restored VM has never been started.
func (v *VM) waits() bool {
	if v.m.Restore == "" {
		return false
	}
	_, err := os.Lstat(filepath.Join(v.m.Dir, startedFile))
	return errors.Is(err, os.ErrNotExist)
}

// Start configures the VM and boots it, or loads the snapshot and resumes it. If an agent dies
// in between, all steps can be repeated.
func (v *VM) Start(ctx context.Context) error {
	i, err := v.api.info(ctx)
	if err != nil {
		return err
	}
	switch {
	case i.State == saysNotStarted && v.m.Restore == "":
		if err := v.configure(ctx); err != nil {
			return err
		}
		return v.api.put(ctx, "/actions", action{Type: "InstanceStart"})
	case i.State == saysNotStarted:
		if err := v.load(ctx); err != nil {
			return err
		}
		return v.resume(ctx)
	case i.State == saysPaused && v.waits():
		return v.resume(ctx)
	default:
		return nil
	}
}

func (v *VM) resume(ctx context.Context) error {
	if err := v.log(ctx, logResumed); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(v.m.Dir, startedFile), nil, 0o600); err != nil {
		return fmt.Errorf("recording that the machine was started: %w", err)
	}
	return nil
}

// request is one call of the configuration.
type request struct {
	path string
	body any
}

// configure sends the configuration of the machine.
func (v *VM) configure(ctx context.Context) error {
	for _, r := range configuration(v.m) {
		if err := v.api.put(ctx, r.path, r.body); err != nil {
			return fmt.Errorf("configuring machine %s: %w", v.m.ID, err)
		}
	}
	return v.count(ctx)
}

// metricsAlreadySet is part of Firecracker's answer if the metrics pipe is already set.
const metricsAlreadySet = "Reinitialization of metrics"

// count sets the pipe for metrics. Firecracker accepts this once, and an earlier agent may have
// done it. Since 1.14 it opens the pipe without waiting for a reader, which fails without one,
// so count opens the pipe for reading first. A machine also runs without metrics.
func (v *VM) count(ctx context.Context) error {
	pipe, err := v.openPipe()
	if err == nil {
		defer func() { _ = pipe.Close() }()
		err = v.api.put(ctx, "/metrics", metricsPath{Path: "/" + metricsFile})
	}
	fault, refused := errors.AsType[*Fault](err)
	switch {
	case refused && strings.Contains(fault.Text, metricsAlreadySet):
		return nil
	case refused, err != nil && pipe == nil:
		v.d.config.Logger.Warn("Firecracker accepts no pipe for metrics: the machine's disks and network are not measured", "machine", v.m.ID, "err", err)
		return nil
	}
	return err
}

// configuration returns the requests that configure a machine, in order. Paths are those in the
// jail. The guest sees the disks in this order.
func configuration(m vmm.Machine) []request {
	source := bootSource{Kernel: "/" + kernelFile, Arguments: commandLine(m)}
	if m.Initramfs != "" {
		source.Initramfs = "/" + initrdFile
	}
	all := []request{
		{"/machine-config", machineConfig{VCPUs: m.VCPUs, Mebibytes: mebibytes(m.MemoryBytes)}},
		{"/boot-source", source},
	}
	for i, d := range m.Disks {
		all = append(all, request{"/drives/" + driveID(i), drive{
			ID: driveID(i), Path: "/" + driveID(i), ReadOnly: d.ReadOnly,
			Limiter: limiter(d.BytesPerSecond, d.OperationsPerSecond),
		}})
	}
	for i, n := range m.NICs {
		all = append(all, request{"/network-interfaces/" + nicID(i), networkInterface{
			ID: nicID(i), Device: n.TAP, MAC: n.MAC,
			Receive: limiter(n.ReceiveBytesPerSecond, 0), Transmit: limiter(n.TransmitBytesPerSecond, 0),
		}})
	}
	return append(all,
		request{"/vsock", vsock{CID: guestCID, Path: "/" + guestSocket}},
		request{"/entropy", struct{}{}},
	)
}

func nicID(index int) string { return fmt.Sprintf("nic%d", index) }

// mebibytes rounds down: a machine never gets more than it was assigned.
func mebibytes(b int64) int64 { return b >> 20 }

func commandLine(m vmm.Machine) string {
	if m.CommandLine == "" {
		return bootArguments
	}
	return bootArguments + " " + m.CommandLine
}

func (v *VM) log(ctx context.Context, state string) error {
	return v.api.do(ctx, http.MethodPatch, "/vm", vmState{State: state}, nil)
}

// Pause stops the guest's processors.
func (v *VM) Pause(ctx context.Context) error {
	return v.become(ctx, vmm.StatePaused, logPaused)
}

// Resume continues them.
func (v *VM) Resume(ctx context.Context) error {
	return v.become(ctx, vmm.StateRunning, logResumed)
}

func (v *VM) become(ctx context.Context, want vmm.State, log string) error {
	s, err := v.State(ctx)
	if err != nil {
		return err
	}
	switch s {
	case want:
		return nil
	case vmm.StateRunning, vmm.StatePaused:
		return v.log(ctx, log)
	default:
		return fmt.Errorf("the machine %s is %q: start it first", v.m.ID, s)
	}
}

// Shutdown sends Ctrl-Alt-Del, to which an init reacts. ARM machines have no keyboard.
func (v *VM) Shutdown(ctx context.Context) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("%w: Firecracker has a keyboard only on x86: shut the guest down through its channel", vmm.ErrUnsupported)
	}
	return v.api.put(ctx, "/actions", action{Type: "SendCtrlAltDel"})
}

// Close does nothing.
func (v *VM) Close() error { return nil }
