package schema

import (
	"flag"
	"os"
	"runtime/debug"
	"testing"

	"rik.dev/rik/internal/testkit/race"
)

// TestMain collects garbage more seldom: the tests make much of it and keep little,
// and a quarter of their time went there.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	if race.Enabled {
		if err := flag.Set("rapid.checks", "10"); err != nil { // -rapid.checks still decides
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// cases is how many a test tries: few under the race detector, for nothing in the package
// is concurrent. hack/test.sh runs these tests a second time without it.
func cases(all, raced uint64) uint64 {
	if race.Enabled {
		return raced
	}
	return all
}
