package pod

import (
	"strings"
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
)

func TestPrivilegedProbes(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	n.start()
	web := sh("web", "mkdir -p /tmp/www; echo ok > /tmp/www/ok; sleep 0.5; exec httpd -f -p 80 -h /tmp/www")
	web.StartupProbe = everySecond(rikv1alpha1.Probe{TCP: &rikv1alpha1.TCPProbe{Port: 80}})
	web.StartupProbe.FailureThreshold = 100
	web.ReadinessProbe = everySecond(rikv1alpha1.Probe{HTTP: &rikv1alpha1.HTTPProbe{Path: "/ok", Port: 80}})
	web.LivenessProbe = everySecond(rikv1alpha1.Probe{Exec: &rikv1alpha1.ExecProbe{Command: []string{"test", "-e", "/tmp/www/ok"}}})
	in := podOf("u1", rikv1alpha1.RestartAlways, web)
	in.Template.TerminationGracePeriodSeconds = new(int64(1))
	n.ensure(in)
	n.await("u1", "ready", func(s rikv1alpha1.InstanceStatus) bool { return s.Ready })
	if _, err := n.driver.Exec(t.Context(), "u1", "", instance.ExecOptions{Command: []string{"rm", "/tmp/www/ok"}}); err != nil {
		t.Fatal(err)
	}
	n.await("u1", "restarted for its health", func(s rikv1alpha1.InstanceStatus) bool {
		return s.Containers[0].RestartCount > 0
	})
	n.await("u1", "ready again", func(s rikv1alpha1.InstanceStatus) bool { return s.Ready && s.Containers[0].RestartCount > 0 })
	n.stop("u1", -1)

	never := sh("main", forever)
	never.LivenessProbe = everySecond(rikv1alpha1.Probe{TCP: &rikv1alpha1.TCPProbe{Port: 81}})
	n.ensure(podOf("u2", rikv1alpha1.RestartNever, never))
	s := n.await("u2", "over", func(s rikv1alpha1.InstanceStatus) bool {
		return s.Phase == rikv1alpha1.InstanceFailed || s.Phase == rikv1alpha1.InstanceCompleted
	})
	if s.Containers[0].Reason != reasonUnhealthy || !strings.Contains(s.Containers[0].Message, "liveness probe failed") {
		t.Errorf("container = %+v", s.Containers[0])
	}
}

// Why a container is not ready is said, once for all answers that are alike, and no more
// when it is.
func TestPrivilegedWhyItIsNotReady(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	n.start()
	probed := func(name string, p rikv1alpha1.Probe) rikv1alpha1.Container {
		c := sh(name, forever)
		p.PeriodSeconds, p.FailureThreshold = 1, 1
		p.TimeoutSeconds = max(p.TimeoutSeconds, 30)
		c.ReadinessProbe = &p
		return c
	}
	web := probed("web", rikv1alpha1.Probe{HTTP: &rikv1alpha1.HTTPProbe{Path: "/made-later", Port: 80}})
	web.Command = []string{"/bin/sh", "-c", "mkdir /tmp/www; exec httpd -f -p 80 -h /tmp/www"}
	for uid, c := range map[string]rikv1alpha1.Container{
		"http":    web,
		"missing": probed("main", rikv1alpha1.Probe{Exec: &rikv1alpha1.ExecProbe{Command: []string{"/no/such"}}}),
		"failing": probed("main", rikv1alpha1.Probe{Exec: &rikv1alpha1.ExecProbe{Command: []string{"/bin/sh", "-c", "echo because of $$; exit 4"}}}),
		"refused": probed("main", rikv1alpha1.Probe{TCP: &rikv1alpha1.TCPProbe{Port: 81}}),
	} {
		n.ensure(podOf(uid, rikv1alpha1.RestartAlways, c))
	}
	for uid, want := range map[string]string{
		"http": "HTTP 404", "missing": "exited with 127", "failing": "exited with 4: because of", "refused": "connection refused",
	} {
		s := n.await(uid, "not ready for "+want, func(s rikv1alpha1.InstanceStatus) bool {
			return len(s.Containers) == 1 && strings.Contains(s.Containers[0].Message, want)
		})
		c := s.Containers[0]
		if c.Ready || c.Reason != reasonNotReady || !strings.HasPrefix(c.Message, "readiness probe failed: ") || s.Reason != reasonNotReady || s.Message != ofContainer(c.Name, c.Message) {
			t.Errorf("%s: status = %+v", uid, s)
		}
		t.Log(c.Message)
	}
	if _, err := n.driver.Exec(t.Context(), "http", "", instance.ExecOptions{Command: []string{"touch", "/tmp/www/made-later"}}); err != nil {
		t.Fatal(err)
	}
	s := n.await("http", "ready", func(s rikv1alpha1.InstanceStatus) bool { return s.Ready })
	if c := s.Containers[0]; c.Reason != "" || c.Message != "" || s.Reason != "" || s.Message != "" {
		t.Errorf("ready: status = %+v", s)
	}
}
