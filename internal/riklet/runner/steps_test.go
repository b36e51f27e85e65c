package runner

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/microvm"
)

// templates has one template for each kind of isolation.
var templates = map[string]rikv1alpha1.InstanceTemplate{
	"Pod":            {Containers: []rikv1alpha1.Container{{Name: "main"}}},
	"Pod, microVM":   {Isolation: rikv1alpha1.IsolationMicroVM, Containers: []rikv1alpha1.Container{{Name: "main"}}},
	"Function":       {Kind: rikv1alpha1.KindFunction, Function: &rikv1alpha1.Function{}},
	"App":            {Kind: rikv1alpha1.KindApp, App: &rikv1alpha1.App{}},
	"without record": {},
}

func names(s lifecycle.Sequence) []string {
	var list []string
	for _, step := range s.Steps {
		list = append(list, step.Name)
	}
	return list
}

// TestOrderOfSteps checks the order of the steps of each kind. An undo in another order would find
// something of a later step in use.
func TestOrderOfSteps(t *testing.T) {
	t.Parallel()
	d := unopened(Config{VM: &microvm.Config{}})
	for kind, want := range map[string]struct{ instance, container []string }{
		"Pod": {
			[]string{"directories", "volumes", "cgroup", "supervisor", "network"},
			[]string{"image", "rootfs", "bundle", "start"},
		},
		"Pod, microVM": {
			[]string{"directories", "disks", "cgroup", "supervisor", "network", "image", "machine", "guest"},
			[]string{"image", "bundle", "start"},
		},
		"Function": {
			[]string{"directories", "disks", "cgroup", "supervisor", "network", "image", "machine", "guest"},
			[]string{"image", "bundle", "start"},
		},
		"App": {
			[]string{"directories", "files", "cgroup", "supervisor", "network"},
			[]string{"image", "rootfs", "bundle", "start"},
		},
		"without record": {
			[]string{"directories", "volumes", "files", "disks", "cgroup", "supervisor", "network", "image", "machine", "guest"},
			nil,
		},
	} {
		in := instance.Instance{UID: "u1", Template: templates[kind]}
		b := &build{d: d, Sandbox: engine.Sandbox{Instance: in}}
		if diff := cmp.Diff(want.instance, names(b.sequence(true))); diff != "" {
			t.Errorf("%s: steps of the instance (-want +got):\n%s", kind, diff)
		}
		processes := names(b.sequence(false))
		if got := want.instance[len(want.instance)-len(processes):]; processes[0] != stepCgroup || !cmp.Equal(got, processes) {
			t.Errorf("%s: steps of its processes = %v, want those from %s of %v", kind, processes, stepCgroup, want.instance)
		}
		if e := d.engineOf(in.Template); e != nil {
			f := &fill{d: d, engine: e, Attempt: engine.Attempt{Instance: in}}
			if diff := cmp.Diff(want.container, names(f.sequence())); diff != "" {
				t.Errorf("%s: steps of a container (-want +got):\n%s", kind, diff)
			}
		}
	}
}

// TestOneEngineForEachKind checks that the choice of an engine does not depend on their order.
func TestOneEngineForEachKind(t *testing.T) {
	t.Parallel()
	d := unopened(Config{})
	for kind, template := range templates {
		found := 0
		for _, e := range d.engines {
			if e.Runs(template) {
				found++
			}
		}
		want := 1
		if kind == "without record" {
			want = 0
		}
		if found != want {
			t.Errorf("%s: %d engines run it, want %d", kind, found, want)
		}
	}
}
