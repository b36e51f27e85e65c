package apiserver_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/apitest"
)

// forEver is the number of goroutines that stay in a process after one or many servers: the
// flushing of klog, and the rotation of audit logs.
const forEver = 2

// TestAlone checks process-wide state. It is not parallel, so it ends before the shared server
// of the parallel tests starts.
func TestAlone(t *testing.T) { //nolint:paralleltest // other servers would be seen
	before := runtime.NumGoroutine()
	s := apitest.Start(t)
	s.Namespace(t)
	assertNoPortOfTheDatastore(t, s)
	if err := s.Stop(); err != nil {
		t.Fatalf("Stop() = %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(s.DataDir, "datastore", "run", "*")); err != nil || len(left) > 0 {
		t.Errorf("sockets after the stop: %v, %v", left, err)
	}
	if open := openFiles(t, s.DataDir); len(open) > 0 {
		t.Errorf("files open after the stop: %v", open)
	}
	// Run has returned. The remaining goroutines are about to end.
	deadline := time.Now().Add(apitest.Timeout)
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

// assertNoPortOfTheDatastore checks that the datastore listens only on sockets in a private
// directory.
func assertNoPortOfTheDatastore(t *testing.T, s *apitest.Server) {
	t.Helper()
	inodes := ownSockets(t)
	number, err := strconv.Atoi(s.URL[strings.LastIndex(s.URL, ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		for _, fields := range rows(t, table) {
			if len(fields) > 9 && fields[3] == "0A" && inodes[fields[9]] && !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", number)) {
				t.Errorf("%s: this process listens on %s", table, fields[1])
			}
		}
	}
	found := 0
	for _, fields := range rows(t, "/proc/net/unix") {
		// The columns are Num RefCount Protocol Flags Type St Inode Path. Flag 0x10000 means that
		// the socket listens.
		if len(fields) < 7 || fields[3] != "00010000" || !inodes[fields[6]] {
			continue
		}
		found++
		if len(fields) < 8 || !strings.Contains(fields[7], "/run/") || strings.HasPrefix(fields[7], "@") {
			t.Errorf("/proc/net/unix: this process listens on %v, outside the private directory", fields[7:])
		}
	}
	if found == 0 {
		t.Error("found no unix socket of the datastore: the test looks in the wrong place")
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
