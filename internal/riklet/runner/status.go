package runner

import (
	"regexp"
	"strings"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/riklet/state"
)

// publish makes a new observation if the status has changed.
func (m *machine) publish() {
	if m.show(m.uid, m.render(), m.d.sequence) {
		m.d.cfg.Changed()
	}
}

// maxReported bounds each text of a status, in bytes. These texts contain output of processes,
// guests, registries and servers, and every status passes through the scheduler and the API
// server.
const maxReported = 2 << 10

// withoutSource matches the local address in an error of Go's net package, as in "read udp
// 10.0.0.1:40001->10.0.0.53:53: i/o timeout". The local port differs each time, and repeated
// events are merged only if their messages are equal.
var withoutSource = regexp.MustCompile(`\b((?:read|write|dial) (?:tcp|udp)[46]? )(?:\[[0-9A-Fa-f:.%\w]+\]|[0-9.]+):\d+->`)

// reported makes a text safe for a status. Statuses are shown on terminals, so the text must not
// contain control characters.
func reported(text string) string {
	text = excerpt.Of(withoutSource.ReplaceAllString(text, "$1"), maxReported)
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsGraphic(r) {
			return r
		}
		if r == '\t' {
			return ' '
		}
		return '?'
	}, strings.ToValidUTF8(text, ""))
}

// render returns the status that follows from the record.
func (m *machine) render() rikv1alpha1.InstanceStatus {
	s := m.renderWhole()
	s.Message = reported(s.Message)
	for _, list := range [][]rikv1alpha1.ContainerStatus{s.InitContainers, s.Containers} {
		for i := range list {
			list[i].Message = reported(list[i].Message)
			if last := list[i].LastState; last != nil {
				last.Message = reported(last.Message) // of a copy
			}
		}
	}
	return s
}

func (m *machine) renderWhole() rikv1alpha1.InstanceStatus {
	s := rikv1alpha1.InstanceStatus{Address: m.address(), HostAddress: m.d.cfg.Node.Address, StartedAt: stamp(m.rec.StartedAt)}
	for _, c := range m.containers {
		status := c.render(m.rec.Containers[c.spec.Name], m.now())
		if c.init {
			s.InitContainers = append(s.InitContainers, status)
			continue
		}
		s.Containers = append(s.Containers, status)
	}
	switch {
	case m.rec.Terminated:
		s.Phase = rikv1alpha1.InstanceTerminated
	case m.rec.Stop != nil:
		s.Phase, s.Message = rikv1alpha1.InstanceDestroying, m.trouble
		if m.trouble != "" {
			s.Reason = reasonStopFailed
		}
	case m.rec.Final != nil && m.rec.Final.Released:
		f := m.rec.Final
		s.Phase, s.Reason, s.Message, s.FinishedAt = f.Phase, f.Reason, f.Message, stamp(f.At)
	default:
		m.renderAlive(&s)
	}
	return s
}

// renderAlive fills in the phase and readiness of an instance that has not ended.
func (m *machine) renderAlive(s *rikv1alpha1.InstanceStatus) {
	s.Phase, s.Ready = rikv1alpha1.InstanceRunning, true
	for _, c := range s.Containers {
		if m.rec.Containers[c.Name].StartedAt.IsZero() {
			s.Phase = rikv1alpha1.InstanceCreating
		}
		s.Ready = s.Ready && c.Ready
	}
	if m.rec.Final != nil {
		s.Ready = false
		if m.trouble != "" {
			s.Reason, s.Message = reasonStopFailed, m.trouble
		}
		return
	}
	if m.rec.Suspended {
		s.Ready, s.Suspended, s.Reason = false, true, reasonSuspended
		if m.rec.OnDisk {
			s.Message = onDiskMessage
		}
		for i := range s.Containers {
			s.Containers[i].Ready = false
		}
		return
	}
	if !m.prepared && m.pulling != "" {
		s.Reason, s.Message = reasonPulling, m.pulling
		return
	}
	if !m.prepared && m.trouble != "" {
		s.Reason, s.Message = m.reason, m.trouble
		return
	}
	for _, list := range [][]rikv1alpha1.ContainerStatus{s.InitContainers, s.Containers} {
		for _, c := range list {
			if c.State == rikv1alpha1.ContainerWaiting && c.Reason != "" {
				s.Reason, s.Message = c.Reason, ofContainer(c.Name, c.Message)
				return
			}
		}
	}
	for _, c := range s.Containers {
		if c.State == rikv1alpha1.ContainerRunning && c.Reason == reasonNotReady {
			s.Reason, s.Message = c.Reason, ofContainer(c.Name, c.Message)
			return
		}
	}
	if s.Phase == rikv1alpha1.InstanceCreating {
		s.Reason = reasonCreating
		if n := len(s.InitContainers); n > 0 && s.InitContainers[n-1].State != rikv1alpha1.ContainerExited {
			s.Reason = reasonInitializing
		}
	}
}

// render returns the status of one container. A container that has ended and waits for its
// restart is in state Waiting, as in kubectl, and keeps the exit code.
func (c *container) render(s state.Container, now time.Time) rikv1alpha1.ContainerStatus {
	status := rikv1alpha1.ContainerStatus{
		Name: c.spec.Name, State: s.State, Reason: s.Reason, Message: s.Message, RestartCount: s.Restarts, ExitCode: s.ExitCode,
		StartedAt: stamp(s.StartedAt), FinishedAt: stamp(s.FinishedAt), ImageDigest: s.ImageDigest,
	}
	if s.State != rikv1alpha1.ContainerExited {
		status.LastState = s.Last.DeepCopy()
	}
	policy := c.m.in.Template.RestartPolicy
	over := c.m.rec.Final != nil || c.m.rec.Stop != nil || c.m.rec.Terminated
	switch s.State {
	case rikv1alpha1.ContainerRunning:
		status.Ready = c.ready(s)
	case rikv1alpha1.ContainerExited:
		v := containerView{Container: s}
		again := restarts(policy, v) && (!c.init || !succeeded(v))
		if again && !over {
			status.State, status.LastState = rikv1alpha1.ContainerWaiting, s.Last.DeepCopy()
			if !isWaitingReason(s.Reason) {
				status.Reason, status.Message = reasonCrashLoop, crashMessage(s)
			}
		}
	default:
		status.State = rikv1alpha1.ContainerWaiting
	}
	if c.pulling != "" && status.State == rikv1alpha1.ContainerWaiting {
		status.Reason, status.Message = reasonPulling, c.pulling // not the previous failure
	}
	return status
}

// isWaitingReason reports whether a reason means that a container cannot start. Other reasons mean
// that its last run has ended.
func isWaitingReason(reason string) bool {
	return reason == reasonImagePull || reason == reasonConfig || reason == reasonStart
}

// crashMessage returns why the last run ended. The status reason already shows that the container
// waits.
func crashMessage(s state.Container) string {
	if s.Message != "" {
		return s.Reason + ": " + s.Message
	}
	return "last run: " + s.Reason
}

// stamp truncates a time to whole seconds, the resolution of times in an API object.
func stamp(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t.Truncate(time.Second)}
}
