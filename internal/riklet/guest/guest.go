// Package guest is what the node and the init of a microVM say to each other, and the
// node's side of it.
//
// The two have one byte stream, the channel: the virtio-serial port PortName, or the
// vsock port VsockPort where the VMM has no serial port. The node opens any number of
// streams over it (yamux); on the node only the instance's supervisor holds the
// channel, and lends it to others through a unix socket on which every connection is
// one stream. Each stream carries one request as a line of JSON and then what the
// operation says. The guest is hostile: whatever comes from it is bounded, and nothing
// that it says becomes a path, a command or a length on the node.
//
// The init itself is internal/riklet/guest/guestinit.
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
	// VsockPort is where the init listens without such a port.
	VsockPort = 1024
	// MaxMessage bounds every line of JSON and every frame, in bytes.
	MaxMessage = wire.MaxMessage
	// CommandLine is what the init needs on every kernel's command line: where its
	// console is, and that a panic ends the VM rather than hangs it. Drivers add how
	// their machine is reset (reboot=t for qemu's microvm without ACPI, reboot=k for
	// Firecracker) and must end the VMM at a reset: that is how a guest without ACPI
	// powers off. LogLevel keeps the kernel's chatter off a slow serial console.
	CommandLine = "console=ttyS0 panic=-1 quiet loglevel=3 random.trust_cpu=on cryptomgr.notests"
	// TimerParameter with a number tells the init on the kernel's command line how many
	// times a second the timers of the machine's processors count. Where the kernel
	// measures that by itself and believes something else, the init ends the machine.
	TimerParameter = "rik.timer_hz"
	// HeldUp is in what it then says on the console: another boot is likely to be better.
	HeldUp = "while this machine was held up"
)

var (
	// ErrProtocol is returned when the guest says what it must not.
	ErrProtocol = wire.ErrProtocol
	// ErrNoProgram is a command that was not found in the guest.
	ErrNoProgram = errors.New("no such program in the guest")
	// ErrNotRunnable is a command that cannot be executed there.
	ErrNotRunnable = errors.New("the program cannot be run in the guest")
	// ErrDisk is returned by Configure when the guest finds its writable disk but cannot
	// use the file system on it. The disk's content is lost.
	ErrDisk = errors.New("the guest cannot use its writable disk")
)

// Channel is where a VMM lets the node reach its guest: a unix socket, and with a
// VsockPort the handshake "CONNECT port" that Firecracker defines for it.
type Channel struct {
	Socket    string `json:"socket"`
	VsockPort uint32 `json:"vsockPort,omitempty"`
}

// Config is what a guest is told once, before it runs anything.
type Config struct {
	Hostname   string      `json:"hostname"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	Hosts      string      `json:"hosts"`  // text of /etc/hosts in every root
	Resolv     string      `json:"resolv"` // text of /etc/resolv.conf
	// Scratch is the ID of the writable disk; empty: memory.
	Scratch string   `json:"scratch,omitempty"`
	Volumes []Volume `json:"volumes,omitempty"`
	// Time sets the clock, Entropy is mixed into the guest's own.
	Time    time.Time `json:"time"`
	Entropy []byte    `json:"entropy"`
}

// Disk names a block device of the guest: by the serial number that the VMM gave it,
// or, where a VMM gives none, by its place among the disks, from 0.
type Disk struct {
	ID    string `json:"id"`
	Index int    `json:"index"`
}

// Interface is a network interface, found by its address.
type Interface struct {
	MAC     string       `json:"mac"`
	Address netip.Prefix `json:"address"`
	Gateway netip.Addr   `json:"gateway"`
	MTU     int          `json:"mtu"`
}

// Volume is a directory that the containers of a guest share.
type Volume struct {
	Name string `json:"name"`
	// Memory keeps it in memory, Files is its content and makes it read-only for
	// containers; otherwise it is on the scratch disk, and keeps what an earlier boot
	// wrote to that disk.
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

// Process is one run of a container, or a command beside it.
type Process struct {
	// Container names the root, the cgroup and the volumes. With Exec the process
	// joins those of a container that runs, with its capabilities; without, they are
	// made anew. A command's Env is added to the container's, and what it leaves
	// empty of Dir and User is the container's.
	Container string `json:"container"`
	Exec      bool   `json:"exec,omitempty"`
	// Kept joins the run of the container that Keep carried over the end of its
	// session, instead of starting one: of all else only TTY is looked at.
	Kept bool `json:"kept,omitempty"`

	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"`
	Dir  string   `json:"dir,omitempty"`  // empty: /
	User string   `json:"user,omitempty"` // as in an image's configuration
	TTY  bool     `json:"tty,omitempty"`
	Size Size     `json:"size,omitzero"`

	// What follows is for a container only.
	Root         Disk     `json:"root,omitzero"` // its image, mounted read-only below a writable layer
	ReadOnlyRoot bool     `json:"readOnlyRoot,omitempty"`
	Mounts       []Mount  `json:"mounts,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"` // CAP_…; what it keeps
	NewPrivs     bool     `json:"newPrivs,omitempty"`     // may gain more by set-user-ID programs
	NonRoot      bool     `json:"nonRoot,omitempty"`      // does not start as user 0
	MemoryBytes  int64    `json:"memoryBytes,omitempty"`  // limits; 0: none
	MilliCPU     int64    `json:"milliCPU,omitempty"`
	PIDs         int64    `json:"pids,omitempty"`
}

// Size of a terminal in characters.
type Size struct {
	Width  uint16 `json:"width"`
	Height uint16 `json:"height"`
}

// Mount puts a volume into a container's root.
type Mount struct {
	Volume   string `json:"volume"`
	Target   string `json:"target"`
	SubPath  string `json:"subPath,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Exit is how a process ended.
type Exit struct {
	Code      int  `json:"code"` // 128+n for signal n
	OOMKilled bool `json:"oomKilled,omitempty"`
}

// Usage is what a guest says of itself. Believe it no further than to show it.
type Usage struct {
	CPUNanos    uint64            `json:"cpuNanos"`
	MemoryBytes uint64            `json:"memoryBytes"`
	Containers  map[string]Memory `json:"containers,omitempty"`
}

// Memory and time of one container in a guest.
type Memory struct {
	CPUNanos    uint64 `json:"cpuNanos"`
	MemoryBytes uint64 `json:"memoryBytes"`
}

// Identity is what a guest is told after it was restored from a snapshot: it is
// another machine now, later.
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

// Streams are what a process reads and writes. Nil is nothing.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer // Stderr is unused with a TTY
}

// Guest is the node's side of one guest; any goroutine may use it.
type Guest interface {
	// Configure tells the guest who it is. It is called once, before Run. ErrDisk means
	// that the writable disk is damaged; the machine must then boot again with another.
	Configure(ctx context.Context, c Config) error
	// Run starts a process and returns when it runs. ErrNoProgram and ErrNotRunnable
	// are told apart from everything else. The process ends when ctx does.
	Run(ctx context.Context, p Process, s Streams) (Running, error)
	// Files replaces the content of a projected volume, all at once.
	Files(ctx context.Context, v Volume) error
	// Dial connects to a TCP port of the guest's loopback, and then to its address.
	Dial(ctx context.Context, port int32) (net.Conn, error)
	// Usage asks for what the guest uses.
	Usage(ctx context.Context) (Usage, error)
	// Health returns nil when the init answers.
	Health(ctx context.Context) error
	// Thaw gives a guest that was restored or resumed its time, entropy and, if it
	// is another instance now, its identity.
	Thaw(ctx context.Context, i Identity) error
	// Keep makes the guest ready for a snapshot: it says nothing more of its
	// containers' output and ends, and lets them live on when the session ends. Thaw,
	// in this session or a later one, takes it back; in a later one each container is
	// then joined by a Run with Process.Kept.
	Keep(ctx context.Context) error
	// Shutdown writes everything to the disks and powers the guest off.
	Shutdown(ctx context.Context) error
}

// Running is a process in a guest.
type Running interface {
	// PID in the guest.
	PID() int
	// Signal sends a signal; to one that has ended it does nothing.
	Signal(ctx context.Context, signal int) error
	Resize(ctx context.Context, s Size) error
	// Wait returns how it ended, when all its output was written to the Streams. An
	// error means that the guest is gone, or breaks the protocol.
	Wait() (Exit, error)
}
