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

// aloneEnv names the test that runs in a separate process.
const aloneEnv = "RIK_E2E_ALONE"

// Alone runs a test in a new process with a new network namespace, in parallel with other such
// tests. In that process it returns true. Otherwise it waits for that process, shows its output,
// fails if the process fails, and returns false; the caller must then return. A test or subtest
// calls it first. Code before the call runs in both processes.
//
//	if !rikcluster.Alone(t) {
//		return
//	}
func Alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(aloneEnv) == t.Name() {
		return true
	}
	// Parallel tests continue once all non-parallel ones have begun. By then all waiting
	// top-level tests are known. Subtests are not known in advance.
	if !strings.Contains(t.Name(), "/") {
		queue.announce(t.Name())
	}
	t.Parallel()
	queue.take(t.Name())
	defer queue.give()
	if err := interrupt.Cause(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], aloneArgs(t)...)
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

// aloneArgs returns the flags of the process: this test, with its requested subtests.
func aloneArgs(t *testing.T) []string {
	value := func(name string) string { return flag.Lookup("test." + name).Value.String() }
	args := []string{"-test.run=" + patternOf(t.Name(), value("run")), "-test.v=" + value("v"), "-test.count=1"}
	if end, ok := t.Deadline(); ok {
		// The process must time out first, so that its output shows where it hangs.
		args = append(args, "-test.timeout="+(time.Until(end)-5*time.Second).String())
	}
	return args
}

// patternOf returns a -run pattern for one test and its subtests that asked selects. If asked
// contains alternatives, it selects all subtests.
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

// withoutFrame removes the lines of a test process about the test itself and its parents,
// because this process prints them too. It keeps the lines about subtests, so that readers of
// the output (go test -json) find them.
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
