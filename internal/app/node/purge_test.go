package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A slip in a flag, such as the parent of what was meant, had purge remove all that is
// there, and the agent make it private.
func TestDirectoriesOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		has  []string
		want string // empty: it is taken
	}{
		"nothing":       {nil, ""},
		"a node's":      {[]string{"images/layers", "lock", "pods"}, ""},
		"cut short":     {[]string{"images/layers"}, ""},
		"somebody's":    {[]string{"images/holiday.jpg", "taxes"}, "--dir DIR is not a node's: it has images in it, and nothing that a node makes there (lock, images/layers)"},
		"one with dots": {[]string{".ssh"}, "it has .ssh in it"},
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
