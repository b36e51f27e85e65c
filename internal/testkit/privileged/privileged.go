// Package privileged guards the tests that need root: they mount file
// systems, make network namespaces or start containers. They are compiled
// with everything else, so that they cannot rot, and run only when asked.
package privileged

import (
	"fmt"
	"os"
	"testing"

	"rik.dev/rik/internal/testkit/interrupt"
)

const (
	// EnvAsk is the variable that asks for the privileged tests when it is "1".
	EnvAsk = "RIK_PRIVILEGED"
	// EnvLog names a file to which every privileged test that goes on appends
	// its name. A CI job reads it to prove that the tests were not skipped.
	EnvLog = "RIK_PRIVILEGED_LOG"
	// EnvLong asks for the long form of the tests that have one when it is "1".
	EnvLong = "RIK_E2E_LONG"
)

// Asked reports whether the caller of the tests asked for the privileged ones.
func Asked() bool { return os.Getenv(EnvAsk) == "1" }

// Long reports whether the caller of the tests has hours: what takes them, thousands of
// instances or hundreds of kills, is tried in small otherwise, or left out.
func Long() bool { return os.Getenv(EnvLong) == "1" }

// Require skips the test unless the privileged tests were asked for. When they
// were, and the process is not root, the test fails: a skip there would make a
// misconfigured CI job look green.
//
// From the first of them on, the first Ctrl-C ends the tests in good order.
func Require(tb testing.TB) {
	tb.Helper()
	if !Asked() {
		tb.Skipf("needs root: set %s=1 to run it", EnvAsk)
	}
	if uid := os.Geteuid(); uid != 0 {
		tb.Fatalf("%s=1 is set and the effective user is %d, not root", EnvAsk, uid)
	}
	interrupt.Handle()
	if err := interrupt.Cause(); err != nil {
		tb.Fatal(err)
	}
	if path := os.Getenv(EnvLog); path != "" {
		if err := record(path, tb.Name()); err != nil {
			tb.Fatalf("record that the test ran: %v", err)
		}
	}
}

// record appends one line. Test binaries of several packages run at once:
// O_APPEND and a single write keep their lines whole.
func record(path, name string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(f, name); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
