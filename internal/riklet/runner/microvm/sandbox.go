package microvm

import (
	"rik.dev/rik/internal/riklet/disk"
	"rik.dev/rik/internal/riklet/runner/engine"
)

// sandbox creates the machine of an instance.
type sandbox struct {
	*engine.Sandbox
	e    *machines
	node engine.Node
	dirs paths

	images map[string]*disk.Image // by container
	was    snapshotNote           // the snapshot from which it resumes
	note   vmNote
	// replaced is true if the guest could not use its disk and got another one.
	replaced bool
}

// attempt is an attempt to start a container in the guest of its instance.
type attempt struct {
	*engine.Attempt
	e    *machines
	root vmImage
	vm   vmNote
}
