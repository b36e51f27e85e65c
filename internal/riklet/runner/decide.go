package runner

import (
	"fmt"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/state"
)

// view is the input of decide: the containers and their states, in order.
type view struct {
	policy     rikv1alpha1.RestartPolicy
	init, main []containerView
}

// containerView is the state of one container. starting means that an attempt is under way.
type containerView struct {
	name     string
	starting bool
	state.Container
}

// decision is what to do next.
type decision struct {
	start []string  // containers to start now
	wake  time.Time // when to decide again; zero: after the next event
	final *outcome  // how the instance ended; nil if it has not ended
}

// outcome is the end of an instance.
type outcome struct {
	phase           rikv1alpha1.InstancePhase
	reason, message string
}

// Reasons in the status of a container or an instance.
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

// decide returns what the instance needs next. It starts the next init container or all containers.
// A container that the restart policy starts again waits for its back-off first. If the instance
// has ended, it needs nothing more.
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
		d.final = mainOutcome(v.main)
	}
	if d.final != nil {
		return decision{final: d.final}
	}
	return d
}

// consider starts a container that does not run, unless its back-off has not passed yet.
func (d *decision) consider(c containerView, policy rikv1alpha1.RestartPolicy, now time.Time) {
	if c.starting || c.State == rikv1alpha1.ContainerRunning {
		return
	}
	if c.State == rikv1alpha1.ContainerWaiting && c.Reason != "" && policy == rikv1alpha1.RestartNever {
		d.final = &outcome{rikv1alpha1.InstanceFailed, c.Reason, ofContainer(c.name, c.Message)}
		return
	}
	if at := boundedAt(c.RetryAt, now, maxRestartDelay); at.After(now) {
		if d.wake.IsZero() || at.Before(d.wake) {
			d.wake = at
		}
		return
	}
	d.start = append(d.start, c.name)
}

// boundedAt corrects a stored due time that is too far in the future. A time beyond the longest
// possible wait was stored while the node's clock was ahead, so it is due now.
func boundedAt(at, now time.Time, longest time.Duration) time.Time {
	if at.After(now.Add(longest)) {
		return now
	}
	return at
}

// correctTimes corrects the times of a record that was possibly written while the node's clock was
// ahead. After the correction, nothing waits longer than a wait that begins now.
func correctTimes(r state.Record, now time.Time, grace time.Duration) state.Record {
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

func mainOutcome(main []containerView) *outcome {
	for _, c := range main {
		if !succeeded(c) {
			return failed(c.Reason, c)
		}
	}
	return &outcome{phase: rikv1alpha1.InstanceCompleted, reason: reasonCompleted}
}

// ofContainer turns a container's message into a message of its instance.
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

// The back-off between restarts doubles from minRestartDelay to maxRestartDelay. It is reset after
// a run of at least backoffResetAfter.
const (
	minRestartDelay   = time.Second
	maxRestartDelay   = 5 * time.Minute
	backoffResetAfter = 10 * time.Minute
)

// delay returns the back-off after a number of consecutive failures.
func delay(crashes int) time.Duration {
	d := minRestartDelay
	for range crashes {
		if d *= 2; d >= maxRestartDelay {
			return maxRestartDelay
		}
	}
	return d
}

// exited records the end of a run and the time of the next attempt.
func exited(c state.Container, code int32, reason, message string, at time.Time) state.Container {
	if !c.StartedAt.IsZero() && at.Sub(c.StartedAt) >= backoffResetAfter {
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

// startDelayed records that a container could not be started, and the time of the next attempt.
func startDelayed(c state.Container, reason, message string, at time.Time) state.Container {
	if c.State != rikv1alpha1.ContainerExited {
		c.State = rikv1alpha1.ContainerWaiting
	}
	c.Reason, c.Message = reason, message
	c.RetryAt = at.Add(delay(c.Crashes))
	c.Crashes++
	return c
}

// afterReboot updates a record after a reboot of the node: no container runs any more, and the
// restart policy decides which ones start again.
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
	// Data that init containers prepared in memory for the other containers may be lost. So they
	// run again, unless every container has ended for good.
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
		return exited(c, 128+9, reasonRebooted, "the node was rebooted while the container ran", now)
	default:
		return state.Container{Attempt: c.Attempt, Restarts: c.Restarts, ImageDigest: c.ImageDigest, Last: c.Last}
	}
}
