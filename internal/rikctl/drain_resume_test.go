package rikctl

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/testkit/poll"
)

// drainsNot runs a drain that cannot finish, with a short timeout. It repeats that until the
// output has the words, because a busy machine may be too slow for one timeout.
func (s *site) drainsNot(t *testing.T, node string, words ...string) {
	t.Helper()
	var all result
	poll.Until(t, time.Minute, "the drain says what it waits for", func(context.Context) error {
		r := s.do(t, "drain", node, "--timeout=1s")
		all = result{code: r.code, out: all.out + r.out, err: all.err + r.err}
		for _, w := range words {
			if r.code == clierror.ExitUnreachable && !strings.Contains(all.out+all.err, w) {
				return fmt.Errorf("no %q in %s%s", w, all.out, all.err)
			}
		}
		return nil
	})
	all.check(t, clierror.ExitUnreachable, words...)
}

// TestServerDrainResumes checks that a repeated drain waits for as many ready instances as there
// were when the first drain began.
func TestServerDrainResumes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node, other := s.node(t), s.node(t)
	s.workload(t, "web", "  deploy: Automatic\n  replicas: 2\n")
	for name, on := range map[string]string{"web-1": node, "web-2": other} {
		s.do(t, "create", "instance", "-w", "web", "--name", name).check(t, clierror.ExitOK)
		s.runningOn(t, name, on)
	}
	s.drainsNot(t, node, "instance/web-1", "deleted")
	s.confirmEnd(t, "web-1")
	// The node has no instances left, and the replacement does not exist yet.
	s.drainsNot(t, node, "already cordoned", "waiting for the replacements in workload "+s.namespace+"/web")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-3").check(t, clierror.ExitOK)
	s.drainsNot(t, node, "waiting for the replacements")
	s.runningOn(t, "web-3", other)
	s.do(t, "drain", node).check(t, clierror.ExitOK, "drained")
	kept := []string{"get", "node", node, "-o", "jsonpath={.metadata.annotations}"}
	if r := s.do(t, kept...); r.out != "" {
		t.Errorf("after the drain the node keeps %s", r.out)
	}

	// Uncordoning resets the baseline.
	s.do(t, "uncordon", node).check(t, clierror.ExitOK)
	s.runningOn(t, "web-3", other)
	s.do(t, "create", "instance", "-w", "web", "--name", "web-4").check(t, clierror.ExitOK)
	s.runningOn(t, "web-4", node)
	s.drainsNot(t, node, "instance/web-4")
	if r := s.do(t, kept...); r.out == "" {
		t.Error("an interrupted drain leaves nothing behind")
	}
	s.do(t, "uncordon", node).check(t, clierror.ExitOK)
	if r := s.do(t, kept...); r.out != "" {
		t.Errorf("after uncordoning the node keeps %s", r.out)
	}
}
