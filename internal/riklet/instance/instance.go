// Package instance is the contract between the riklet's connections and the
// drivers that run instances: what an instance is on its node, what a driver
// can be asked, and what it tells.
//
// It holds no behavior. The agent (internal/riklet) has one Driver for all
// kinds, which is internal/riklet/runner.
package instance

import (
	"context"
	"errors"
	"io"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Instance is what a node was ordered to run. Its UID is its identity; names
// are only for people and for the environment inside.
type Instance struct {
	UID       string
	Namespace string
	Name      string
	Workload  string
	// Revision is the name of the WorkloadRevision that Template was read from.
	Revision string
	Template rikv1alpha1.InstanceTemplate
}

// ShortNames is the domain, within the cluster's, that instances search for the short names of
// workloads in other namespaces, such as web.other. It is not the cluster's domain itself: a
// program that asks for github.com asks for github.com in each domain that it searches, and a
// workload github in a namespace com must not answer that. No namespace has such a name.
const ShortNames = "short_names"

// Observation is what a driver saw of one instance. A later Sequence replaces
// an earlier one. Status.Phase, Reason and Message say the whole; the rest of
// Status says it for each container.
type Observation struct {
	UID      string
	Sequence int64
	Status   rikv1alpha1.InstanceStatus
}

var (
	// ErrUnknown is returned for an instance or container that the driver has
	// nothing of.
	ErrUnknown = errors.New("this node does not have the instance")
	// ErrNotRunning is returned when a session needs a running container.
	ErrNotRunning = errors.New("container is not running")
	// ErrLost is returned for an instance that could not go on from the disk.
	ErrLost = errors.New("the suspended state is lost")
)

// Driver runs the instances of a node. All methods may be called at any time after Recover returned,
// from any goroutine. None of them waits for an image, a process or another instance, except Run,
// Suspend, Resume and the sessions Logs, Exec and Dial.
type Driver interface {
	Runner
	Sessions
}

// Runner creates instances, ends them and reports their states.
type Runner interface {
	// Recover reads the durable records, re-attaches to what still runs, undoes
	// what was left half done, and removes what no record knows. It is called
	// once, before everything else.
	Recover(ctx context.Context) error
	// Run drives all instances until ctx ends, then returns without stopping
	// any of them.
	Run(ctx context.Context) error
	// Ensure makes the instance run, whatever state it is in; a second call
	// with the same UID does nothing. An ended one is not started again.
	Ensure(in Instance) error
	// Stop takes the instance away: polite signal, grace, hard signal, then
	// everything that was made for it. The last observation of it has phase
	// Terminated; it is repeated for a UID that the driver has nothing of. A
	// negative grace means the template's.
	Stop(uid string, grace time.Duration)
	// Forget drops the record of an instance whose Terminated observation has
	// been received.
	Forget(uid string)
	// List gives the UIDs that the driver has anything of.
	List() []string
	// Observations gives the latest observation of each instance.
	Observations() []Observation
	// Usage measures one instance now.
	Usage(uid string) (Usage, error)
}

// Sessions reaches the inside of instances.
type Sessions interface {
	// Logs writes a container's log to w until the end, or with Follow until
	// ctx ends or the instance is gone.
	Logs(ctx context.Context, uid, container string, options LogOptions, w io.Writer) error
	// Exec runs a command in a container and returns its exit code. It ends the
	// command when ctx ends.
	Exec(ctx context.Context, uid, container string, options ExecOptions) (int, error)
	// Suspend holds all processes of an instance until Resume: they keep their
	// memory and get no time. Both return when it is so and it is durable; either
	// twice is once, and one that is held in memory can be put on disk. A suspended
	// instance is not ready and is not probed; Stop resumes it first, if it is in
	// memory. ErrNotRunning before it runs; errors.ErrUnsupported for a place that
	// its kind, or this node, does not have.
	Suspend(ctx context.Context, uid string, in Place) error
	// Resume lets it go on. One whose memory on disk is of no use any more is made
	// anew, which is an error too: ErrLost.
	Resume(ctx context.Context, uid string) error
	// Dial connects to a TCP port inside the instance's network.
	Dial(ctx context.Context, uid string, port int32) (io.ReadWriteCloser, error)
}

// Place is where a suspended instance has its memory.
type Place int

// The places.
const (
	// InMemory: its processes stand still; connections last.
	InMemory Place = iota
	// OnDisk: nothing of it is in memory, and it has no address until it goes on.
	OnDisk
)

// Usage is what an instance uses of its node.
type Usage struct {
	CPUNanos    uint64 // since its start
	MemoryBytes uint64 // working set
	At          time.Time
	StartedAt   time.Time
	// VM is what a microVM's VMM and the kernel count besides; nil for all else, and
	// for one that is suspended or does not answer at once.
	VM *VMUsage
}

// VMUsage are counters of a microVM since its VMM was started. Those that its VMM does
// not have are 0.
type VMUsage = nodev1.VMUsage

// LogOptions choose a part of a log.
type LogOptions struct {
	Follow     bool
	Previous   bool
	Timestamps bool
	TailLines  *int64
	Since      time.Time // zero: all
}

// Size of a terminal in characters.
type Size struct{ Width, Height uint16 }

// ExecOptions describe a command to run in a container.
type ExecOptions struct {
	Command        []string
	TTY            bool
	Stdin          io.Reader // nil: none
	Stdout, Stderr io.Writer // Stderr is unused with a TTY
	Resize         <-chan Size
}

// Objects gives drivers what instances refer to. It answers from what the
// controller sent; when it has nothing yet it waits until ctx ends.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (Entries, error)
	Secret(ctx context.Context, namespace, name string) (Entries, error)
}

// Entries of a ConfigMap or Secret.
type Entries struct {
	Found bool
	Type  string // of a Secret
	Data  map[string][]byte
}
