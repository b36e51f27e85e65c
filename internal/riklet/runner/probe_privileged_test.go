package runner

import (
	"fmt"
	"net"
	"strings"
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
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

// The status contains why a container is not ready, once for all answers of the same kind, and
// nothing once it is ready.
func TestPrivilegedNotReadyReason(t *testing.T) {
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

// A probe uses the same path as clients, in every kind of instance. A server that listens only on
// the loopback is not ready. A server that listens only on the instance's address is ready.
func TestPrivilegedProbesTakeThePathOfClients(t *testing.T) {
	t.Parallel()
	n, _ := newVMNode(t).withApps(t)
	n.start()
	const serve = `mkdir -p /tmp/w; echo ok > /tmp/w/ok; exec %s httpd -f -p "%s:8080" -h /tmp/w`
	probes := map[string]rikv1alpha1.Probe{
		"tcp":  {TCP: &rikv1alpha1.TCPProbe{Port: 8080}},
		"http": {HTTP: &rikv1alpha1.HTTPProbe{Port: 8080, Path: "/ok"}},
	}
	container := func(busybox, listen string, p rikv1alpha1.Probe) rikv1alpha1.Container {
		c := sh("main", fmt.Sprintf(serve, busybox, listen))
		c.Env = []rikv1alpha1.EnvVar{{Name: "MINE", ValueFrom: &rikv1alpha1.EnvVarSource{FieldRef: "status.address"}}}
		c.ReadinessProbe = everySecond(p)
		return c
	}
	kinds := map[string]func(uid, listen string, p rikv1alpha1.Probe) instance.Instance{
		"container": func(uid, listen string, p rikv1alpha1.Probe) instance.Instance {
			return podOf(uid, rikv1alpha1.RestartAlways, container("", listen, p))
		},
		"app": func(uid, listen string, p rikv1alpha1.Probe) instance.Instance {
			c := container("busybox", listen, p)
			in := appOf(uid, rikv1alpha1.RestartAlways, c.Command...)
			in.Template.App.Env, in.Template.App.ReadinessProbe = c.Env, c.ReadinessProbe
			return in
		},
		"vm": func(uid, listen string, p rikv1alpha1.Probe) instance.Instance {
			return microVM(uid, rikv1alpha1.RestartAlways, container("", listen, p))
		},
	}
	for kind, of := range kinds {
		for how, p := range probes {
			if kind == "vm" && how == "tcp" {
				continue // each guest takes its time
			}
			n.ensure(of(kind+"-"+how+"-own", "$MINE", p))
			n.ensure(of(kind+"-"+how+"-loopback", engine.Loopback, p))
		}
	}
	for kind := range kinds {
		for how := range probes {
			if kind == "vm" && how == "tcp" {
				continue
			}
			n.await(kind+"-"+how+"-own", "ready", func(s rikv1alpha1.InstanceStatus) bool { return s.Ready })
			n.await(kind+"-"+how+"-loopback", "refused", func(s rikv1alpha1.InstanceStatus) bool {
				return !s.Ready && len(s.Containers) == 1 && strings.Contains(s.Containers[0].Message, "connection refused")
			})
			// port-forward reaches both servers. A probe is also refused before the server listens.
			for _, listen := range []string{"-own", "-loopback"} {
				eventually(t, func() string {
					conn, err := n.driver.Dial(t.Context(), kind+"-"+how+listen, 8080)
					if err != nil {
						return fmt.Sprintf("forwarding a port of %s-%s%s: %v", kind, how, listen, err)
					}
					_ = conn.Close()
					return ""
				})
			}
		}
	}
}

// With hostNetwork, clients use the node's address. Without a network, the instance's own
// processes are the only clients.
func TestPrivilegedProbesWithoutAnAddressOfTheInstance(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.cfg.Node.Address = "127.0.0.2"
	n.start()
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	of := func(uid, listen string, hostNetwork bool) {
		c := sh("main", fmt.Sprintf("mkdir /tmp/w; exec httpd -f -p %s:%d -h /tmp/w", listen, port))
		c.ReadinessProbe = everySecond(rikv1alpha1.Probe{TCP: &rikv1alpha1.TCPProbe{Port: int32(port)}})
		in := podOf(uid, rikv1alpha1.RestartAlways, c)
		in.Template.HostNetwork = hostNetwork
		n.ensure(in)
	}
	of("u1", engine.Loopback, true)
	n.await("u1", "refused", func(s rikv1alpha1.InstanceStatus) bool {
		return !s.Ready && len(s.Containers) == 1 && strings.Contains(s.Containers[0].Message, "connection refused")
	})
	of("u2", "127.0.0.2", true)
	of("u3", engine.Loopback, false)
	for _, uid := range []string{"u2", "u3"} {
		n.await(uid, "ready", func(s rikv1alpha1.InstanceStatus) bool { return s.Ready })
	}
}
