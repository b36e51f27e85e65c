package e2e

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedTunnels has two machines that send each other all traffic through tunnels, like
// machines behind different routers.
func TestPrivilegedTunnels(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{Machines: 2, AgentArgs: []string{"--network", "vxlan"}})
	applyText(t, c, serving("web", c.Hello(), 2, spread,
		`{name: http, port: 80, targetPort: 8080}, {name: out, port: 30080, targetPort: 8080, type: nodePort}`))
	c.Eventually(func() error {
		if n := len(instancesOf(c, "web")); n != 2 {
			return fmt.Errorf("%d instances", n)
		}
		return nil
	})
	waitReady(c, "web")
	if routes := c.Machine(1).Run("ip", "route"); !strings.Contains(routes.Stdout, "dev rik.1") || strings.Contains(routes.Stdout, "via "+c.Machine(2).Address) {
		t.Errorf("the routes of the first machine are\n%s", routes.Stdout)
	}
	reachEachOther(t, c)
	both := func(how string, ask func() (string, error)) {
		seen := map[string]bool{}
		c.Eventually(func() error {
			got, err := ask()
			if err != nil {
				return fmt.Errorf("%s: %w", how, err)
			}
			if seen[strings.TrimSpace(got)] = true; len(seen) != 2 {
				return fmt.Errorf("%s: %v, want two instances", how, seen)
			}
			return nil
		})
	}
	for n, in := range instancesOf(c, "web") {
		both("by its name from "+in.Name, func() (string, error) {
			out := c.TryRikctl("exec", in.Name, "--", "/hello", "-get", "http://web/")
			return out.Stdout, out.Err
		})
		node := net.JoinHostPort(c.Machine(n+1).Address, "30080")
		both("from outside at "+node, func() (string, error) { return fetch(t.Context(), "http://"+node) })
	}
	c.Rikctl("delete", "workload", "web")
}

// TestPrivilegedBlockedTunnels blocks the path to a machine, which then gets no new instances.
// It opens the path again, and then blocks it for all.
func TestPrivilegedBlockedTunnels(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{Machines: 2, AgentArgs: []string{"--network", "vxlan"}})
	blocked := func(machine int, want bool) {
		t.Helper()
		c.Eventually(func() error {
			var n rikv1alpha1.Node
			c.Get(&n, "nodes/"+c.Machine(machine).Name)
			got := meta.FindStatusCondition(n.Status.Conditions, "OverlayUnavailable")
			switch {
			case want != (got != nil):
				return fmt.Errorf("node %s has the conditions %+v", n.Name, n.Status.Conditions)
			case want && (got.Status != "True" || !strings.Contains(got.Message, "UDP port 8472")):
				return fmt.Errorf("the condition says %+v", got)
			}
			return nil
		})
	}
	shut, open := []string{"-t", "mangle", "-A", "INPUT", "-p", "udp", "--dport", "8472", "-j", "DROP"}, []string{"-t", "mangle", "-F", "INPUT"}
	blocked(1, false)
	blocked(2, false)
	c.Machine(2).Run("iptables", shut...)
	blocked(2, true)
	blocked(1, false)
	applyText(t, c, serving("web", c.Hello(), 4, "", `{name: http, port: 80, targetPort: 8080}`))
	waitReady(c, "web")
	for _, in := range instancesOf(c, "web") {
		if in.Spec.NodeName != c.Machine(1).Name {
			t.Errorf("%s is on %s, which packets do not reach", in.Name, in.Spec.NodeName)
		}
	}
	applyText(t, c, serving("wide", c.Hello(), 2, spread, `{name: http, port: 80, targetPort: 8080}`))
	c.Eventually(func() error {
		for _, in := range instancesOf(c, "wide") {
			if why := c.Rikctl("why", "instance", in.Name); strings.Contains(why, "no packet of another node's overlay arrives") {
				return nil
			}
		}
		return errors.New("no condition shows why an instance waits")
	})
	c.Machine(2).Run("iptables", open...)
	blocked(2, false)
	waitReady(c, "wide")
	c.Machine(1).Run("iptables", shut...)
	c.Machine(2).Run("iptables", shut...)
	blocked(1, true)
	blocked(2, true)
	applyText(t, c, serving("late", c.Hello(), 2, spread, `{name: http, port: 80, targetPort: 8080}`))
	waitReady(c, "late")
	for _, name := range []string{"web", "wide", "late"} {
		c.Rikctl("delete", "workload", name)
	}
}

// TestPrivilegedFirewalls blocks what instances of a machine ask for names, and then what other
// machines send to its instances without a tunnel. The machine gets no new instances meanwhile.
func TestPrivilegedFirewalls(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{Machines: 2})
	shut := c.Machine(2)
	condition := func(machine int, kind, reason string, parts ...string) {
		t.Helper()
		c.Eventually(func() error {
			var n rikv1alpha1.Node
			c.Get(&n, "nodes/"+c.Machine(machine).Name)
			got := meta.FindStatusCondition(n.Status.Conditions, kind)
			switch {
			case (reason == "") != (got == nil):
				return fmt.Errorf("node %s has the conditions %+v", n.Name, n.Status.Conditions)
			case got != nil && (got.Status != "True" || got.Reason != reason):
				return fmt.Errorf("the condition says %+v", got)
			}
			for _, part := range parts {
				if !strings.Contains(got.Message, part) {
					return fmt.Errorf("no %q in %q", part, got.Message)
				}
			}
			return nil
		})
	}
	placed := func(workload string) {
		t.Helper()
		applyText(t, c, serving(workload, c.Hello(), 4, "", `{name: http, port: 80, targetPort: 8080}`))
		waitReady(c, workload)
		for _, in := range instancesOf(c, workload) {
			if in.Spec.NodeName != c.Machine(1).Name {
				t.Errorf("%s is on %s, whose firewall blocks it", in.Name, in.Spec.NodeName)
			}
		}
	}
	for machine := range 2 {
		condition(machine+1, "NamesUnavailable", "")
		condition(machine+1, "OverlayUnavailable", "")
	}
	shut.Run("iptables", "-t", "mangle", "-A", "INPUT", "-i", "rik0", "-j", "DROP")
	condition(2, "NamesUnavailable", "QuestionsDoNotArrive", "UDP and TCP port 4953 from the link rik0", "firewall-cmd")
	condition(1, "NamesUnavailable", "")
	placed("web")
	shut.Run("iptables", "-t", "mangle", "-F", "INPUT")
	condition(2, "NamesUnavailable", "")

	shut.Run("iptables", "-t", "mangle", "-A", "FORWARD", "-i", "eth0", "-o", "rik0", "-j", "DROP")
	condition(2, "OverlayUnavailable", "PacketsDoNotPass", "no packet from instances", c.Machine(1).Address)
	condition(1, "OverlayUnavailable", "")
	placed("late")
	shut.Run("iptables", "-t", "mangle", "-F", "FORWARD")
	condition(2, "OverlayUnavailable", "")
	for _, name := range []string{"web", "late"} {
		c.Rikctl("delete", "workload", name)
	}
}
