package runner

import (
	"fmt"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/state"
)

// view is what decide looks at: the containers as they are, in order.
type view struct {
	policy     rikv1alpha1.RestartPolicy
	init, main []containerView
}

// containerView is one container. Starting means that an attempt is under way.
type containerView struct {
	name     string
	starting bool
	state.Container
}

// decision is what to do next.
type decision struct {
	start []string  // containers to start now
	wake  time.Time // when to decide again; zero: when something happens
	final *outcome  // how the instance ended, nil while it goes on
}

// outcome is the end of an instance.
type outcome struct {
	phase           rikv1alpha1.InstancePhase
	reason, message string
}

// Reasons of a container's or instance's state.
const (
	reasonCompleted      = "Completed"
	reasonError          = "Error"
	reasonOOMKilled      = "OOMKilled"
	reasonCrashLoop      = "CrashLoopBackOff"
	reasonImagePull      = "ImagePullFailed"
	reasonPulling        = "Pulling"
	reasonInvalidImage   = "InvalidImage"
	reasonStart          = "StartError"
	reasonConfig         = "ConfigError"
	reasonPrepare        = "PrepareFailed"
	reasonNetwork        = "NetworkNotReady"
	reasonUnhealthy      = "Unhealthy"
	reasonNotReady       = "NotReady"
	reasonRebooted       = "NodeRebooted"
	reasonSupervisorLost = "SupervisorLost"
	reasonSuspended      = "Suspended"
	reasonVMEnded        = "VMEnded"
	reasonSnapshotLost   = "SnapshotLost"
	reasonVolumesLost    = "VolumesLost"
	reasonRecordLost     = "RecordLost"
	reasonInitFailed     = "InitContainerFailed"
	reasonInitializing   = "Initializing"
	reasonCreating       = "ContainerCreating"
	reasonStopFailed     = "StopFailed"
	reasonEvicted        = "Evicted"
)

// decide says what the instance needs: the next init container, or all
// containers, again after a back-off as the restart policy has it, or nothing
// more because it has ended.
func decide(v view, now time.Time) decision {
	for _, c := range v.init {
		if c.State == rikv1alpha1.ContainerExited && succeeded(c) {
			continue
		}
		if c.State == rikv1alpha1.ContainerExited && v.policy == rikv1alpha1.RestartNever {
			return decision{final: failed(reasonInitFailed, c)}
		}
		var d decision
		d.consider(c, v.policy, now)
		return d
	}
	var d decision
	ended := 0
	for _, c := range v.main {
		if c.State == rikv1alpha1.ContainerExited && !restarts(v.policy, c) {
			ended++
			continue
		}
		d.consider(c, v.policy, now)
	}
	if ended == len(v.main) {
		d.final = verdict(v.main)
	}
	if d.final != nil {
		return decision{final: d.final}
	}
	return d
}

// consider starts a container that does not run, once its time has come.
func (d *decision) consider(c containerView, policy rikv1alpha1.RestartPolicy, now time.Time) {
	if c.starting || c.State == rikv1alpha1.ContainerRunning {
		return
	}
	if c.State == rikv1alpha1.ContainerWaiting && c.Reason != "" && policy == rikv1alpha1.RestartNever {
		d.final = &outcome{rikv1alpha1.InstanceFailed, c.Reason, ofContainer(c.name, c.Message)}
		return
	}
	if at := boundedAt(c.RetryAt, now, longestDelay); at.After(now) {
		if d.wake.IsZero() || at.Before(d.wake) {
			d.wake = at
		}
		return
	}
	d.start = append(d.start, c.name)
}

// boundedAt is a stored time at which something is due, as far as it can be believed. What
// is due after the longest possible wait was noted while the machine's clock was ahead, and is
// due now.
func boundedAt(at, now time.Time, longest time.Duration) time.Time {
	if at.After(now.Add(longest)) {
		return now
	}
	return at
}

// believed is a record as far as its times can be believed on a machine whose clock may have
// been ahead when it was written: nothing waits longer than it could have waited from now on.
func believed(r state.Record, now time.Time, grace time.Duration) state.Record {
	if r.Stop != nil {
		stop := *r.Stop
		if stop.Grace > 0 {
			grace = stop.Grace
		}
		if latest := now.Add(grace); stop.Deadline.After(latest) {
			stop.Deadline = latest
		}
		r.Stop = &stop
	}
	if r.Final != nil && r.Final.At.After(now) {
		final := *r.Final
		final.At = now
		r.Final = &final
	}
	return r
}

func succeeded(c containerView) bool { return c.ExitCode != nil && *c.ExitCode == 0 }

func restarts(policy rikv1alpha1.RestartPolicy, c containerView) bool {
	switch policy {
	case rikv1alpha1.RestartNever:
		return false
	case rikv1alpha1.RestartOnFailure:
		return !succeeded(c)
	default:
		return true
	}
}

func verdict(main []containerView) *outcome {
	for _, c := range main {
		if !succeeded(c) {
			return failed(c.Reason, c)
		}
	}
	return &outcome{phase: rikv1alpha1.InstanceCompleted, reason: reasonCompleted}
}

// ofContainer is a message of a container's as its instance's.
func ofContainer(name, message string) string { return fmt.Sprintf("container %q: %s", name, message) }

func failed(reason string, c containerView) *outcome {
	code := int32(-1)
	if c.ExitCode != nil {
		code = *c.ExitCode
	}
	message := fmt.Sprintf("container %q exited with %d", c.name, code)
	if c.Reason != "" && c.Reason != reasonError {
		message += " (" + c.Reason + ")"
	}
	if c.Message != "" {
		message += ": " + c.Message
	}
	return &outcome{phase: rikv1alpha1.InstanceFailed, reason: reason, message: message}
}

// The back-off between restarts: doubled from the first to the longest, and
// forgotten after a run that was long enough.
const (
	firstDelay   = time.Second
	longestDelay = 5 * time.Minute
	steadyRun    = 10 * time.Minute
)

// delay is the wait after a number of failures in a row.
func delay(crashes int) time.Duration {
	d := firstDelay
	for range crashes {
		if d *= 2; d >= longestDelay {
			return longestDelay
		}
	}
	return d
}

// exited notes the end of a run and when the next may begin.
func exited(c state.Container, code int32, reason, message string, at time.Time) state.Container {
	if !c.StartedAt.IsZero() && at.Sub(c.StartedAt) >= steadyRun {
		c.Crashes = 0
	}
	c.State, c.ExitCode, c.Reason, c.Message, c.FinishedAt = rikv1alpha1.ContainerExited, &code, reason, message, at
	c.RetryAt = at.Add(delay(c.Crashes))
	c.Crashes++
	c.Last = &rikv1alpha1.ContainerEnd{
		Reason: reason, Message: message, ExitCode: code, StartedAt: stamp(c.StartedAt), FinishedAt: stamp(at),
	}
	return c
}

// heldUp notes that a container could not be started, and when to try again.
func heldUp(c state.Container, reason, message string, at time.Time) state.Container {
	if c.State != rikv1alpha1.ContainerExited {
		c.State = rikv1alpha1.ContainerWaiting
	}
	c.Reason, c.Message = reason, message
	c.RetryAt = at.Add(delay(c.Crashes))
	c.Crashes++
	return c
}

// afterReboot is what a record means on a machine that has started anew:
// nothing runs, and the restart policy says what is made again.
func afterReboot(r state.Record, bootID string, now time.Time) state.Record {
	if r.BootID == bootID || r.Terminated || r.Stop != nil || r.Final != nil {
		r.BootID = bootID
		return r
	}
	r.BootID, r.Suspended = bootID, false
	policy := r.Instance.Template.RestartPolicy
	containers := map[string]state.Container{}
	for name, c := range r.Containers {
		containers[name] = rebuilt(c, policy, now)
	}
	// What init containers made for the others may be gone with their memory:
	// unless every container has ended for good, they run again.
	if policy != rikv1alpha1.RestartNever && !allSucceeded(r.Instance.Template.Processes(), containers, policy) {
		for _, c := range r.Instance.Template.InitContainers {
			if old, ok := containers[c.Name]; ok {
				containers[c.Name] = state.Container{Attempt: old.Attempt, Restarts: old.Restarts, ImageDigest: old.ImageDigest, Last: old.Last}
			}
		}
	}
	r.Containers = containers
	return r
}

func allSucceeded(of []rikv1alpha1.Container, containers map[string]state.Container, policy rikv1alpha1.RestartPolicy) bool {
	for _, c := range of {
		v := containerView{Container: containers[c.Name]}
		if v.State != rikv1alpha1.ContainerExited || restarts(policy, v) {
			return false
		}
	}
	return true
}

func rebuilt(c state.Container, policy rikv1alpha1.RestartPolicy, now time.Time) state.Container {
	v := containerView{Container: c}
	switch {
	case c.State == rikv1alpha1.ContainerExited && !restarts(policy, v):
		return c
	case policy == rikv1alpha1.RestartNever && c.Attempt > 0:
		return exited(c, 128+9, reasonRebooted, "the machine was started anew while it ran", now)
	default:
		return state.Container{Attempt: c.Attempt, Restarts: c.Restarts, ImageDigest: c.ImageDigest, Last: c.Last}
	}
}
