// Package instance is the contract between the riklet's connections and the drivers that run
// instances. It defines what an instance is on its node, the operations of a driver, and what a
// driver reports.
//
// The package contains no behavior. The agent (internal/riklet) has one Driver for all kinds,
// internal/riklet/runner.
package instance

import (
	"context"
	"errors"
	"io"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Instance is an instance that the node was ordered to run. Its UID identifies it. Names are only
// for messages and for the environment inside.
type Instance struct {
	UID       string
	Namespace string
	Name      string
	Template  rikv1alpha1.InstanceTemplate
}

// ShortNames is a domain below the cluster's domain. Instances search it for the short names of
// workloads in other namespaces, such as web.other. It is not the cluster's domain itself: a
// program that resolves github.com tries it in each search domain, and a workload github in a
// namespace com must not answer. No namespace can have such a name.
const ShortNames = "short_names"

// Observation is the state of one instance as its driver sees it. A later Sequence replaces an
// earlier one. Status.Phase, Reason and Message describe the instance. The other fields of Status
// describe each container.
type Observation struct {
	UID      string
	Sequence int64
	Status   rikv1alpha1.InstanceStatus
}

var (
	// ErrUnknown is returned for an instance or container that the driver does not have.
	ErrUnknown = errors.New("this node does not have the instance")
	// ErrNotRunning is returned if a session needs a running container.
	ErrNotRunning = errors.New("container is not running")
	// ErrLost is returned for an instance that could not resume from the disk.
	ErrLost = errors.New("the suspended state is lost")
)

// Driver runs the instances of a node. All methods may be called at any time after Recover has
// returned, from any goroutine. None of them waits for an image, a process or another instance,
// except Run, Suspend, Resume and the sessions Logs, Exec and Dial.
type Driver interface {
	Runner
	Sessions
}

// Runner creates and ends instances, and reports their states.
type Runner interface {
	// Recover reads the saved records and connects to the processes that still run. It undoes
	// incomplete steps, and removes everything that has no record. It is called once, before all
	// other methods.
	Recover(ctx context.Context) error
	// Run drives all instances until ctx ends. It then returns without stopping any of them.
	Run(ctx context.Context) error
	// Ensure makes the instance run, in whatever state it is. A second call with the same UID does
	// nothing. An instance that has ended is not started again.
	Ensure(in Instance) error
	// Stop stops the instance: it sends the stop signal, waits for the grace period, sends SIGKILL,
	// and then removes everything that was created for the instance. The last observation has the
	// phase Terminated. It is also reported for a UID that the driver does not have. A negative
	// grace means the grace period of the template.
	Stop(uid string, grace time.Duration)
	// Forget removes the record of an instance whose Terminated observation was acknowledged.
	Forget(uid string)
	// List returns the UIDs of all instances of which the driver has something.
	List() []string
	// Observations returns the latest observation of each instance.
	Observations() []Observation
	// Usage measures one instance now.
	Usage(uid string) (Usage, error)
}

// Sessions gives access to the containers of instances.
type Sessions interface {
	// Logs writes a container's log to w until its end. With Follow, it continues until ctx ends or
	// the instance is removed.
	Logs(ctx context.Context, uid, container string, options LogOptions, w io.Writer) error
	// Exec runs a command in a container and returns its exit code. It ends the command when ctx
	// ends.
	Exec(ctx context.Context, uid, container string, options ExecOptions) (int, error)
	// Suspend pauses all processes of an instance until Resume. Their memory stays, and they get no
	// CPU time. Suspend returns when the processes are paused and that is saved. A repeated call
	// does nothing. An instance that is suspended in memory can be moved to disk. A suspended
	// instance is not ready and is not probed. Stop resumes an instance that is suspended in memory
	// first. The error is ErrNotRunning if the instance does not run yet, and errors.ErrUnsupported
	// if its kind or this node does not support the place.
	Suspend(ctx context.Context, uid string, in Place) error
	// Resume continues a suspended instance. If the memory on disk cannot be used any more, the
	// instance is created again, and the error is ErrLost.
	Resume(ctx context.Context, uid string) error
	// Dial connects to a TCP port inside the instance's network.
	Dial(ctx context.Context, uid string, port int32) (io.ReadWriteCloser, error)
}

// Place is where the memory of a suspended instance is stored.
type Place int

// The places.
const (
	// InMemory: the processes are paused, and their connections stay open.
	InMemory Place = iota
	// OnDisk: nothing of the instance is in memory, and it has no address until it resumes.
	OnDisk
)

// Usage is the amount of the node's resources that an instance uses.
type Usage struct {
	CPUNanos    uint64 // since its start
	MemoryBytes uint64 // working set
	At          time.Time
	StartedAt   time.Time
	// VM contains what a microVM's VMM and the kernel count in addition. It is nil for other kinds,
	// and for a microVM that is suspended or does not answer at once.
	VM *VMUsage
}

// VMUsage contains counters of a microVM since the start of its VMM. A counter that the VMM does
// not support is 0.
type VMUsage = nodev1.VMUsage

// LogOptions select a part of a log.
type LogOptions struct {
	Follow     bool
	Previous   bool
	Timestamps bool
	TailLines  *int64
	Since      time.Time // zero: all
}

// Size is the size of a terminal in characters.
type Size struct{ Width, Height uint16 }

// ExecOptions describe a command that runs in a container.
type ExecOptions struct {
	Command        []string
	TTY            bool
	Stdin          io.Reader // nil: none
	Stdout, Stderr io.Writer // Stderr is unused with a TTY
	Resize         <-chan Size
}

// Objects gives drivers the objects that instances refer to. It returns what the controller has
// sent. If the controller has sent nothing yet, it waits until ctx ends.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (Entries, error)
	Secret(ctx context.Context, namespace, name string) (Entries, error)
}

// Entries are the entries of a ConfigMap or Secret.
type Entries struct {
	Found bool
	Type  string // of a Secret
	Data  map[string][]byte
}
