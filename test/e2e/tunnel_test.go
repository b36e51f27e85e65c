package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedTunnels has two machines that send each other everything through
// tunnels, as machines behind different routers do.
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
