package cgroup

import (
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

func TestLeftIsWhatMustBeLeft(t *testing.T) {
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
			if diff := cmp.Diff(tc.want, tc.layout.left(tc.own)); diff != "" {
				t.Errorf("left() (-want +got):\n%s", diff)
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
	for _, want := range []string{"no cgroup hierarchy", "nsenter --net", "mount -t cgroup2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("check() = %v, want it to say %q", err, want)
		}
	}
	for _, fine := range []Layout{{Unified: "/sys/fs/cgroup"}, {V1: map[string]string{"cpu": "/cpu"}}} {
		if err := fine.check(); err != nil {
			t.Errorf("check() of %v = %v", fine, err)
		}
	}
}
