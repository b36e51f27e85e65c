package network

import (
	"errors"
	"strings"
	"testing"

	"rik.dev/rik/api/rik/nodestate"
	"rik.dev/rik/internal/riklet/instance"
)

// TestRulesThatCannotBeWritten checks that instances wait for the rules, and that a node which
// cannot write them reports that.
func TestRulesThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	n := &Node{}
	if err := n.rulesReady(); !errors.Is(err, instance.ErrNetworkNotReady) {
		t.Errorf("before the first attempt: %v, want ErrNetworkNotReady", err)
	}
	for range maxRulesAttempts {
		if all := n.Troubles(); len(all) > 0 {
			t.Errorf("troubles after few attempts: %v", all)
		}
		n.applied(errors.New("no such table"))
	}
	if err := n.rulesReady(); !errors.Is(err, instance.ErrNetworkNotReady) || !strings.Contains(err.Error(), "no such table") {
		t.Errorf("after failures: %v, want ErrNetworkNotReady with the cause", err)
	}
	if all := n.Troubles(); !strings.Contains(all[nodestate.TroubleNetwork], "no such table") {
		t.Errorf("troubles: %v, want the cause", all)
	}
	n.applied(nil)
	if err := n.rulesReady(); err != nil || len(n.Troubles()) > 0 {
		t.Errorf("with rules: %v, troubles %v", err, n.Troubles())
	}
}
