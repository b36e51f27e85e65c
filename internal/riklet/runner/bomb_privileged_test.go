package runner

import (
	"errors"
	"strconv"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/cgroup"
	"rik.dev/rik/internal/riklet/instance"
)

// bomb returns an instance that starts as many processes as it may. They share a fifth of a
// processor.
func bomb(uid, script string) instance.Instance {
	c := sh("main", script)
	c.Resources.Limits = rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: quantity("200m"), rikv1alpha1.ResourceMemory: quantity("128Mi")}
	in := podOf(uid, rikv1alpha1.RestartNever, c)
	in.Template.TerminationGracePeriodSeconds = new(int64(1))
	return in
}

// Processes that are throttled so hard that they do not get to handle their SIGKILL once blocked
// the deletion of their instance for many minutes.
func TestPrivilegedForkBombIsRemoved(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	layout, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	// In one instance the first process continues. In the other it ends: the kernel then kills
	// all other processes itself, and waits for their end before it reports the exit.
	for uid, script := range map[string]string{"lives": "f(){ f | f & }; f; sleep 100000", "ends": "f(){ f | f & }; f; sleep 3"} {
		n.ensure(bomb(uid, script))
		n.awaitPhase(uid, rikv1alpha1.InstanceRunning)
		eventually(t, func() string {
			if many := len(layout.Processes(n.cfg.CgroupParent + "/" + uid)); many < 1000 {
				return "only " + strconv.Itoa(many) + " processes"
			}
			return ""
		})
		n.stop(uid, -1)
	}
}

// The delay between two teardown attempts stays short.
func TestTeardownIsRetried(t *testing.T) {
	t.Parallel()
	var a attempts
	now := time.Unix(0, 0)
	for range 20 {
		a.failed(now, maxTeardownDelay)
		if pause := a.retryAt.Sub(now); pause <= 0 || pause > maxTeardownDelay {
			t.Fatalf("after %d failures the pause is %s", a.failures, pause)
		}
	}
}

// The status contains the obstacle to a teardown, whether the instance was stopped or ended by
// itself.
func TestFailedTeardownReportsItsReason(t *testing.T) {
	t.Parallel()
	ended := func(m *machine) { m.finish(outcome{phase: rikv1alpha1.InstanceFailed, reason: reasonError}) }
	for name, end := range map[string]func(*machine){"stopped": func(m *machine) { m.stop(0) }, "ended": ended} {
		m, _ := serving()
		m.runCtx = t.Context()
		end(m)
		m.tornDown(processes, errors.New("target is busy"))
		if s := m.render(); s.Reason != reasonStopFailed || s.Message != "target is busy" || s.Ready {
			t.Errorf("%s: status = %+v", name, s)
		}
	}
}
