package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

func TestShares(t *testing.T) {
	t.Parallel()
	for milliCPU, want := range map[int64]uint64{-1: 2, 0: 2, 1: 2, 10: 10, 250: 256, 1000: 1024, 64_000: 65_536, 1 << 40: 262_144} {
		if got := Shares(milliCPU); got != want {
			t.Errorf("Shares(%d) = %d, want %d", milliCPU, got, want)
		}
	}
}

// TestWeigh checks the files that SetWeight writes, for cgroup v1 and v2. The test creates the
// files first, as a kernel does with the group.
func TestWeigh(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		layout func(root string) Layout
		files  map[string]string // before
		want   map[string]string
	}{
		"v1": {
			layout: func(root string) Layout { return Layout{V1: map[string]string{"cpu": root}} },
			files:  map[string]string{"rik/one/cpu.shares": "1024"},
			want:   map[string]string{"rik/one/cpu.shares": "512"},
		},
		"v1 and a v2 without the controller": {
			layout: func(root string) Layout {
				return Layout{V1: map[string]string{"cpu": root}, Unified: filepath.Join(root, "unified")}
			},
			files: map[string]string{"rik/one/cpu.shares": "1024"},
			want:  map[string]string{"rik/one/cpu.shares": "512"},
		},
		"v2": {
			layout: func(root string) Layout { return Layout{Unified: root} },
			files: map[string]string{
				"cgroup.controllers": "cpuset cpu memory", "cgroup.subtree_control": "",
				"rik/cgroup.controllers": "cpu memory", "rik/cgroup.subtree_control": "",
				"rik/one/cgroup.controllers": "cpu memory", "rik/one/cgroup.subtree_control": "", "rik/one/cpu.weight": "100",
			},
			// 512 of 262,144 shares are 59 of 10,000 in runc's formula.
			want: map[string]string{"rik/one/cpu.weight": "59", "rik/cgroup.subtree_control": "+memory"},
		},
		"v2 without the controller": {
			layout: func(root string) Layout { return Layout{Unified: root} },
			files:  map[string]string{"cgroup.controllers": "memory", "rik/cgroup.controllers": "memory", "rik/one/cgroup.controllers": "memory"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for path, content := range tc.files {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := tc.layout(root).SetWeight("/rik/one", 500); err != nil {
				t.Fatal(err)
			}
			for path, want := range tc.want {
				got, err := os.ReadFile(filepath.Join(root, path))
				if err != nil || string(got) != want {
					t.Errorf("%s is %q (%v), want %q", path, got, err, want)
				}
			}
			if _, err := os.Stat(filepath.Join(root, "rik/one/cpu.weight")); name == "v2 without the controller" && err == nil {
				t.Error("a file was made that only a kernel can make")
			}
		})
	}
}

// TestUnthrottle checks the files that Unthrottle writes, for cgroup v1 and v2. A parent group
// keeps its limit.
func TestUnthrottle(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		layout func(root string) Layout
		file   string
		want   string
	}{
		"v1": {func(root string) Layout { return Layout{V1: map[string]string{"cpu": root}} }, "cpu.cfs_quota_us", "-1"},
		"v2": {func(root string) Layout { return Layout{Unified: root} }, "cpu.max", "max"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for _, group := range []string{"rik", "rik/one", "rik/one/c", "rik/one/c/own", "rik/two"} {
				if err := os.MkdirAll(filepath.Join(root, group), 0o755); err != nil {
					t.Fatal(err)
				}
				if group == "rik/one" {
					continue // without the controller
				}
				if err := os.WriteFile(filepath.Join(root, group, tc.file), []byte("20000"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			layout := tc.layout(root)
			for _, group := range []string{"/rik/one", "/rik/one", "/rik/none"} {
				if err := layout.Unthrottle(group); err != nil {
					t.Errorf("Unthrottle(%s) = %v", group, err)
				}
			}
			for group, want := range map[string]string{"rik": "20000", "rik/one/c": tc.want, "rik/one/c/own": tc.want, "rik/two": "20000"} {
				if got, err := os.ReadFile(filepath.Join(root, group, tc.file)); err != nil || string(got) != want {
					t.Errorf("%s of %s is %q (%v), want %q", tc.file, group, got, err, want)
				}
			}
			if _, err := os.Stat(filepath.Join(root, "rik/one", tc.file)); err == nil {
				t.Error("a file was made that only a kernel can make")
			}
		})
	}
}
