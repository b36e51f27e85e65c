// Package guestinit is the init of a microVM: it serves the guest's end of the protocol
// (package guest) and does what the node asks, to the machine that it is init of.
//
// Serve is the protocol and runs anywhere. Boot makes a freshly started kernel into a
// machine that Serve can use, and is for process 1 of a VM alone. What differs is the
// Machine: Kernel is the real one; Plain runs processes as they are, for doubles of a
// VMM on a developer's machine.
package guestinit

import (
	"context"
	"io"
	"net"
	"os"

	"rik.dev/rik/internal/riklet/guest"
)

// Machine is what an init can do. Any goroutine may call its methods.
type Machine interface {
	// Configure is called once, before Start; volumes come with their files.
	Configure(c guest.Config) error
	Files(v guest.Volume) error
	Thaw(i guest.Identity) error
	// Start starts a process; stdin tells whether it gets a pipe for its input.
	Start(p guest.Process, stdin bool) (*Child, error)
	Dial(ctx context.Context, port int32) (net.Conn, error)
	Usage() (guest.Usage, error)
	// Stop kills every process and writes everything to the disks.
	Stop() error
	// PowerOff ends the machine. It may return, where it cannot.
	PowerOff()
}

// Child is a process that was started, with the machine's ends of its streams.
type Child struct {
	PID int
	// Stdin is nil without input. With a terminal all three are its one end.
	Stdin          io.WriteCloser
	Stdout, Stderr *os.File
	TTY            *os.File
	// Signal sends a signal, Kill ends it and all that came from it.
	Signal func(signal int) error
	Kill   func()
	// Wait is called once.
	Wait func() guest.Exit
}
