package instance

import (
	"fmt"
	"slices"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Reasons of events. They are those of Kubernetes where it has one for the same event, because
// users and their alerts use them.
const (
	eventUnplaced  = "FailedScheduling"
	eventFailed    = "Failed"
	eventBackOff   = "BackOff"
	eventUnhealthy = "Unhealthy"
)

// Reasons of containers that riklets set.
const (
	containerCrashLoop = "CrashLoopBackOff"
	containerOOMKilled = "OOMKilled"
	containerUnhealthy = "Unhealthy"
	containerNotReady  = "NotReady"
)

// lossReasons are the reasons of an end that a container did not cause: its environment or its
// volumes were lost. Each is also the reason of an event.
var lossReasons = []string{"VMEnded", "SupervisorLost", "SnapshotLost", "VolumesLost"}

// occurrence is a failure or a decision for which an event is emitted. The recorder counts the
// occurrences of one instance, reason and action instead of storing each.
type occurrence struct{ reason, action, note string }

// occurrences returns the occurrences in a change of an instance's status. Unchanged parts give
// none, so that heartbeats and restarts of the controller emit no events.
func occurrences(before, after *rikv1alpha1.InstanceStatus) []occurrence {
	var out []occurrence
	switch {
	case after.Phase == rikv1alpha1.InstanceFailed && before.Phase != after.Phase:
		reason := after.Reason
		if reason == "" {
			reason = eventFailed
		}
		out = append(out, occurrence{reason, "Running", after.Message})
	case after.Phase == rikv1alpha1.InstancePending && after.Reason != "" && before.Reason != after.Reason:
		out = append(out, occurrence{eventUnplaced, "Placing", after.Message})
	case after.Phase == rikv1alpha1.InstanceCreating && trouble(after) && !ofContainer(after, after.Reason) &&
		(before.Reason != after.Reason || before.Message != after.Message):
		out = append(out, occurrence{after.Reason, "Creating", after.Message})
	}
	failed := len(out) > 0 && after.Phase == rikv1alpha1.InstanceFailed
	for _, lists := range [][2][]rikv1alpha1.ContainerStatus{
		{before.InitContainers, after.InitContainers}, {before.Containers, after.Containers},
	} {
		for i := range lists[1] {
			if c := &lists[1][i]; failed && c.State == rikv1alpha1.ContainerWaiting && c.Reason == after.Reason {
				continue // the instance failed for it and has an event
			}
			out = append(out, containerOccurrences(find(lists[0], lists[1][i].Name), &lists[1][i])...)
		}
	}
	return out
}

// ofContainer reports whether an instance's reason is that of one of its containers.
func ofContainer(s *rikv1alpha1.InstanceStatus, reason string) bool {
	has := func(c rikv1alpha1.ContainerStatus) bool { return c.Reason == reason }
	return reason == "" || slices.ContainsFunc(s.Containers, has) || slices.ContainsFunc(s.InitContainers, has)
}

func find(list []rikv1alpha1.ContainerStatus, name string) *rikv1alpha1.ContainerStatus {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return &rikv1alpha1.ContainerStatus{}
}

func containerOccurrences(before, after *rikv1alpha1.ContainerStatus) []occurrence {
	var out []occurrence
	say := func(reason, action, format string, args ...any) {
		out = append(out, occurrence{reason, action, fmt.Sprintf("container %q ", after.Name) + fmt.Sprintf(format, args...)})
	}
	waits := after.State == rikv1alpha1.ContainerWaiting
	if end := endOf(after); end != nil && !sameEnd(end, endOf(before)) {
		switch goesOn := after.State == rikv1alpha1.ContainerRunning && before.State == after.State && before.RestartCount == after.RestartCount; {
		case end.Reason == containerOOMKilled && goesOn:
			say(containerOOMKilled, "Running", "ran out of memory: %s", end.Message)
		case end.Reason == containerOOMKilled:
			say(containerOOMKilled, "Running", "was killed: %s", end.Message)
		case end.Reason == containerUnhealthy:
			say(eventUnhealthy, "Probing", "was ended: %s", end.Message)
		}
		if slices.Contains(lossReasons, end.Reason) {
			say(end.Reason, "Running", "ended: %s", end.Message)
		}
		if waits && after.Reason == containerCrashLoop {
			say(eventBackOff, "Restarting", "exited with code %d (%s) and is started again after a pause", end.ExitCode, end.Reason)
		}
	}
	changed := before.Reason != after.Reason || before.Message != after.Message
	switch {
	case waits && changed && after.Reason != "" && after.Reason != containerCrashLoop && after.Message != "":
		say(after.Reason, "Starting", "does not start: %s", after.Message)
	case after.State == rikv1alpha1.ContainerRunning && after.Reason == containerNotReady && before.Reason != after.Reason:
		say(eventUnhealthy, "Probing", "is not ready: %s", after.Message)
	}
	return out
}

// endOf returns how the latest run of a container ended.
func endOf(c *rikv1alpha1.ContainerStatus) *rikv1alpha1.ContainerEnd {
	if c.State == rikv1alpha1.ContainerExited && c.ExitCode != nil {
		return &rikv1alpha1.ContainerEnd{Reason: c.Reason, Message: c.Message, ExitCode: *c.ExitCode, FinishedAt: c.FinishedAt}
	}
	return c.LastState
}

// sameEnd compares the time, the exit code and the reason. Two ends within a second count as
// one. The loss of a container's environment may become known after its end, with another
// reason.
func sameEnd(a, b *rikv1alpha1.ContainerEnd) bool {
	return b != nil && a.FinishedAt.Equal(b.FinishedAt) && a.ExitCode == b.ExitCode && a.Reason == b.Reason
}
