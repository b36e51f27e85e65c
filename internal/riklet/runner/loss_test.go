package runner

import (
	"strings"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/state"
)

// lossRecord returns the record of an instance with an init container that succeeded and a
// container that ended with the sandbox.
func lossRecord(policy rikv1alpha1.RestartPolicy, change func(*state.Record)) state.Record {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	in := microVM("u1", policy, rikv1alpha1.Container{Name: "main"})
	in.Template.InitContainers = []rikv1alpha1.Container{{Name: "prepare"}}
	in.Template.Volumes = []rikv1alpha1.Volume{{Name: "data", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}}
	r := state.Record{Instance: in, Containers: map[string]state.Container{
		"prepare": exited(state.Container{Attempt: 1, StartedAt: at}, 0, reasonCompleted, "", at),
		"main":    exited(state.Container{Attempt: 2, Restarts: 1, StartedAt: at}, 137, reasonVMEnded, "the microVM ended", at),
	}}
	if change != nil {
		change(&r)
	}
	return r
}

func lossView(r state.Record) view {
	return newMachine(&Driver{cfg: Config{}.withDefaults()}, r).view()
}

func TestInitContainersRunAgainAfterALoss(t *testing.T) {
	t.Parallel()
	later := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		policy rikv1alpha1.RestartPolicy
		change func(*state.Record)
		start  string // the containers that decide starts afterward
		final  string // how decide ends the instance
	}{
		"always":     {policy: rikv1alpha1.RestartAlways, start: "prepare"},
		"on failure": {policy: rikv1alpha1.RestartOnFailure, start: "prepare"},
		"on failure, and all has succeeded": {policy: rikv1alpha1.RestartOnFailure, change: func(r *state.Record) {
			r.Containers["main"] = exited(r.Containers["main"], 0, reasonCompleted, "", r.Containers["main"].FinishedAt)
		}, final: reasonCompleted},
		"never": {policy: rikv1alpha1.RestartNever, final: reasonVolumesLost},
		"never, and main has not been started": {policy: rikv1alpha1.RestartNever, change: func(r *state.Record) {
			delete(r.Containers, "main")
		}, final: reasonInitFailed},
		"it is to go away": {policy: rikv1alpha1.RestartAlways, change: func(r *state.Record) { r.Stop = &state.Stop{} }, start: "main"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := lossRecord(tc.policy, tc.change)
			after := withoutVolumes(before, "its volumes were lost: gone", later)
			d := decide(lossView(after), later)
			if got := strings.Join(d.start, " "); got != tc.start {
				t.Errorf("it starts %q, want %q", got, tc.start)
			}
			switch {
			case (d.final == nil) != (tc.final == ""):
				t.Errorf("its end is %+v, want %q", d.final, tc.final)
			case d.final != nil && d.final.reason != tc.final:
				t.Errorf("its end is %+v, want %q", d.final, tc.final)
			}
			if c := after.Containers["prepare"]; c.Attempt != before.Containers["prepare"].Attempt {
				t.Errorf("its init container has attempt %d: the restart count would begin anew", c.Attempt)
			}
			if c := before.Containers["prepare"]; c.State != rikv1alpha1.ContainerExited || *c.ExitCode != 0 {
				t.Errorf("the record that was given is changed: %+v", c)
			}
		})
	}
}

func TestLosesMemory(t *testing.T) {
	t.Parallel()
	memory := rikv1alpha1.Volume{Name: "m", EmptyDir: &rikv1alpha1.EmptyDirVolume{InMemory: true}}
	for name, tc := range map[string]struct {
		change func(*rikv1alpha1.InstanceTemplate)
		want   bool
	}{
		"a volume on disk":                    {func(*rikv1alpha1.InstanceTemplate) {}, false},
		"a volume in the memory of a microVM": {func(t *rikv1alpha1.InstanceTemplate) { t.Volumes = append(t.Volumes, memory) }, true},
		"a volume in the memory of the node": {func(t *rikv1alpha1.InstanceTemplate) {
			t.Isolation, t.Volumes = "", append(t.Volumes, memory)
		}, false},
		"settings of the network": {func(t *rikv1alpha1.InstanceTemplate) {
			t.Isolation = ""
			t.InitContainers[0].Security = &rikv1alpha1.Security{AddCapabilities: []string{"NET_ADMIN"}}
		}, true},
		"settings of the node's network": {func(t *rikv1alpha1.InstanceTemplate) {
			t.Isolation, t.HostNetwork = "", true
			t.InitContainers[0].Security = &rikv1alpha1.Security{Privileged: true}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			template := lossRecord(rikv1alpha1.RestartAlways, nil).Instance.Template
			tc.change(&template)
			if got := losesMemory(template); got != tc.want {
				t.Errorf("losesMemory() = %v, want %v", got, tc.want)
			}
		})
	}
}

// The disk is compared with the one that the record contains, whenever the riklet learns of it.
func TestOtherDiskIsALoss(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		was, is string
		change  func(*state.Record)
		lost    bool
	}{
		"the first disk":                   {"", "a", func(r *state.Record) { r.Containers = map[string]state.Container{} }, false},
		"the same disk":                    {"a", "a", nil, false},
		"another disk":                     {"a", "b", nil, true},
		"a disk after one without an ID":   {"", "b", nil, true},
		"another disk without volumes":     {"a", "b", func(r *state.Record) { r.Instance.Template.Volumes = nil }, false},
		"a container instead of a microVM": {"", "", func(r *state.Record) { r.Instance.Template.Isolation = "" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := lossRecord(rikv1alpha1.RestartAlways, tc.change)
			r.Disk = tc.was
			m := newMachine(&Driver{cfg: Config{}.withDefaults()}, r)
			m.ranWith(tc.is, "gone")
			again := m.rec.Containers["prepare"].State == "" && len(r.Containers) > 0
			if again != tc.lost || m.rec.Disk != tc.is {
				t.Errorf("the record is %+v, want its init container again: %v", m.rec, tc.lost)
			}
			last := m.rec.Containers["main"].Last
			if tc.lost && (last == nil || last.Reason != reasonVolumesLost || last.Message != "the microVM ended; its volumes were lost: gone") {
				t.Errorf("the last end is %+v", last)
			}
		})
	}
}
