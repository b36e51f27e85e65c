package output

import (
	"io"
	"log/slog"
	"testing"
)

// logged is how much of the end of a log is shown, in bytes.
const logged = 64 << 10

// OfFailed returns a writer for output that is useful only if the test fails. It is printed
// then, limited to its last logged bytes. It is printed after all cleanups that the test
// registers later.
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

// Logger returns a logger with level debug, whose lines are shown if the test fails.
func Logger(tb testing.TB) *slog.Logger {
	tb.Helper()
	return slog.New(slog.NewTextHandler(OfFailed(tb), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
