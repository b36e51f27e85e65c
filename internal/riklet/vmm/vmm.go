// Package vmm is the contract with a virtual machine monitor: what a microVM is made
// of, and what can be asked of it while it runs.
//
// A driver starts nothing by itself: it says which process the instance's supervisor
// is to run (Process), so that a VM outlives the agent like every other instance, and
// connects to it afterward (Connect), as often as agents come and go. Drivers hold no
// state but what lies in Machine.Dir. internal/riklet/vmm/vmmtest is what every driver
// has to pass; qemu, firecracker and vmmfake are the drivers.
package vmm

import (
	"context"
	"errors"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/shim/launch"
)

var (
	// ErrUnavailable is returned by Probe when this machine cannot run the driver; the
	// text says what is missing and what to install or allow.
	ErrUnavailable = errors.New("this machine cannot run microVMs")
	// ErrUnsupported is returned for what a driver cannot do.
	ErrUnsupported = errors.New("the VMM cannot do that")
	// ErrGone is returned when no VMM answers any more.
	ErrGone = errors.New("the VMM is gone")
	// ErrInvalid is returned for a Machine that no VMM could run.
	ErrInvalid = errors.New("invalid machine")
)

// Machine is a microVM. Its ID is an instance's UID: the same Machine always means the
// same VM.
type Machine struct {
	ID string
	// Dir is an absolute directory for sockets and whatever else the driver needs. It
	// exists, is short enough for unix sockets (MaxDir) and belongs to this machine
	// alone. What is above it may be closed to UID (launch.Process.Enclosed).
	Dir string
	// Kernel and Initramfs are files; CommandLine is added to what the driver needs.
	Kernel, Initramfs string
	CommandLine       string
	VCPUs             int   // 1 to 32
	MemoryBytes       int64 // at least MinMemory
	Disks             []Disk
	NICs              []NIC
	// UID and GID are the VMM's own, unlike any other machine's; it runs without root.
	UID, GID uint32
	// Cgroups are the cgroup.procs files that the VMM joins.
	Cgroups []string
	// Restore is the directory of a snapshot to go on from; empty: boot.
	Restore string
}

// MinMemory is the least that boots Debian's cloud kernel with our init.
const MinMemory = 96 << 20

// Disk is a raw image.
type Disk struct {
	ID string // [a-z0-9-]{1,20}; the guest finds it by this, or by its place
	// Path is a file: of a writable disk Prepare makes UID the owner, a read-only one
	// must be readable for all (the directories above it may be closed).
	Path     string
	ReadOnly bool
	// Limits; 0: none.
	BytesPerSecond, OperationsPerSecond int64
}

// NIC is a network interface.
type NIC struct {
	// TAP is a device of the network namespace that the VMM is started in, which
	// Machine.UID may open.
	TAP string
	MAC string
	MTU int
	// Limits in bytes per second, as the guest sees them; 0: none.
	ReceiveBytesPerSecond, TransmitBytesPerSecond int64
}

// Capabilities are what Probe found.
type Capabilities struct {
	// Version of the VMM.
	Version string
	// Accelerator is "kvm", or "tcg" for software emulation.
	Accelerator string
	// Guest tells that a guest was really booted, not only asked for.
	Guest bool
	// Snapshot: VMs can be written to disk and restored.
	Snapshot bool
	// RateLimits of disks and network are kept.
	DiskLimits, NetworkLimits bool
}

// State of a VM.
type State string

// The states of a VM that answers.
const (
	StateNotStarted State = "NotStarted" // it waits for VM.Start
	StateRunning    State = "Running"
	StatePaused     State = "Paused"
	StateShutdown   State = "Shutdown" // the guest powered off; the process ends soon
)

// Metrics of a VM by its VMM; zero where it does not count.
type Metrics struct {
	DiskReadBytes, DiskWriteBytes        uint64
	DiskReads, DiskWrites                uint64
	NetworkReceived, NetworkTransmitted  uint64 // bytes, as the guest sees them
	MemoryBytes                          uint64 // that the guest was given
	Exits                                uint64 // returns from the guest to the VMM
	VCPUNanos                            uint64 // time of its virtual processors on the node's
	BalloonBytes                         uint64
	PageFaults, SeccompFaults, PanicCode uint64
}

// Driver knows one VMM. Its methods may be called from any goroutine.
type Driver interface {
	Name() string
	// Probe finds out, once and by booting a guest where it can, whether and how this
	// machine runs VMs. ErrUnavailable names what is missing.
	Probe(ctx context.Context) (Capabilities, error)
	// Validate reports every problem of a machine, ErrInvalid.
	Validate(m Machine) error
	// Prepare makes the files that the VMM needs in m.Dir and gives what is to be run.
	// Its standard output and error are the VMM's and the guest's serial console.
	Prepare(ctx context.Context, m Machine) (launch.Process, error)
	// Connect reaches the VMM of a machine whose process was started, and waits for
	// its socket until ctx ends. ErrGone when there is none.
	Connect(ctx context.Context, m Machine) (VM, error)
	// Channel is where the guest's channel is reached, once it was started.
	Channel(m Machine) guest.Channel
	// Cleanup removes what Prepare made. The VMM must have ended. Twice is once.
	Cleanup(ctx context.Context, m Machine) error
}

// VM is a connection to a running VMM. Any goroutine may use it.
type VM interface {
	// Start boots the guest, or lets a restored one go on. One that runs is no error.
	Start(ctx context.Context) error
	State(ctx context.Context) (State, error)
	// Pause and Resume stop and continue the guest's processors. Twice is once.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Snapshot writes a paused VM's memory and devices into an empty directory. Its
	// disks are not part of it: they must not be written until the VM goes on.
	Snapshot(ctx context.Context, dir string) error
	// Shutdown asks the guest to power off, as a power button does.
	Shutdown(ctx context.Context) error
	Metrics(ctx context.Context) (Metrics, error)
	// Close ends the connection, not the VM.
	Close() error
}
