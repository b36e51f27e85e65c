package process_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/process"
)

const timeout = time.Minute

func start(t *testing.T, script string) *process.Process {
	t.Helper()
	p, err := process.Start("/bin/sh", filepath.Join(t.TempDir(), "log"), "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func TestStopIsContentWithAGoodEnd(t *testing.T) {
	t.Parallel()
	p := start(t, `trap 'exit 0' TERM; echo it is up at here; while :; do sleep 0.01; done`)
	line, err := p.AwaitLine("is up", timeout)
	if err != nil || line != "it is up at here" {
		t.Fatalf("AwaitLine() = %q, %v", line, err)
	}
	for range 2 {
		if err := p.Stop(); err != nil {
			t.Errorf("Stop() = %v", err)
		}
	}
}

func TestStopReportsABadExit(t *testing.T) {
	t.Parallel()
	p := start(t, `trap 'echo broken; exit 3' TERM; echo up; while :; do sleep 0.01; done`)
	if _, err := p.AwaitLine("up", timeout); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "broken") {
		t.Errorf("Stop() = %v, want the exit status and the last words", err)
	}
}

func TestAwaitLineReportsAnExit(t *testing.T) {
	t.Parallel()
	p := start(t, `echo no port; exit 1`)
	if _, err := p.AwaitLine("ready", timeout); err == nil || !strings.Contains(err.Error(), "no port") {
		t.Errorf("AwaitLine() = %v, want the last words", err)
	}
}
