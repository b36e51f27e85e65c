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

// bomb makes as many processes as it may. They share a fifth of a processor.
func bomb(uid, script string) instance.Instance {
	c := sh("main", script)
	c.Resources.Limits = rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: quantity("200m"), rikv1alpha1.ResourceMemory: quantity("128Mi")}
	in := podOf(uid, rikv1alpha1.RestartNever, c)
	in.Template.TerminationGracePeriodSeconds = new(int64(1))
	return in
}

// What is throttled so hard that it does not even come to its SIGKILL could not be
// deleted for many minutes.
func TestPrivilegedAForkBombIsTakenBack(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	layout, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	// The one's first process lives on, the other's ends: the kernel then waits for all
	// others before it tells of that, and their SIGKILL is the kernel's own.
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

// The pause between two attempts of taking back stays short.
func TestTakingBackIsTriedAgainSoon(t *testing.T) {
	t.Parallel()
	var a attempts
	now := time.Unix(0, 0)
	for range 20 {
		a.failed(now, longestTeardownDelay)
		if pause := a.retryAt.Sub(now); pause <= 0 || pause > longestTeardownDelay {
			t.Fatalf("after %d failures the pause is %s", a.failures, pause)
		}
	}
}

// What stands in the way of its end is told, whichever end it is.
func TestWhatIsNotTakenBackSaysWhy(t *testing.T) {
	t.Parallel()
	ended := func(m *machine) { m.finish(outcome{phase: rikv1alpha1.InstanceFailed, reason: reasonError}) }
	for name, end := range map[string]func(*machine){"stopped": func(m *machine) { m.stop(0) }, "ended": ended} {
		m, _ := serving()
		m.runCtx = t.Context()
		end(m)
		m.tookBack(processes, errors.New("target is busy"))
		if s := m.render(); s.Reason != reasonStopFailed || s.Message != "target is busy" || s.Ready {
			t.Errorf("%s: status = %+v", name, s)
		}
	}
}
