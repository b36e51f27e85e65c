// Package guest is the protocol between the node and the init of a microVM, and the node's side
// of it.
//
// The two share one byte stream, the channel: the virtio-serial port PortName, or the vsock port
// VsockPort if the VMM has no serial port. The node opens any number of streams over it (yamux).
// On the node, only the instance's supervisor holds the channel. It gives others access through
// a unix socket, on which every connection is one stream. Each stream carries one request as a
// line of JSON, and then data that depends on the operation. The guest is not trusted:
// everything that it sends is limited, and none of it becomes a path, a command or a length on
// the node.
//
// The init itself is in internal/riklet/guest/guestinit.
package guest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"rik.dev/rik/internal/riklet/guest/wire"
)

const (
	// PortName is the virtio-serial port that the init opens.
	PortName = "dev.rik.guest"
	// VsockPort is the port on which the init listens if there is no such serial port.
	VsockPort = 1024
	// MaxMessage is the maximum size of a line of JSON and of a frame, in bytes.
	MaxMessage = wire.MaxMessage
	// CommandLine holds the parameters that the init needs on every kernel's command line. They
	// make a panic end the VM instead of hanging it. Drivers add the console, and the way to reset
	// their machine (reboot=t for qemu's microvm without ACPI, reboot=k for Firecracker).
	// The VMM must exit at a reset, because that is how a guest without ACPI powers off.
	// loglevel keeps most kernel messages off the slow serial console.
	CommandLine = "panic=-1 quiet loglevel=3 random.trust_cpu=on cryptomgr.notests"
	// TimerParameter is a kernel parameter for the init: the frequency in Hz of the timers of
	// the machine's processors. If the kernel has measured a different frequency, the init
	// powers the machine off.
	TimerParameter = "rik.timer_hz"
	// PausedMessage is part of the init's console message in that case. Another boot is likely to
	// succeed.
	PausedMessage = "while this machine was paused"
)

var (
	// ErrProtocol is returned if the guest violates the protocol.
	ErrProtocol = wire.ErrProtocol
	// ErrNoProgram reports that the command does not exist in the guest.
	ErrNoProgram = errors.New("no such program in the guest")
	// ErrNotRunnable reports that the command exists but cannot be executed.
	ErrNotRunnable = errors.New("the program cannot be run in the guest")
	// ErrDisk is returned by Configure if the guest finds its writable disk but cannot use the
	// file system on it. The content of the disk is lost.
	ErrDisk = errors.New("the guest cannot use its writable disk")
)

// Channel is the node's access to a guest: a unix socket of the VMM. With a VsockPort, the
// socket needs the handshake "CONNECT port" that Firecracker defines.
type Channel struct {
	Socket    string `json:"socket"`
	VsockPort uint32 `json:"vsockPort,omitempty"`
}

// Config configures a guest once, before it runs anything.
type Config struct {
	Hostname   string      `json:"hostname"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	Hosts      string      `json:"hosts"`  // text of /etc/hosts in every root
	Resolv     string      `json:"resolv"` // text of /etc/resolv.conf
	// Scratch is the ID of the writable disk; empty means a file system in memory.
	Scratch string   `json:"scratch,omitempty"`
	Volumes []Volume `json:"volumes,omitempty"`
	// Time sets the clock. Entropy is mixed into the guest's own.
	Time    time.Time `json:"time"`
	Entropy []byte    `json:"entropy"`
}

// Disk identifies a block device of the guest: by the serial number that the VMM set, or, if the
// VMM sets none, by its position among the disks, from 0.
type Disk struct {
	ID    string `json:"id"`
	Index int    `json:"index"`
}

// Interface is a network interface, identified by its MAC address.
type Interface struct {
	MAC     string       `json:"mac"`
	Address netip.Prefix `json:"address"`
	Gateway netip.Addr   `json:"gateway"`
	MTU     int          `json:"mtu"`
}

// Volume is a directory that the containers of a guest share.
type Volume struct {
	Name string `json:"name"`
	// With Memory the volume is in memory. With Projected, Files is its content and containers
	// can only read it. Otherwise it is on the scratch disk, and keeps what an earlier boot
	// wrote there.
	Memory    bool   `json:"memory,omitempty"`
	SizeBytes int64  `json:"sizeBytes,omitempty"`
	Projected bool   `json:"projected,omitempty"`
	Files     []File `json:"files,omitempty"`
}

// File is one file of a projected volume.
type File struct {
	Path string `json:"path"` // relative, clean, without ".."
	Mode uint32 `json:"mode"`
	Data []byte `json:"data"`
}

// Process is one run of a container, or a command in a running container.
type Process struct {
	// Container identifies the root, the cgroup and the volumes. With Exec the process joins
	// those of a running container, with its capabilities. Otherwise they are created. The Env
	// of a command is added to the container's; an empty Dir or User means the container's.
	Container string `json:"container"`
	Exec      bool   `json:"exec,omitempty"`
	// Kept joins the run of the container that Keep kept beyond the end of its session, instead
	// of starting one. Of the other fields only TTY is used.
	Kept bool `json:"kept,omitempty"`

	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"`
	Dir  string   `json:"dir,omitempty"`  // empty: /
	User string   `json:"user,omitempty"` // as in an image's configuration
	TTY  bool     `json:"tty,omitempty"`
	Size Size     `json:"size,omitzero"`

	// The following fields are for a container only. Root is its image, mounted read-only below a
	// writable layer.
	Root         Disk     `json:"root,omitzero"`
	ReadOnlyRoot bool     `json:"readOnlyRoot,omitempty"`
	Mounts       []Mount  `json:"mounts,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"` // CAP_…; those to keep
	// NewPrivs allows the process to gain privileges through set-user-ID programs.
	NewPrivs    bool  `json:"newPrivs,omitempty"`
	NonRoot     bool  `json:"nonRoot,omitempty"`     // refuses to start as user 0
	MemoryBytes int64 `json:"memoryBytes,omitempty"` // limits; 0 means none
	MilliCPU    int64 `json:"milliCPU,omitempty"`
	PIDs        int64 `json:"pids,omitempty"`
}

// Size is the size of a terminal in characters.
type Size struct {
	Width  uint16 `json:"width"`
	Height uint16 `json:"height"`
}

// Mount mounts a volume in a container's root.
type Mount struct {
	Volume   string `json:"volume"`
	Target   string `json:"target"`
	SubPath  string `json:"subPath,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Exit describes how a process ended.
type Exit struct {
	Code      int  `json:"code"` // 128+n for signal n
	OOMKilled bool `json:"oomKilled,omitempty"`
}

// Usage is the guest's own report of its usage. The guest is not trusted, so only show it.
type Usage struct {
	CPUNanos    uint64            `json:"cpuNanos"`
	MemoryBytes uint64            `json:"memoryBytes"`
	Containers  map[string]Memory `json:"containers,omitempty"`
}

// Memory is the memory and CPU time of one container in a guest.
type Memory struct {
	CPUNanos    uint64 `json:"cpuNanos"`
	MemoryBytes uint64 `json:"memoryBytes"`
}

// Identity is what a guest needs after it was restored from a snapshot, because time has passed
// and it may be another machine now.
type Identity struct {
	Hostname   string      `json:"hostname"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	Hosts      string      `json:"hosts"`
	Resolv     string      `json:"resolv"`
	Time       time.Time   `json:"time"`
	Entropy    []byte      `json:"entropy"`
}

// Opener opens one stream to a guest.
type Opener func(ctx context.Context) (net.Conn, error)

// Streams are the standard streams of a process. Nil means none.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer // Stderr is unused with a TTY
}

// Guest is the node's side of one guest. It is safe for concurrent use.
type Guest interface {
	// Configure configures the guest. It must be called once, before Run. ErrDisk means that the
	// writable disk is damaged; the machine must then boot again with another disk.
	Configure(ctx context.Context, c Config) error
	// Run starts a process and returns when it runs. ErrNoProgram and ErrNotRunnable are
	// distinguished from other errors. The process is killed when ctx ends.
	Run(ctx context.Context, p Process, s Streams) (Running, error)
	// Files replaces the content of a projected volume atomically.
	Files(ctx context.Context, v Volume) error
	// Dial connects to a TCP port on the guest's loopback or, if that fails, on its address.
	Dial(ctx context.Context, port int32) (net.Conn, error)
	// Usage returns the guest's usage.
	Usage(ctx context.Context) (Usage, error)
	// Health returns nil if the init answers.
	Health(ctx context.Context) error
	// Thaw sets the time of a guest that was restored or resumed, adds entropy and, if it is
	// another instance now, sets its identity.
	Thaw(ctx context.Context, i Identity) error
	// Keep prepares the guest for a snapshot. It sends no more output and exits of its
	// containers, and they continue to run when the session ends. Thaw reverts this, in this
	// session or a later one. In a later one, each container must then be joined by a Run with
	// Process.Kept.
	Keep(ctx context.Context) error
	// Shutdown writes all data to the disks and powers the guest off.
	Shutdown(ctx context.Context) error
}

// Running is a process in a guest.
type Running interface {
	// PID returns the process ID in the guest.
	PID() int
	// Signal sends a signal. It does nothing if the process has ended.
	Signal(ctx context.Context, signal int) error
	Resize(ctx context.Context, s Size) error
	// Wait returns the exit once all output is written to the Streams. An error means that the
	// guest is gone or has violated the protocol.
	Wait() (Exit, error)
}
