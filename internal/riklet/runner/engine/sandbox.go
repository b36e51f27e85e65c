package engine

import (
	"os"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/progress"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/shim"
)

// Sandbox is one attempt to create what the containers of an instance share. Only Instance.UID is
// set if the steps are undone for an instance without a record.
type Sandbox struct {
	Instance instance.Instance
	// Restore is true if the instance is resumed from its snapshot. Kept lists the runs that
	// continue. The steps set KeptRun.Lost.
	Restore bool
	Kept    []KeptRun
	// KeepSnapshot is true if Undo must not remove the instance's snapshot and the files that it
	// needs.
	KeepSnapshot bool
	// Report receives the progress of a slow pull or download. It may be nil.
	Report func(progress.Progress)

	// Supervisor is the result of the runner's step "supervisor". It belongs to the runner.
	Supervisor *shim.Client
	// Attachment is the result of the runner's step "network". It is nil for an instance without
	// an address.
	Attachment *instance.Attachment
	// Disk is the ID of the writable disk with which the instance runs, and DiskWhy is the reason
	// why that disk was created. Both are empty for an engine without such disks.
	Disk, DiskWhy string

	atEnd []func()
}

// AtEnd registers a function to be called when the steps have run, whether or not they succeeded.
func (s *Sandbox) AtEnd(f func()) { s.atEnd = append(s.atEnd, f) }

// End calls the functions that AtEnd registered. The runner calls it.
func (s *Sandbox) End() {
	for _, f := range s.atEnd {
		f()
	}
}

// Preparation is an engine's part in the preparation of an instance. The runner has the list of all
// steps.
type Preparation struct {
	// Storage is the step for what outlives the instance's processes. It comes after the
	// instance's directories exist. A step with neither Do nor Undo is left out.
	Storage lifecycle.Step
	// Sandbox are the steps that complete the sandbox. They come after the instance has a
	// supervisor and is on the network.
	Sandbox []lifecycle.Step
}

// KeptRun is a run of a container that continues after a resume from disk.
type KeptRun struct {
	Container rikv1alpha1.Container
	Index     int
	Attempt   int
	Note      ImageNote
	Lost      string // why it does not continue; "" if it does
}

// SnapshotError is the reason why an instance can never resume from its snapshot.
type SnapshotError struct{ Err error }

func (e *SnapshotError) Error() string { return "its snapshot cannot be used: " + e.Err.Error() }

// Unwrap returns the reason itself.
func (e *SnapshotError) Unwrap() error { return e.Err }

// Hostname returns an instance's hostname. As in Kubernetes, it is the node's own hostname if the
// instance uses the node's network and sets no hostname.
func Hostname(in instance.Instance) string {
	if in.Template.HostNetwork && in.Template.Hostname == "" {
		if name, err := os.Hostname(); err == nil {
			return name
		}
	}
	return spec.Hostname(in.Template.Hostname, in.Name)
}

// firstUser is the first of the user IDs that each belong to one instance. By convention, the
// IDs from 0x70000000 up are unused (systemd, Users, Groups, UIDs and GIDs). The user ID of an
// instance is firstUser plus the PID of its supervisor, which is unique while the instance runs.
const firstUser = 0x70000000

// UserOf returns the user that only the instance of a supervisor has.
func UserOf(supervisorPID int) uint32 { return firstUser + uint32(supervisorPID) }
