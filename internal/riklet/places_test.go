package riklet

import "testing"

func TestCgroupParent(t *testing.T) {
	t.Parallel()
	if got := CgroupParent(DefaultStateDir); got != "/rik" {
		t.Errorf("CgroupParent() of the default directory = %q, want /rik", got)
	}
	// Nodes of earlier versions have instances in this cgroup, so it must not change.
	first, second := CgroupParent("/srv/a"), CgroupParent("/srv/b")
	if first != "/rik-b068a6ce" || first == second || !ValidCgroupParent(first) {
		t.Errorf("CgroupParent() of two directories = %q and %q", first, second)
	}
}

func TestValidCgroupParent(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"/rik": true, "/a/b-1_c.d": true, "": false, "rik": false, "/": false, "/a/../b": false, "/a b": false} {
		if got := ValidCgroupParent(name); got != want {
			t.Errorf("ValidCgroupParent(%q) = %v, want %v", name, got, want)
		}
	}
}
