package rikctl

import "testing"

// TestServerDrainResumes: a drain that is run again waits for as many ready
// instances as there were when the first began.
func TestServerDrainResumes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node, other := s.node(t), s.node(t)
	s.workload(t, "web", "  deploy: Automatic\n  replicas: 2\n")
	for name, on := range map[string]string{"web-1": node, "web-2": other} {
		s.do(t, "create", "instance", "-w", "web", "--name", name).check(t, ExitOK)
		s.runningOn(t, name, on)
	}
	s.do(t, "drain", node, "--timeout=1s").check(t, ExitUnreachable, "instance/web-1", "deleted")
	s.confirmEnd(t, "web-1")
	// Nothing is left on the node, and the replacement is not there yet.
	s.do(t, "drain", node, "--timeout=1s").check(t, ExitUnreachable, "already cordoned", "waiting for the replacements in workload "+s.namespace+"/web")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-3").check(t, ExitOK)
	s.do(t, "drain", node, "--timeout=1s").check(t, ExitUnreachable, "waiting for the replacements")
	s.runningOn(t, "web-3", other)
	s.do(t, "drain", node).check(t, ExitOK, "drained")
	kept := []string{"get", "node", node, "-o", "jsonpath={.metadata.annotations}"}
	if r := s.do(t, kept...); r.out != "" {
		t.Errorf("after the drain the node keeps %s", r.out)
	}

	// Who uncordons begins anew.
	s.do(t, "uncordon", node).check(t, ExitOK)
	s.runningOn(t, "web-3", other)
	s.do(t, "create", "instance", "-w", "web", "--name", "web-4").check(t, ExitOK)
	s.runningOn(t, "web-4", node)
	s.do(t, "drain", node, "--timeout=1s").check(t, ExitUnreachable, "instance/web-4")
	if r := s.do(t, kept...); r.out == "" {
		t.Error("an interrupted drain leaves nothing behind")
	}
	s.do(t, "uncordon", node).check(t, ExitOK)
	if r := s.do(t, kept...); r.out != "" {
		t.Errorf("after uncordoning the node keeps %s", r.out)
	}
}
