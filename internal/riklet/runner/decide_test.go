package runner

import (
	"errors"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/state"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func waiting(name string) containerView { return containerView{name: name} }

func running(name string) containerView {
	return containerView{name: name, Container: state.Container{State: rikv1alpha1.ContainerRunning, Attempt: 1}}
}

func ended(name string, code int32, retry time.Time) containerView {
	reason := reasonError
	if code == 0 {
		reason = reasonCompleted
	}
	return containerView{name: name, Container: state.Container{
		State: rikv1alpha1.ContainerExited, Attempt: 1, ExitCode: &code, Reason: reason, RetryAt: retry,
	}}
}

func delayed(name, reason string, retry time.Time) containerView {
	return containerView{name: name, Container: state.Container{
		State: rikv1alpha1.ContainerWaiting, Reason: reason, Message: "why", RetryAt: retry,
	}}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const always, onFailure, never = rikv1alpha1.RestartAlways, rikv1alpha1.RestartOnFailure, rikv1alpha1.RestartNever
	later := noon.Add(time.Second)
	tests := map[string]struct {
		view view
		want decision
	}{
		"all containers at once":         {view{policy: always, main: []containerView{waiting("a"), waiting("b")}}, decision{start: []string{"a", "b"}}},
		"the first init container alone": {view{policy: always, init: []containerView{waiting("i"), waiting("j")}, main: []containerView{waiting("a")}}, decision{start: []string{"i"}}},
		"wait for an init container":     {view{policy: always, init: []containerView{running("i")}, main: []containerView{waiting("a")}}, decision{}},
		"the next init container":        {view{policy: always, init: []containerView{ended("i", 0, later), waiting("j")}, main: []containerView{waiting("a")}}, decision{start: []string{"j"}}},
		"containers after init":          {view{policy: never, init: []containerView{ended("i", 0, later)}, main: []containerView{waiting("a")}}, decision{start: []string{"a"}}},
		"init again after its back-off":  {view{policy: onFailure, init: []containerView{ended("i", 1, later)}, main: []containerView{waiting("a")}}, decision{wake: later}},
		"init failed for good": {view{policy: never, init: []containerView{ended("i", 1, later)}, main: []containerView{waiting("a")}},
			decision{final: &outcome{rikv1alpha1.InstanceFailed, reasonInitFailed, `container "i" exited with 1`}}},
		"running":                     {view{policy: always, main: []containerView{running("a")}}, decision{}},
		"starting":                    {view{policy: always, main: []containerView{{name: "a", starting: true}}}, decision{}},
		"back-off":                    {view{policy: always, main: []containerView{ended("a", 0, later.Add(1)), ended("b", 0, later)}}, decision{wake: later}},
		"restart":                     {view{policy: always, main: []containerView{ended("a", 0, noon), running("b")}}, decision{start: []string{"a"}}},
		"on failure, a success stays": {view{policy: onFailure, main: []containerView{ended("a", 0, noon), ended("b", 1, noon)}}, decision{start: []string{"b"}}},
		"on failure, all succeeded":   {view{policy: onFailure, main: []containerView{ended("a", 0, noon)}}, decision{final: &outcome{rikv1alpha1.InstanceCompleted, reasonCompleted, ""}}},
		"never, one still runs":       {view{policy: never, main: []containerView{ended("a", 1, noon), running("b")}}, decision{}},
		"never, one failed": {view{policy: never, main: []containerView{ended("a", 0, noon), ended("b", 3, noon)}},
			decision{final: &outcome{rikv1alpha1.InstanceFailed, reasonError, `container "b" exited with 3`}}},
		"no image, again later": {view{policy: always, main: []containerView{delayed("a", reasonImagePull, later)}}, decision{wake: later}},
		"no image, again now":   {view{policy: always, main: []containerView{delayed("a", reasonImagePull, noon)}}, decision{start: []string{"a"}}},
		"no image, never again": {view{policy: never, main: []containerView{delayed("a", reasonImagePull, later)}}, decision{final: &outcome{rikv1alpha1.InstanceFailed, reasonImagePull, `container "a": why`}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := decide(tc.view, noon)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(decision{}, outcome{})); diff != "" {
				t.Errorf("decide() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDelay(t *testing.T) {
	t.Parallel()
	want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}
	for crashes, seconds := range want {
		if got := delay(crashes); got != seconds*time.Second {
			t.Errorf("delay(%d) = %v, want %v", crashes, got, seconds*time.Second)
		}
	}
	if got := delay(1 << 30); got != maxRestartDelay {
		t.Errorf("delay(many) = %v, want %v", got, maxRestartDelay)
	}
}

func TestBackOffIsResetAfterALongRun(t *testing.T) {
	t.Parallel()
	c := state.Container{State: rikv1alpha1.ContainerRunning, Crashes: 7, StartedAt: noon}
	if got := exited(c, 1, reasonError, "", noon.Add(backoffResetAfter-1)); got.RetryAt.Sub(got.FinishedAt) != delay(7) || got.Crashes != 8 {
		t.Errorf("after a short run: %+v", got)
	}
	if got := exited(c, 1, reasonError, "", noon.Add(backoffResetAfter)); got.RetryAt.Sub(got.FinishedAt) != delay(0) || got.Crashes != 1 {
		t.Errorf("after a steady run: %+v", got)
	}
}

// The last end survives a failed start and a reboot.
func TestLastTerminationIsKept(t *testing.T) {
	t.Parallel()
	c := state.Container{State: rikv1alpha1.ContainerRunning, Attempt: 1, StartedAt: noon}
	c = exited(c, 137, reasonOOMKilled, "too much", noon.Add(time.Minute))
	want := &rikv1alpha1.ContainerEnd{Reason: reasonOOMKilled, Message: "too much", ExitCode: 137, StartedAt: stamp(noon), FinishedAt: stamp(noon.Add(time.Minute))}
	for name, got := range map[string]state.Container{
		"at the end": c, "held up": startDelayed(c, reasonImagePull, "no", noon), "rebooted": rebuilt(c, rikv1alpha1.RestartAlways, noon),
	} {
		if diff := cmp.Diff(want, got.Last); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestAfterReboot(t *testing.T) {
	t.Parallel()
	zero, one := int32(0), int32(1)
	record := func(policy rikv1alpha1.RestartPolicy, main state.Container) state.Record {
		return state.Record{
			BootID: "old",
			Instance: instance.Instance{Template: rikv1alpha1.InstanceTemplate{
				RestartPolicy: policy, Containers: []rikv1alpha1.Container{{Name: "main"}}, InitContainers: []rikv1alpha1.Container{{Name: "init"}},
			}},
			Containers: map[string]state.Container{
				"init": {State: rikv1alpha1.ContainerExited, Attempt: 1, ExitCode: &zero},
				"main": main,
			},
		}
	}
	runs := state.Container{State: rikv1alpha1.ContainerRunning, Attempt: 2, Restarts: 1}
	tests := map[string]struct {
		record     state.Record
		init, main rikv1alpha1.ContainerState
		reason     string
	}{
		"always":                     {record(rikv1alpha1.RestartAlways, runs), "", "", ""},
		"on failure, ran":            {record(rikv1alpha1.RestartOnFailure, runs), "", "", ""},
		"on failure, had failed":     {record(rikv1alpha1.RestartOnFailure, state.Container{State: rikv1alpha1.ContainerExited, ExitCode: &one}), "", "", ""},
		"on failure, had succeeded":  {record(rikv1alpha1.RestartOnFailure, state.Container{State: rikv1alpha1.ContainerExited, ExitCode: &zero}), rikv1alpha1.ContainerExited, rikv1alpha1.ContainerExited, ""},
		"never, ran":                 {record(rikv1alpha1.RestartNever, runs), rikv1alpha1.ContainerExited, rikv1alpha1.ContainerExited, reasonRebooted},
		"never, was not started yet": {record(rikv1alpha1.RestartNever, state.Container{}), rikv1alpha1.ContainerExited, "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := afterReboot(tc.record, "new", noon)
			if got.BootID != "new" || got.Containers["init"].State != tc.init || got.Containers["main"].State != tc.main ||
				got.Containers["main"].Reason != tc.reason || got.Containers["main"].Attempt != tc.record.Containers["main"].Attempt {
				t.Errorf("afterReboot() = %+v", got)
			}
			again := afterReboot(got, "new", noon.Add(time.Hour))
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("a second time changes it:\n%s", diff)
			}
		})
	}
}

// TestDecideNeverStartsWhatRuns checks that, in every state, decide starts no container that runs
// or is starting. It also checks that the instance ends only when nothing runs that could
// continue.
func TestDecideNeverStartsWhatRuns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		any := func(name string) containerView {
			switch rapid.IntRange(0, 4).Draw(t, name) {
			case 0:
				return waiting(name)
			case 1:
				return running(name)
			case 2:
				return ended(name, int32(rapid.IntRange(0, 2).Draw(t, "code")), noon)
			case 3:
				return containerView{name: name, starting: true}
			default:
				return ended(name, 1, noon.Add(time.Minute))
			}
		}
		v := view{
			policy: rapid.SampledFrom([]rikv1alpha1.RestartPolicy{rikv1alpha1.RestartAlways, rikv1alpha1.RestartOnFailure, rikv1alpha1.RestartNever}).Draw(t, "policy"),
			init:   []containerView{any("i")}, main: []containerView{any("a"), any("b")},
		}
		d := decide(v, noon)
		for _, name := range d.start {
			for _, c := range append(v.init, v.main...) {
				if c.name == name && (c.starting || c.State == rikv1alpha1.ContainerRunning) {
					t.Fatalf("starts %q again", name)
				}
			}
		}
		if d.final != nil && (len(d.start) > 0 || v.policy == rikv1alpha1.RestartAlways) {
			t.Fatalf("ends with %+v and starts %v under %s", d.final, d.start, v.policy)
		}
	})
}

// All failures of the same kind have one message, whatever text the answers contain.
func TestWithReadinessReportsChanges(t *testing.T) {
	t.Parallel()
	c := state.Container{Ready: true}
	for _, step := range []struct {
		why  error
		want string
	}{
		{errors.New("refused"), "refused"},
		{&answerError{"HTTP 503", "at 1"}, "HTTP 503: at 1"},
		{&answerError{"HTTP 503", "at 2"}, "HTTP 503: at 1"},
		{&answerError{"HTTP 503", ""}, "HTTP 503: at 1"},
		{&answerError{"HTTP 50", "at 3"}, "HTTP 50: at 3"},
		{&answerError{"HTTP 404", ""}, "HTTP 404"},
		{errors.New("no answer in 1s"), "no answer in 1s"},
	} {
		c = withReadiness(c, step.why)
		if want := "readiness probe failed: " + step.want; c.Ready || c.Reason != reasonNotReady || c.Message != want {
			t.Errorf("after %v: %+v, want %q", step.why, c, want)
		}
	}
	if c = withReadiness(c, nil); !c.Ready || c.Reason != "" || c.Message != "" {
		t.Errorf("after a success: %+v", c)
	}
}

func TestShownIsOneShortLine(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		"": "", "\n": "", " not\n\tfound\x00 ": "not found", "\xff\xfeä": "ä",
		strings.Repeat("ä", 300): strings.Repeat("ä", 100) + "...", strings.Repeat("x", 199) + "ä": strings.Repeat("x", 199) + "...",
	} {
		if got := shown(answer); got != want {
			t.Errorf("shown(%q) = %q, want %q", answer, got, want)
		}
	}
}

// The local port of a probe differs each time.
func TestPortsAreRemovedFromErrors(t *testing.T) {
	t.Parallel()
	at := func(port int) net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port} }
	reset := func(from int) error {
		return plain(&url.Error{Op: "Get", URL: "http://x", Err: &net.OpError{Op: "read", Net: "tcp", Source: at(from), Addr: at(80), Err: syscall.ECONNRESET}})
	}
	if a, b := reset(40000).Error(), reset(40001).Error(); a != b || a != "read tcp 127.0.0.1:80: connection reset by peer" {
		t.Errorf("plain() = %q and %q", a, b)
	}
	if err := plain(nil); err != nil {
		t.Errorf("plain(nil) = %v", err)
	}
}

// The instance's message names the container that cannot start.
func TestFailingContainerIsNamed(t *testing.T) {
	t.Parallel()
	m, _ := serving()
	m.containers = append(m.containers, &container{m: m, spec: rikv1alpha1.Container{Name: "other"}, index: 1})
	m.rec.Containers["other"] = exited(state.Container{}, 128, reasonStart, `start: exec: "nosuch"`, noon)
	m.prepared = true
	s := m.render()
	if want := `container "other": start: exec: "nosuch"`; s.Reason != reasonStart || s.Message != want || s.Containers[1].Message != `start: exec: "nosuch"` {
		t.Errorf("status = %+v, want the message %q", s, want)
	}
}

// A clock that was ahead must not block a back-off or an end.
func TestTimesInTheFutureAreCorrected(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tc := range map[string]struct {
		retryAt time.Time
		start   bool
	}{
		"due":                  {now.Add(-time.Second), true},
		"in a back-off":        {now.Add(time.Minute), false},
		"in the longest":       {now.Add(maxRestartDelay), false},
		"a second beyond that": {now.Add(maxRestartDelay + time.Second), true},
		"in ten years":         {now.AddDate(10, 0, 0), true},
	} {
		c := exited(state.Container{Attempt: 1}, 1, reasonError, "", now)
		c.RetryAt = tc.retryAt
		d := decide(view{policy: rikv1alpha1.RestartAlways, main: []containerView{{name: "main", Container: c}}}, now)
		if started := len(d.start) == 1; started != tc.start || !started && !d.wake.Equal(tc.retryAt) {
			t.Errorf("%s: starts %v and wakes at %v", name, d.start, d.wake)
		}
	}
	const grace = 30 * time.Second
	for name, tc := range map[string]struct {
		stop state.Stop
		want time.Time
	}{
		"as ordered":               {state.Stop{Deadline: now.Add(time.Minute), Grace: 2 * time.Minute}, now.Add(time.Minute)},
		"ahead":                    {state.Stop{Deadline: now.AddDate(10, 0, 0), Grace: 2 * time.Minute}, now.Add(2 * time.Minute)},
		"ahead, without its grace": {state.Stop{Deadline: now.AddDate(10, 0, 0)}, now.Add(grace)},
		"over":                     {state.Stop{Deadline: now.Add(-time.Hour), Grace: time.Minute}, now.Add(-time.Hour)},
	} {
		stop := tc.stop
		r := state.Record{Stop: &stop, Final: &state.Final{At: now.AddDate(10, 0, 0)}}
		got := correctTimes(r, now, grace)
		if !got.Stop.Deadline.Equal(tc.want) || !got.Final.At.Equal(now) || !stop.Deadline.Equal(tc.stop.Deadline) {
			t.Errorf("%s: %+v, %+v; want the deadline %v and the end now, in a copy", name, got.Stop, got.Final, tc.want)
		}
	}
}
