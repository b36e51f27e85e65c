package schema

import (
	"flag"
	"os"
	"runtime/debug"
	"testing"

	"rik.dev/rik/internal/testkit/race"
)

// TestMain runs the garbage collector less often. The tests allocate much and keep little, and a
// quarter of their time was garbage collection.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	if race.Enabled {
		// the flag -rapid.checks overrides it
		if err := flag.Set("rapid.checks", "10"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// cases returns the number of cases of a test. It is small under the race detector, because the
// package has no concurrency. hack/test.sh runs these tests again without the race detector.
func cases(all, raced uint64) uint64 {
	if race.Enabled {
		return raced
	}
	return all
}
