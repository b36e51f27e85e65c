package plan

import (
	"flag"
	"os"
	"testing"

	"rik.dev/rik/internal/testkit/race"
)

// TestMain draws fewer histories under the race detector; hack/test.sh runs the
// properties a second time without it.
func TestMain(m *testing.M) {
	if race.Enabled {
		if err := flag.Set("rapid.checks", "8"); err != nil { // -rapid.checks still decides
			panic(err)
		}
	}
	os.Exit(m.Run())
}
