// Package leak checks, when the tests of a process have ended, for goroutines of rik that still
// run. Each Run guarantees that everything that it started has ended when it returns.
//
//	func TestMain(m *testing.M) { os.Exit(leak.After(kcptest.RunMain(m))) }
//
// It ignores goroutines of libraries, because Kubernetes' servers keep a few forever.
package leak

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// module is part of the name of every function of rik.
const module = "rik.dev/rik/"

// timeout allows for goroutines that are about to end on a busy machine.
const timeout = time.Minute

// After returns the exit code of the tests. If the tests passed but goroutines of rik still run,
// it returns a failure.
func After(code int) int {
	if code != 0 {
		return code
	}
	left := await(timeout)
	if len(left) == 0 {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%d goroutines run after all tests have ended:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
	return 1
}

// await waits until no such goroutine runs, and returns the last ones that it saw.
func await(timeout time.Duration) []string {
	deadline := time.Now().Add(timeout)
	for pause := time.Millisecond; ; pause *= 2 {
		left := Running()
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		<-time.After(min(pause, time.Second))
	}
}

// Running returns the stacks of the goroutines that run functions of rik or were started by one,
// except the caller's.
func Running() []string {
	all := make([]byte, 1<<20)
	for {
		n := runtime.Stack(all, true)
		if n < len(all) {
			all = all[:n]
			break
		}
		all = make([]byte, 2*len(all))
	}
	var found []string
	for i, stack := range strings.Split(strings.TrimSpace(string(all)), "\n\n") {
		// The first one is the caller's.
		if i > 0 && strings.Contains(stack, module) && !isConnection(stack) {
			found = append(found, stack)
		}
	}
	return found
}

// isConnection reports whether a goroutine reads or writes one end of an HTTP connection,
// through a net.Conn of rik. It ends when the other end does.
func isConnection(stack string) bool {
	_, creator, _ := strings.Cut(stack, "\ncreated by ")
	return strings.HasPrefix(creator, "net/http.") || strings.HasPrefix(creator, "golang.org/x/net/http2.")
}
