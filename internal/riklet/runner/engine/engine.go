// Package engine is the contract between the runner and the code for one kind of isolation. An
// Engine runs OCI containers (runner/oci), microVMs (runner/microvm) or plain processes
// (runner/process).
//
// The runner owns the order: it decides when a container starts, runs the steps, saves the record
// and handles the end of a container. An engine knows how: it returns steps for a Sandbox and for
// an Attempt, and it reaches the processes of a Running instance. An engine receives values and
// its Host. It does not see the runner.
//
// These rules hold for all methods of an engine:
//
//   - State. An engine keeps nothing about an instance in memory that it cannot find again under
//     the instance's names: its UID, its Paths and its cgroup. The riklet can end at any time, and
//     the next riklet has a new engine.
//   - Callers. Any goroutine may call any method. For one instance, the runner does not run the
//     steps of two Sandboxes at the same time, or of two Attempts for the same container. It calls
//     Hold and Snapshots only while no step runs. Exec, Dial, Usage and Written may come at any
//     time.
//   - Idempotence. A step's Do finds what an earlier Do created. A step's Undo needs only the UID
//     (and the container's name), and succeeds if it finds nothing to remove. Signal, Hold,
//     Refresh and Kill can be repeated.
//   - Blocking. Validate, Prepare, Container, Find and Written do not wait. All others end soon
//     after ctx ends, with its cause, except where a comment says otherwise.
//   - Errors. A *ConfigError is something that the user must correct. A *SnapshotError means that
//     the instance can never resume from its snapshot. An error of Engine.Permanent recurs at every
//     attempt. instance.ErrNotRunning means that there is no process to reach.
//     errors.ErrUnsupported means that this node, or this kind, cannot do it. After any other
//     error, the runner tries again later.
package engine

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"syscall"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/logfile"
)

// Engine runs the instances of one kind of isolation. It does not change after its creation.
type Engine struct {
	// Runs reports whether instances with this template are the engine's. At most one engine of a
	// node returns true.
	Runs func(t rikv1alpha1.InstanceTemplate) bool
	// Builder and Sessions are required.
	Builder
	Sessions
	// Snapshots suspends instances to disk. It is nil if the engine cannot do that.
	Snapshots Snapshots
	// Health finds instances that hang. It is nil if the end of a process shows every failure.
	Health Health
	// Permanent lists the errors of the engine's steps that recur at every attempt, because the
	// revision of an instance never changes. Those of package spec and ErrStopSignal need not be
	// in it.
	Permanent []error
	// Directories lists directories in Paths.Run that the runner creates before the first step.
	Directories []string
}

// Builder creates and removes what instances consist of.
type Builder interface {
	// Validate returns why this node cannot run the instance, or nil if it can.
	Validate(t rikv1alpha1.InstanceTemplate) error
	// Prepare returns the engine's steps for what the containers of an instance share. The caller
	// keeps s until the steps have run: steps read the results of earlier steps in it and write
	// their own.
	Prepare(s *Sandbox) Preparation
	// Container returns the steps of one attempt to start a container. Image may take long, and
	// reports its progress to progress.Of(ctx).
	Container(a *Attempt) Steps
	// Traces lists the containers, by ContainerID, that may have left something on the node. With
	// an error it returns those that it found.
	Traces() ([]string, error)
	// Find examines an instance whose supervisor was found after a restart. seen is the list of
	// containers that the supervisor reports.
	Find(uid string, seen []shim.Container) Found
	// Written lists the files and directories on the node's disk in which the data of an instance
	// grows, except its logs. They may not exist.
	Written(in instance.Instance) []string
	// RemoveWritten removes what an instance wrote, except its logs. The instance's other steps
	// were undone before.
	RemoveWritten(uid string) error
}

// Found is what Builder.Find found of an instance.
type Found struct {
	// Whole is true if everything that the instance's containers need still runs.
	Whole bool
	// Disk and DiskWhy have the same meaning as in Sandbox.
	Disk, DiskWhy string
}

// Sessions reaches the processes of instances.
type Sessions interface {
	// Signal sends a signal to a container's first process. If the supervisor is gone, it returns
	// shim.ErrGone.
	Signal(ctx context.Context, client *shim.Client, in instance.Instance, container string, s syscall.Signal) error
	// Exec runs a command next to a container's processes and returns its exit code. It ends the
	// command when ctx ends. It may return while a read from Stdin still blocks.
	Exec(ctx context.Context, r Running, container string, o instance.ExecOptions) (int, error)
	// Dial connects to a TCP port of the instance, as its own processes do.
	Dial(ctx context.Context, r Running, port int32) (net.Conn, error)
	// Refresh writes the mounted ConfigMaps and Secrets again.
	Refresh(ctx context.Context, in instance.Instance, volumes []rikv1alpha1.Volume) error
	// Hold pauses the given containers if held is true, and resumes them otherwise. After an error,
	// some of them may have the new state.
	Hold(ctx context.Context, in instance.Instance, containers []string, held bool) error
	// Usage returns counters that the instance's cgroup does not have. It returns nil if there are
	// none, or if they are not available within half a second.
	Usage(r Running) *instance.VMUsage
	// EndLeftoverCommands ends the commands that an earlier riklet executed in the containers. It
	// is called before the first Exec, for each instance that was found running.
	EndLeftoverCommands(uid string, containers []string)
}

// Snapshots suspends instances to disk. A Sandbox with Restore resumes them. The methods return
// ErrUnsupported on a node that cannot write snapshots.
type Snapshots interface {
	// Settle pauses an instance in a state that a snapshot can preserve: its containers can
	// continue with a new connection later. The instance may be paused already.
	Settle(ctx context.Context, uid string) error
	// Write writes a settled instance to disk. The instance stays paused. After an error there is
	// no snapshot.
	Write(ctx context.Context, uid string) error
	// Exists reports whether the instance has a snapshot that was not used yet.
	Exists(uid string) bool
}

// Health finds instances that hang and ends them.
type Health interface {
	// Answers returns nil if the instance answered at all, even with an error. An error means that
	// it did not answer before ctx ended.
	Answers(ctx context.Context, uid string) error
	// Kill ends an instance that does not answer. The supervisor reports the end.
	Kill(ctx context.Context, client *shim.Client) error
}

// Host is what the runner offers to engines. Its methods may be called from any goroutine.
type Host interface {
	// Node returns the facts of the node. It does not block.
	Node() Node
	// Environment resolves the variables of a container, in the order in which they apply. address
	// is the instance's own address.
	Environment(ctx context.Context, in instance.Instance, address string, c rikv1alpha1.Container) ([]spec.EnvVar, error)
	// PullSecret merges the image pull credentials that the instance names. It returns nil if there
	// are none.
	PullSecret(ctx context.Context, in instance.Instance) ([]byte, error)
	// Files returns the files of a volume that is a ConfigMap or Secret, by relative path, and
	// their mode.
	Files(ctx context.Context, in instance.Instance, v rikv1alpha1.Volume) (files map[string][]byte, mode fs.FileMode, err error)
}

// Node is what engines need to know about the node. Cgroups and the fields after it are set before
// the first step.
type Node struct {
	Paths Paths
	// Shim is the path of the program rik-shim.
	Shim      string
	Logger    *slog.Logger
	LogLimits logfile.Limits
	// PIDs bounds the processes of a container.
	PIDs int64
	// HealthTimeout is how long an instance may take to answer a health check.
	HealthTimeout time.Duration

	Cgroups Cgroups
	// SwapAccounting is true if cgroups can limit swap.
	SwapAccounting bool
	// OpenFiles is the hard limit of open files.
	OpenFiles uint64
	// Capabilities is the bounding set of every process that the node starts.
	Capabilities spec.CapabilitySet
}

// Cgroups are the node's cgroups. Those of instances are below Parent.
type Cgroups struct {
	cgroup.Layout
	Parent string
}

// Instance returns the cgroup of an instance.
func (c Cgroups) Instance(uid string) string { return c.Parent + "/" + uid }

// Container returns the cgroup of a container.
func (c Cgroups) Container(uid, name string) string { return c.Instance(uid) + "/" + name }

// VMM is the supervisor's name for the process in which all containers of an instance run, if there
// is one. The instance is lost when that process ends. The name cannot clash with a container,
// because container names have no underscore.
const VMM = "_vmm"

// EndTimeout bounds the wait for the end of a process after the order to end.
const EndTimeout = 30 * time.Second

// permanent are the errors that recur at every attempt in all engines.
var permanent = []error{spec.ErrNoCommand, spec.ErrUser, spec.ErrCapability, spec.ErrVolume, ErrStopSignal}

// IsPermanent reports whether an error of a step recurs at every attempt.
func (e *Engine) IsPermanent(err error) bool {
	is := func(target error) bool { return errors.Is(err, target) }
	return slices.ContainsFunc(permanent, is) || slices.ContainsFunc(e.Permanent, is)
}

// ConfigError is an error in something that an instance refers to. The user must correct it.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap returns the error itself.
func (e *ConfigError) Unwrap() error { return e.Err }
