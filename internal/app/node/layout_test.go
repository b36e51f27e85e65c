package node

import (
	"path/filepath"
	"testing"

	"rik.dev/rik/internal/install/layout"
	"rik.dev/rik/internal/riklet"
)

// TestLayoutHasTheDefaults: a removal removes the directories that the programs use by default.
func TestLayoutHasTheDefaults(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		layout.StateDir: riklet.DefaultStateDir, layout.RunDir: riklet.DefaultRunDir, filepath.Join(layout.DataDir, "data"): filepath.Clean(DefaultDataDir),
	} {
		if got != want {
			t.Errorf("the layout has %s, and the default of the programs is %s", got, want)
		}
	}
}
