package output

import (
	"io"
	"log/slog"
	"testing"
)

// logged is how much of the end of a log is shown, in bytes.
const logged = 64 << 10

// OfFailed is where a test writes what is of use only when it fails. It is printed then,
// as much of its end as logged, after all that the test registers with Cleanup later.
func OfFailed(tb testing.TB) io.Writer {
	tb.Helper()
	b := &Buffer{}
	tb.Cleanup(func() {
		if text := b.String(); tb.Failed() && text != "" {
			tb.Log(text[max(0, len(text)-logged):])
		}
	})
	return b
}

// Logger is a logger, from debug on, whose lines are shown when the test fails.
func Logger(tb testing.TB) *slog.Logger {
	tb.Helper()
	return slog.New(slog.NewTextHandler(OfFailed(tb), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
