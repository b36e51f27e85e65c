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
