// Package guestinit is the init of a microVM. It serves the guest's end of the protocol (package
// guest) and does what the node requests.
//
// [Server] implements the protocol and runs anywhere. [Main] is for process 1 of a VM: it prepares
// a freshly started kernel and then serves the node. [Machine] is the part that differs: [Kernel]
// is that of a VM. Fake VMMs (package vmmfake) have one that runs ordinary processes.
package guestinit

import (
	"context"
	"io"
	"net"
	"os"

	"rik.dev/rik/internal/riklet/guest"
)

// Machine has the operations of an init. It is safe for concurrent use.
type Machine interface {
	// Configure is called once, before Start. Volumes include their files.
	Configure(c guest.Config) error
	Files(v guest.Volume) error
	Thaw(i guest.Identity) error
	// Start starts a process. stdin says whether it gets a pipe for its input.
	Start(p guest.Process, stdin bool) (*Child, error)
	Dial(ctx context.Context, port int32) (net.Conn, error)
	Usage() (guest.Usage, error)
	// Stop kills every process and writes all data to the disks.
	Stop() error
	// PowerOff ends the machine. It may return if it cannot do that.
	PowerOff()
}

// Child is a started process, with the machine's ends of its streams.
type Child struct {
	PID int
	// Stdin is nil without input. With a terminal, all three are the same end of it.
	Stdin          io.WriteCloser
	Stdout, Stderr *os.File
	TTY            *os.File
	// Signal sends a signal. Kill kills the process and its descendants.
	Signal func(signal int) error
	Kill   func()
	// Wait may be called only once.
	Wait func() guest.Exit
}
