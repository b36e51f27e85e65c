package plan

import (
	"flag"
	"os"
	"testing"
)

// TestMain draws fewer histories under the race detector; hack/test.sh runs the
// properties a second time without it.
func TestMain(m *testing.M) {
	if raceEnabled {
		if err := flag.Set("rapid.checks", "20"); err != nil { // -rapid.checks still decides
			panic(err)
		}
	}
	os.Exit(m.Run())
}
