package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		mounts string
		want   Layout
	}{
		"unified": {
			mounts: "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
			want:   Layout{V1: map[string]string{}, Unified: "/sys/fs/cgroup"},
		},
		"hybrid, two controllers on one mount": {
			mounts: "30 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
				"31 23 0:27 / /sys/fs/cgroup/systemd rw - cgroup none rw,xattr,name=systemd\n" +
				"32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			want: Layout{V1: map[string]string{
				"cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
				"name=systemd": "/sys/fs/cgroup/systemd",
			}, Unified: "/sys/fs/cgroup/unified"},
		},
		"others and short lines": {
			mounts: "1 2 0:3 / /proc rw - proc proc rw\nbroken\n",
			want:   Layout{V1: map[string]string{}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parse(strings.NewReader(tc.mounts))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("parse() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRemaining(t *testing.T) {
	t.Parallel()
	hybrid := Layout{V1: map[string]string{
		"pids": "/c/pids", "memory": "/c/memory", "cpu": "/c/cpu", "cpuacct": "/c/cpu", "name=systemd": "/c/systemd",
	}, Unified: "/c/unified"}
	tests := map[string]struct {
		layout Layout
		own    string
		want   []string
	}{
		"at the root of all":    {hybrid, "3:pids:/\n2:memory:/\n0::/\n", []string{"/c/pids"}},
		"in a systemd service":  {hybrid, "9:name=systemd:/s\n8:cpu,cpuacct:/s\n2:memory:/s\n0::/s\n", []string{"/c/cpu", "/c/memory", "/c/pids", "/c/systemd", "/c/unified"}},
		"v2 alone":              {Layout{Unified: "/c"}, "0::/system.slice/riklet.service\n", []string{"/c"}},
		"v2 alone, at the root": {Layout{Unified: "/c"}, "0::/\n", []string{"/c"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, tc.layout.remaining(tc.own)); diff != "" {
				t.Errorf("remaining() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPathsNameAMountOnce(t *testing.T) {
	t.Parallel()
	l := Layout{V1: map[string]string{"cpu": "/c/cpu", "cpuacct": "/c/cpu"}, Unified: "/c/unified"}
	want := []string{"/c/cpu/rik/u", "/c/unified/rik/u"}
	if diff := cmp.Diff(want, l.Paths("/rik/u")); diff != "" {
		t.Errorf("Paths() (-want +got):\n%s", diff)
	}
}

func TestNoHierarchyHasANextStep(t *testing.T) {
	t.Parallel()
	layout, err := parse(strings.NewReader("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 0:21 / /sys rw - sysfs netns rw\n"))
	if err != nil {
		t.Fatal(err)
	}
	err = layout.check()
	for _, want := range []string{"no mounted cgroup hierarchy", "nsenter --net", "mount -t cgroup2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("check() = %v, want the text %q in it", err, want)
		}
	}
	for _, fine := range []Layout{{Unified: "/sys/fs/cgroup"}, {V1: map[string]string{"cpu": "/cpu"}}} {
		if err := fine.check(); err != nil {
			t.Errorf("check() of %v = %v", fine, err)
		}
	}
}

// Processes in one group are killed together on kernels that support it, like in the kubelet.
func TestGroupsAreKilledAsOne(t *testing.T) {
	t.Parallel()
	unified := func(controllers string) Layout {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte(controllers), 0o600); err != nil {
			t.Fatal(err)
		}
		return Layout{Unified: dir}
	}
	hybrid := unified("memory pids\n")
	hybrid.V1 = map[string]string{"memory": "/c/memory"}
	for name, tc := range map[string]struct {
		layout Layout
		want   bool
	}{
		"v2":                               {unified("cpuset cpu io memory pids\n"), true},
		"v2 without the memory controller": {unified("cpu pids\n"), false},
		"memory in v1":                     {hybrid, false},
	} {
		if got := tc.layout.GroupsOOMKills(); got != tc.want {
			t.Errorf("%s: GroupsOOMKills() = %t, want %t", name, got, tc.want)
		}
		has := slices.Contains(tc.layout.settings("/rik/u", Limits{}), setting{tc.layout.Unified + "/rik/u/memory.oom.group", "1"})
		if has != tc.want {
			t.Errorf("%s: memory.oom.group is set: %t, want %t", name, has, tc.want)
		}
	}
}

func TestOOMKillsOfGroupsBelowCount(t *testing.T) {
	t.Parallel()
	write := func(path, text string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root := t.TempDir()
	write(root+"/v1/rik/u/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
	write(root+"/v1/rik/u/nested/memory.oom_control", "oom_kill 3\n")
	write(root+"/v2/rik/u/memory.events", "oom 1\noom_kill 4\n")
	for name, tc := range map[string]struct {
		layout Layout
		want   uint64
	}{
		"v1": {Layout{V1: map[string]string{"memory": root + "/v1"}, Unified: root + "/v2"}, 5},
		"v2": {Layout{Unified: root + "/v2"}, 4},
	} {
		if got := tc.layout.OOMKills("/rik/u"); got != tc.want {
			t.Errorf("%s: OOMKills() = %d, want %d", name, got, tc.want)
		}
		if got := tc.layout.OOMKills("/rik/none"); got != 0 {
			t.Errorf("%s: OOMKills() of none = %d", name, got)
		}
	}
}
