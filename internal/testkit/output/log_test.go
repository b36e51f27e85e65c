package output_test

import (
	"fmt"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/output"
)

// outcome is a test that has failed or passed.
type outcome struct {
	testing.TB

	failed   bool
	cleanups []func()
	shown    string
}

func (o *outcome) Helper()          {}
func (o *outcome) Failed() bool     { return o.failed }
func (o *outcome) Cleanup(f func()) { o.cleanups = append(o.cleanups, f) }
func (o *outcome) Log(args ...any)  { o.shown += fmt.Sprint(args...) }

// TestLogIsShownOfFailedTests checks that a failed test shows the end of a long log, and a
// passed one shows nothing.
func TestLogIsShownOfFailedTests(t *testing.T) {
	t.Parallel()
	for _, failed := range []bool{true, false} {
		o := &outcome{TB: t, failed: failed}
		log := output.Logger(o)
		log.Debug("the first line")
		for i := range 10000 {
			log.Info(fmt.Sprintf("line %d", i), "filler", strings.Repeat("x", 100))
		}
		log.Debug("the last line")
		for _, end := range o.cleanups {
			end()
		}
		if got := strings.Contains(o.shown, "the last line"); got != failed {
			t.Errorf("the log's end is shown of a test that failed, %v: %v", failed, got)
		}
		if strings.Contains(o.shown, "the first line") {
			t.Error("the beginning of a log of a megabyte is shown")
		}
	}
}
