// Package interrupt has tests end in good order when they are told to stop: what waits
// fails, what has not begun does not begin, and each test removes what it made, as after
// any other failure. A process that only ended would leave what outlives it by design:
// instances, their supervisors, mounts.
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

// Done is closed when the tests are to stop.
func Done() <-chan struct{} { return sent.Done() }

// Cause says why the tests are to stop; nil if they are not.
func Cause() error { return context.Cause(sent) }

// Handle has the first SIGINT or SIGTERM tell the tests to stop, from the first call on. The
// second ends the process as ever.
func Handle() { handle() }

var handle = sync.OnceFunc(func() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Stop(signals)
		fmt.Fprintf(os.Stderr, "%s: what the tests made is removed first; again, and it is left\n", s)
		send(errors.New("the tests were told to stop: " + s.String()))
	}()
})

// HandleTimeout tells the tests to stop when no more than remove is left of the time that
// they have: when that is over everything ends where it is. It wants the flags parsed.
func HandleTimeout(remove time.Duration) {
	if d, err := time.ParseDuration(flag.Lookup("test.timeout").Value.String()); err == nil && d > 2*remove {
		time.AfterFunc(d-remove, func() { send(errOutOfTime) })
	}
}
