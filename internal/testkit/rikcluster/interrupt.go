package rikcluster

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// interrupted ends when the tests are to stop. What waits then fails, so that tests remove
// what they made, as after any other failure.
var interrupted, interrupt = context.WithCancelCause(context.Background())

// timeToRemove is left of the time that the tests have, for a test that waits to fail and to
// remove what it made: when that time is over everything ends where it is.
const timeToRemove = Patience + time.Minute

var errOutOfTime = errors.New("the time that the tests have (-timeout) is nearly over")

// heedInterrupts has the first SIGINT or SIGTERM stop what waits. The second ends the
// process as ever.
func heedInterrupts() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Stop(signals)
		interrupt(errors.New("the tests were told to stop: " + s.String()))
	}()
	if d, err := time.ParseDuration(flag.Lookup("test.timeout").Value.String()); err == nil && d > 2*timeToRemove {
		time.AfterFunc(d-timeToRemove, func() { interrupt(errOutOfTime) })
	}
}
