package schema

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain collects garbage more seldom: the tests make much of it and keep little,
// and a quarter of their time went there.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
