package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindDirs(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	if err := os.Mkdir(filepath.Join(full, "netns"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		state, run string
		want       string // empty: no error
	}{
		"relative":    {"state", "run", ""},
		"none":        {"", "/run/none", "--state-dir \"\" is not a directory"},
		"a comma":     {"/var/a,b", "/run/none", "--state-dir \"/var/a,b\" contains a comma"},
		"a colon":     {"/var/a:b", "/run/none", "contains a comma, a colon"},
		"a backslash": {"/var/a", `/run/no\ne`, "--run-dir"},
		"in use":      {"/var/a", full, "--run-dir " + full + " does not belong to a node: it contains netns"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Options{StateDir: tc.state, RunDir: tc.run}
			err := errors.Join(o.findDirs()...)
			switch {
			case tc.want == "" && (err != nil || !filepath.IsAbs(o.StateDir) || !filepath.IsAbs(o.RunDir)):
				t.Errorf("findDirs: %q, %q, %v", o.StateDir, o.RunDir, err)
			case tc.want != "" && (!errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("findDirs: %v, want %q", err, tc.want)
			}
		})
	}
}

// A mistake in a flag, such as the parent of the right directory, must not make purge delete
// other files there, or make the agent restrict the directory's permissions.
func TestDirectoriesOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		has  []string
		want string // empty: accepted
	}{
		"nothing":       {nil, ""},
		"a node's":      {[]string{"images/layers", "lock", "pods"}, ""},
		"cut short":     {[]string{"images/layers"}, ""},
		"somebody's":    {[]string{"images/holiday.jpg", "taxes"}, "--dir DIR does not belong to a node: it contains images, and no file of a node (lock, images/layers)"},
		"one with dots": {[]string{".ssh"}, "it contains .ssh"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, name := range tc.has {
				if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			err := requireNodes("--dir", dir, "lock", "images/layers")
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (!errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), strings.ReplaceAll(tc.want, "DIR", dir))):
				t.Errorf("requireNodes = %v, want %q", err, tc.want)
			}
		})
	}
	if err := requireNodes("--dir", filepath.Join(t.TempDir(), "none"), "lock"); err != nil {
		t.Errorf("where there is none: %v", err)
	}
}
