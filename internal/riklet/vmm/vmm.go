// Package vmm is the contract with a virtual machine monitor: the parts of a microVM, and the
// operations on it while it runs.
//
// A driver starts nothing by itself. It returns the process for the instance's supervisor to run
// (Prepare), so that a VM outlives the agent like every other instance. Any agent can connect to
// it afterward (Connect). Drivers have no state except the files in Machine.Dir.
// internal/riklet/vmm/vmmtest is the conformance suite of all drivers; qemu, firecracker and
// vmmfake are the drivers.
package vmm

import (
	"context"
	"errors"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/shim/launch"
)

var (
	// ErrUnavailable is returned by Probe if this machine cannot run the driver. The text says
	// what is missing and what to install or allow.
	ErrUnavailable = errors.New("this machine cannot run microVMs")
	// ErrUnsupported is returned for operations that a driver does not have.
	ErrUnsupported = errors.New("the VMM does not support this")
	// ErrGone is returned if no VMM answers.
	ErrGone = errors.New("the VMM has ended")
	// ErrInvalid is returned for a Machine that no VMM could run.
	ErrInvalid = errors.New("invalid machine")
)

// Machine is a microVM. Its ID is an instance's UID: the same Machine always means the same VM.
type Machine struct {
	ID string
	// Dir is an absolute directory for sockets and other files of the driver. It exists, is
	// short enough for unix sockets (MaxDir) and belongs only to this machine. UID may lack
	// access to the directories above it (launch.Process.Enclosed).
	Dir string
	// Kernel and Initramfs are files. CommandLine is added to the driver's own parameters.
	Kernel, Initramfs string
	CommandLine       string
	VCPUs             int   // 1 to 32
	MemoryBytes       int64 // at least MinMemory
	Disks             []Disk
	NICs              []NIC
	// UID and GID are the VMM's. Each machine has different ones. They must not be root's.
	UID, GID uint32
	// Cgroups are the cgroup.procs files that the VMM joins.
	Cgroups []string
	// Restore is the directory of a snapshot to restore; empty means boot.
	Restore string
}

// MinMemory is the minimum that boots Debian's cloud kernel with rik's init.
const MinMemory = 96 << 20

// Disk is a raw image.
type Disk struct {
	ID string // [a-z0-9-]{1,20}; the guest finds the disk by this, or by its position
	// Path is a file. Prepare makes UID the owner of a writable disk. A read-only one must be
	// readable for all; the directories above it need not be.
	Path     string
	ReadOnly bool
	// Limits; 0 means none.
	BytesPerSecond, OperationsPerSecond int64
}

// NIC is a network interface.
type NIC struct {
	// TAP is a device in the network namespace in which the VMM starts. Machine.UID must have
	// permission to open it.
	TAP string
	MAC string
	MTU int
	// Limits in bytes per second, from the guest's point of view; 0 means none.
	ReceiveBytesPerSecond, TransmitBytesPerSecond int64
}

// Capabilities are the result of Probe.
type Capabilities struct {
	// Version of the VMM.
	Version string
	// Accelerator is "kvm", or "tcg" for software emulation.
	Accelerator string
	// Guest means that a guest has really booted in the probe.
	Guest bool
	// Snapshot means that VMs can be written to disk and restored.
	Snapshot bool
	// DiskLimits and NetworkLimits mean that the driver enforces rate limits of disks and
	// network.
	DiskLimits, NetworkLimits bool
}

// State is the state of a VM.
type State string

// The states of a VM that answers.
const (
	StateNotStarted State = "NotStarted" // it waits for VM.Start
	StateRunning    State = "Running"
	StatePaused     State = "Paused"
	StateShutdown   State = "Shutdown" // the guest powered off; the process ends soon
)

// Metrics are the VMM's counters of a VM; zero if it does not count.
type Metrics struct {
	DiskReadBytes, DiskWriteBytes        uint64
	DiskReads, DiskWrites                uint64
	NetworkReceived, NetworkTransmitted  uint64 // bytes, from the guest's point of view
	MemoryBytes                          uint64 // assigned to the guest
	Exits                                uint64 // exits from the guest to the VMM
	VCPUNanos                            uint64 // time of its virtual processors on the node's
	BalloonBytes                         uint64
	PageFaults, SeccompFaults, PanicCode uint64
}

// Driver controls one kind of VMM. It is safe for concurrent use.
type Driver interface {
	Name() string
	// Probe finds out whether and how this machine runs VMs, if possible by booting a guest. It
	// does that once. ErrUnavailable names what is missing.
	Probe(ctx context.Context) (Capabilities, error)
	// Validate reports every problem of a machine, as ErrInvalid.
	Validate(m Machine) error
	// Prepare creates the files that the VMM needs in m.Dir and returns the process to run. Its
	// standard output and error are those of the VMM and of the guest's serial console.
	Prepare(ctx context.Context, m Machine) (launch.Process, error)
	// Connect connects to the VMM of a machine whose process was started, and waits for its
	// socket until ctx ends. It returns ErrGone if no VMM answers.
	Connect(ctx context.Context, m Machine) (VM, error)
	// Channel returns the guest's channel. It works once the guest was started.
	Channel(m Machine) guest.Channel
	// Cleanup removes what Prepare created. The VMM must have ended. It may be repeated.
	Cleanup(ctx context.Context, m Machine) error
}

// VM is a connection to a running VMM. It is safe for concurrent use.
type VM interface {
	// Start boots the guest, or resumes a restored one. It is not an error if it runs already.
	Start(ctx context.Context) error
	State(ctx context.Context) (State, error)
	// Pause and Resume stop and continue the guest's processors. They may be repeated.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Snapshot writes a paused VM's memory and devices into an empty directory. Its disks are
	// not part of it: they must not be written until the VM continues.
	Snapshot(ctx context.Context, dir string) error
	// Shutdown requests that the guest powers off, like a power button.
	Shutdown(ctx context.Context) error
	Metrics(ctx context.Context) (Metrics, error)
	// Close ends the connection, not the VM.
	Close() error
}
