// Package interrupt ends tests in good order when they are interrupted. Waiting tests fail,
// further tests do not begin, and each test removes what it created, as after any other failure.
// If the process simply ended, it would leave everything that outlives it by design: instances,
// their supervisors, mounts.
package interrupt

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

var sent, send = context.WithCancelCause(context.Background())

var errOutOfTime = errors.New("the time that the tests have (-timeout) is nearly over")

// Done returns a channel that is closed when the tests must stop.
func Done() <-chan struct{} { return sent.Done() }

// Cause returns the reason why the tests must stop; nil if they need not.
func Cause() error { return context.Cause(sent) }

// Handle makes the first SIGINT or SIGTERM after the first call stop the tests. The second
// signal ends the process as usual.
func Handle() { handle() }

var handle = sync.OnceFunc(func() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Stop(signals)
		fmt.Fprintf(os.Stderr, "%s: removing the objects of the tests; send the signal again to leave them\n", s)
		send(errors.New("the tests received the signal to stop: " + s.String()))
	}()
})

// HandleTimeout stops the tests when only the time remove is left of their -timeout. When that
// expires, the process ends immediately. The flags must be parsed before.
func HandleTimeout(remove time.Duration) {
	if d, err := time.ParseDuration(flag.Lookup("test.timeout").Value.String()); err == nil && d > 2*remove {
		time.AfterFunc(d-remove, func() { send(errOutOfTime) })
	}
}
