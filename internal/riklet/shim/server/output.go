package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/logfile"
)

// drainTimeout is how long output is read after the first process has ended. The other processes
// of the container are dead by then. Only a descriptor passed to another process could keep a
// pipe open.
const drainTimeout = 2 * time.Second

// output writes a container's output to its log.
type output struct {
	log     *logfile.Writer
	pumps   sync.WaitGroup
	sources []*os.File
	// sinks belong to writers outside output, which have stopped by the time of finish.
	sinks   []*logfile.Stream
	child   []*os.File // the runtime's descriptors 0, 1 and 2
	console *shim.Console
	early   *int // the runtime's exit code, if it exited before the terminal arrived
}

// newLog returns an output without a child process of the supervisor.
func newLog(o shim.Start) (*output, error) {
	log, err := logfile.Create(o.LogDir, o.Attempt, o.LogLimits)
	if err != nil {
		return nil, fmt.Errorf("creating the log: %w", err)
	}
	return &output{log: log}, nil
}

func newOutput(o shim.Start) (*output, error) {
	out, err := newLog(o)
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(err, out.log.Close())
	}
	out.child = []*os.File{null}
	if o.ConsoleSocket != "" {
		out.child = append(out.child, null, null)
		out.console, err = shim.NewConsole(o.ConsoleSocket)
	} else {
		err = errors.Join(out.pipe(logfile.Stdout), out.pipe(logfile.Stderr))
	}
	if err != nil {
		return nil, errors.Join(err, out.finish(time.Now()))
	}
	return out, nil
}

// sink returns a writer for one goroutine, until finish.
func (o *output) sink(stream string) io.Writer {
	sink := o.log.Stream(stream)
	o.sinks = append(o.sinks, sink)
	return sink
}

func (o *output) pipe(stream string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	o.child = append(o.child, w)
	o.copyLines(r, stream)
	return nil
}

func (o *output) copyLines(source *os.File, stream string) {
	o.sources = append(o.sources, source)
	o.pumps.Go(func() {
		sink := o.log.Stream(stream)
		// A terminal ends with EIO, a pipe with EOF, a stuck one with its deadline. All of them
		// only mean the end.
		_, _ = io.CopyBuffer(sink, struct{ io.Reader }{source}, make([]byte, 8<<10))
		sink.Flush()
	})
}

// childFDs returns the descriptors for the child. Fd makes them blocking, as programs expect.
func (o *output) childFDs() []uintptr {
	var fds []uintptr
	for _, f := range o.child {
		fds = append(fds, f.Fd())
	}
	return fds
}

func (o *output) closeChildFDs() {
	for _, f := range o.child {
		_ = f.Close() // null may be in it twice; the second close is harmless
	}
	o.child = nil
}

// consoleTimeout is the timeout for a runtime that neither sends a terminal nor ends.
const consoleTimeout = 2 * time.Minute

// receive receives the terminal. It does not wait for one if the runtime has ended.
func (o *output) receive(ended <-chan exit) error {
	type result struct {
		file *os.File
		err  error
	}
	got := make(chan result, 1)
	go func() {
		f, err := o.console.Receive(time.Now().Add(consoleTimeout))
		got <- result{f, err}
	}()
	var r result
	select {
	case r = <-got:
	case e := <-ended:
		o.early = &e.code
		if e.code != 0 {
			_ = o.console.Close()
			if r = <-got; r.file != nil {
				_ = r.file.Close()
			}
			return fmt.Errorf("the runtime exited with %d", e.code)
		}
		r = <-got
	}
	if r.err != nil {
		return r.err
	}
	o.copyLines(r.file, logfile.Stdout)
	return nil
}

// result waits for the runtime's exit code.
func (o *output) result(ended <-chan exit) int {
	if o.early != nil {
		return *o.early
	}
	return (<-ended).code
}

// finish reads the remaining output until the deadline and closes everything.
func (o *output) finish(deadline time.Time) error {
	o.closeChildFDs()
	if o.console != nil {
		_ = o.console.Close()
	}
	for _, f := range o.sources {
		_ = f.SetReadDeadline(deadline)
	}
	o.pumps.Wait()
	for _, f := range o.sources {
		_ = f.Close()
	}
	for _, sink := range o.sinks {
		sink.Flush()
	}
	return o.log.Close()
}
