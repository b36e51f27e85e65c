package runner

import (
	"slices"

	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/runner/engine"
)

// This file has the order of all steps of an instance's start. Each step has a file step_<name>.go,
// here or in the packages of the engines.

// Names of the steps that create what the containers of an instance share. The engines name their
// own: volumes, files or disks for the storage; image, machine and guest for the sandbox.
const (
	stepDirectories = "directories"
	stepCgroup      = "cgroup"
	stepSupervisor  = "supervisor"
	stepNetwork     = "network"
)

// sequence returns the steps that create what the containers of an instance share, in their order.
// A sequence without the storage has only the steps whose results end with the instance's
// processes.
func (b *build) sequence(storage bool) lifecycle.Sequence {
	var engines []engine.Preparation
	for _, e := range b.d.enginesOf(b.Instance) {
		engines = append(engines, e.Prepare(&b.Sandbox))
	}
	var steps []lifecycle.Step
	if storage {
		steps = append(steps, lifecycle.Step{Name: stepDirectories, Do: b.directories, Undo: b.removeDirectories})
		for _, e := range engines {
			steps = append(steps, e.Storage)
		}
	}
	steps = append(steps,
		lifecycle.Step{Name: stepCgroup, Do: b.setWeight}, // tearDown removes it before all steps
		lifecycle.Step{Name: stepSupervisor, Do: b.supervisor, Undo: b.endSupervisor},
		lifecycle.Step{Name: stepNetwork, Do: b.network, Undo: b.leaveNetwork},
	)
	for _, e := range engines {
		steps = append(steps, e.Sandbox...)
	}
	return lifecycle.Sequence{Hook: b.d.cfg.Hook, Steps: present(steps)}
}

// Names of the steps that start a container.
const (
	stepImage  = "image"
	stepRootfs = "rootfs"
	stepBundle = "bundle"
	stepStart  = "start"
)

// sequence returns the steps that start a container, in their order.
func (f *fill) sequence() lifecycle.Sequence {
	s := f.engine.Container(&f.Attempt)
	s.Image.Name, s.Rootfs.Name, s.Bundle.Name, s.Start.Name = stepImage, stepRootfs, stepBundle, stepStart
	return lifecycle.Sequence{Hook: f.d.cfg.Hook, Steps: present([]lifecycle.Step{s.Image, s.Rootfs, s.Bundle, s.Start})}
}

// present leaves out the steps that an engine does not have.
func present(steps []lifecycle.Step) []lifecycle.Step {
	return slices.DeleteFunc(steps, func(s lifecycle.Step) bool { return s.Do == nil && s.Undo == nil })
}
