package apitest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/apitest"
)

// forEver are goroutines that one server or a hundred leave in a process: the
// flushing of klog, and the rotation of audit logs.
const forEver = 2

// TestStopLeavesNothing is not parallel, and so ends before the shared server
// of the parallel tests starts.
func TestStopLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	s := apitest.Start(t)
	s.Namespace(t)
	if err := s.Stop(); err != nil {
		t.Fatalf("Stop() = %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(s.DataDir, "datastore", "run", "*")); err != nil || len(left) > 0 {
		t.Errorf("sockets after the stop: %v, %v", left, err)
	}
	if open := openFiles(t, s.DataDir); len(open) > 0 {
		t.Errorf("files open after the stop: %v", open)
	}
	// Run has returned, and what remains is on its last lines.
	deadline := time.Now().Add(apitest.Patience)
	for runtime.NumGoroutine() > before+forEver {
		if time.Now().After(deadline) {
			var stacks bytes.Buffer
			if err := pprof.Lookup("goroutine").WriteTo(&stacks, 1); err != nil {
				t.Fatal(err)
			}
			t.Fatalf("%d goroutines before the start, %d after the stop:\n%s", before, runtime.NumGoroutine(), stacks.String())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func openFiles(t *testing.T, dir string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && len(target) > len(dir) && target[:len(dir)] == dir {
			open = append(open, target)
		}
	}
	return open
}
