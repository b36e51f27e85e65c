package rikcluster

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/interrupt"
)

// aloneEnv names the test that runs in a process of its own.
const aloneEnv = "RIK_E2E_ALONE"

// Alone has a test run in a process and a network namespace of its own, beside other
// tests that do. In that process it is true. Else it waits for that process, shows what
// it says, fails when it fails, and is false: then there is nothing left to do. A test
// or a subtest begins with it, and with nothing that could not be done twice before it:
//
//	if !rikcluster.Alone(t) {
//		return
//	}
func Alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(aloneEnv) == t.Name() {
		return true
	}
	// Tests go on together once all were begun that are not parallel: then it is known who
	// will come. Subtests come when they come.
	if !strings.Contains(t.Name(), "/") {
		queue.announce(t.Name())
	}
	t.Parallel()
	queue.take(t.Name())
	defer queue.give()
	if err := interrupt.Cause(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], aloneArgs(t)...) //nolint:gosec // this very program
	cmd.Env = append(os.Environ(), aloneEnv+"="+t.Name(), inside+"=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := cmd.CombinedOutput()
	if testing.Verbose() {
		_, _ = os.Stdout.Write(withoutFrame(out, t.Name()))
	} else if err != nil {
		t.Logf("in a process of its own:\n%s", out)
	}
	if err != nil {
		t.Errorf("the process of the test: %v", err)
	}
	return false
}

// aloneArgs are the flags of the process: this test, with those of its subtests that
// were asked for.
func aloneArgs(t *testing.T) []string {
	value := func(name string) string { return flag.Lookup("test." + name).Value.String() }
	args := []string{"-test.run=" + patternOf(t.Name(), value("run")), "-test.v=" + value("v"), "-test.count=1"}
	if end, ok := t.Deadline(); ok {
		// It ends first, and tells where it hangs.
		args = append(args, "-test.timeout="+(time.Until(end)-5*time.Second).String())
	}
	return args
}

// patternOf is a -run pattern for one test, and within it for what another asks for;
// for all within it where that asks for one thing or another.
func patternOf(name, asked string) string {
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = "^" + regexp.QuoteMeta(parts[i]) + "$"
	}
	if elements := strings.Split(asked, "/"); len(elements) > len(parts) && !strings.Contains(asked, "|") {
		parts = append(parts, elements[len(parts):]...)
	}
	return strings.Join(parts, "/")
}

// withoutFrame drops what a test process says of the test itself and of those around
// it, which this process says too. What it says of subtests stays as it is, so that
// what reads the output (go test -json) finds them.
func withoutFrame(out []byte, name string) []byte {
	var kept bytes.Buffer
	mark := ""
	for line := range strings.Lines(string(out)) {
		text, marked := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "\x16")
		if marked {
			mark = "\x16"
		}
		if !frames(text, name) {
			kept.WriteString(line)
		}
	}
	kept.WriteString(mark + "=== NAME  " + name + "\n")
	return kept.Bytes()
}

var frameLine = regexp.MustCompile(`^(?:=== (?:RUN|PAUSE|CONT) +|--- (?:PASS|FAIL|SKIP): )(\S+)`)

func frames(line, name string) bool {
	if line == "PASS" || line == "FAIL" {
		return true
	}
	found := frameLine.FindStringSubmatch(strings.TrimLeft(line, " "))
	return found != nil && (found[1] == name || strings.HasPrefix(name, found[1]+"/"))
}
