package plan

import (
	"flag"
	"os"
	"testing"

	"rik.dev/rik/internal/testkit/race"
)

// TestMain draws fewer histories under the race detector. hack/test.sh runs the properties again
// without it.
func TestMain(m *testing.M) {
	if race.Enabled {
		// the flag -rapid.checks overrides it
		if err := flag.Set("rapid.checks", "8"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
