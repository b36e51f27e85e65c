package nodelock

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
			err := RequireNode("--dir", dir, "lock", "images/layers")
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (!errors.Is(err, ErrNotANode) || !strings.Contains(err.Error(), strings.ReplaceAll(tc.want, "DIR", dir))):
				t.Errorf("RequireNode = %v, want %q", err, tc.want)
			}
		})
	}
	if err := RequireNode("--dir", filepath.Join(t.TempDir(), "none"), "lock"); err != nil {
		t.Errorf("a missing directory: %v", err)
	}
}
