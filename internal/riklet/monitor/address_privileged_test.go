package monitor

import (
	"os/exec"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/netnstest"
	"rik.dev/rik/internal/testkit/privileged"
)

func TestPrivilegedAddressChanges(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	for _, step := range []struct{ command, server, want string }{
		{"link add rik0 type bridge", "", "127.0.0.1"},
		{"link set rik0 up", "", "127.0.0.1"},
		{"address add 10.62.1.1/24 dev rik0", "", "127.0.0.1"}, // rik's own
		{"link add lan0 type bridge", "", "127.0.0.1"},
		{"address add 192.0.2.1/24 dev lan0", "", "127.0.0.1"}, // it is down
		{"link set lan0 up", "", "192.0.2.1"},
		{"address add 198.51.100.1/24 dev lan0", "", "192.0.2.1"},
		{"route add 203.0.113.0/24 via 198.51.100.254", "203.0.113.5:4995", "198.51.100.1"},
		{"address del 192.0.2.1/24 dev lan0", "", "198.51.100.1"},
	} {
		if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(step.command)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", step.command, err, out)
		}
		if got := Address(t.Context(), step.server); got != step.want {
			t.Errorf("after ip %s: Address(%q) = %s, want %s", step.command, step.server, got, step.want)
		}
	}
}
