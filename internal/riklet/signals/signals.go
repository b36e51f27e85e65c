// Package signals resets the signal actions that a process has inherited. An ignored signal stays
// ignored in every program that the process executes. So a node agent that was started by nohup
// would create containers that ignore SIGHUP. The Go runtime does not change an ignored SIGHUP or
// SIGINT, or the two signals that it leaves to the C library.
package signals

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	last   = 64 // _NSIG of every architecture that Go supports, except MIPS
	ignore = 1  // SIG_IGN of the kernel's uapi
	// sets is the size of the kernel's sigset_t, which rt_sigaction(2) requires.
	sets = last / 8
)

// action is large enough for the kernel's struct sigaction. The architectures differ only in the
// fields after the handler, which this package does not use.
type action struct {
	handler uintptr
	_       [4]uintptr
}

// Restore sets every ignored signal to its default action. Handlers stay. It may be called at any
// time.
func Restore() error {
	for number := 1; number <= last; number++ {
		n := unix.Signal(number)
		if n == unix.SIGKILL || n == unix.SIGSTOP {
			continue
		}
		var now, standard action
		if err := change(number, nil, &now); err != nil {
			return err
		}
		if now.handler != ignore {
			continue
		}
		if err := change(number, &standard, nil); err != nil {
			return err
		}
	}
	return nil
}

// Ignore sets every ignored signal to its default action, except a SIGHUP that was ignored so that
// this process survives a hang-up (nohup). It catches and drops that one, which child processes do
// not inherit.
func Ignore() error {
	if signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	return Restore()
}

func change(number int, to, from *action) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(number), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(from)), sets, 0, 0)
	if errno != 0 {
		return fmt.Errorf("setting the action of signal %d: %w", number, errno)
	}
	return nil
}
