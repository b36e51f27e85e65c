// Package privileged guards the tests that need root: they mount file systems, create network
// namespaces or start containers. They are compiled with all other tests, so that they stay up
// to date, but run only on request.
package privileged

import (
	"fmt"
	"os"
	"testing"

	"rik.dev/rik/internal/testkit/interrupt"
)

const (
	// EnvAsk requests the privileged tests if it is "1".
	EnvAsk = "RIK_PRIVILEGED"
	// EnvLog names a file to which every privileged test that runs appends its name. A CI job
	// reads it to prove that the tests were not skipped.
	EnvLog = "RIK_PRIVILEGED_LOG"
	// EnvLong requests the long form of tests if it is "1".
	EnvLong = "RIK_E2E_LONG"
)

// Asked reports whether privileged tests are requested.
func Asked() bool { return os.Getenv(EnvAsk) == "1" }

// Long reports whether tests may take hours. Otherwise tests with thousands of instances or
// hundreds of kills run in a small form, or are skipped.
func Long() bool { return os.Getenv(EnvLong) == "1" }

// Require skips the test unless privileged tests are requested. If they are requested and the
// process is not root, the test fails: a skip would make a misconfigured CI job look green.
//
// After the first call, the first Ctrl-C ends the tests in good order.
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

// record appends one line. Test binaries of several packages run at the same time; O_APPEND and
// a single write keep their lines from mixing.
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
