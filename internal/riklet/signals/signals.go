// Package signals takes back what a process has inherited of the way signals are
// handled. An ignored signal stays ignored in every program that is executed after,
// so that a node agent that was started by nohup would make containers that cannot
// hear SIGHUP. The Go runtime leaves an ignored SIGHUP and SIGINT as they were, and
// never looks at the two signals that it leaves to the C library.
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
	last   = 64 // _NSIG of every architecture that Go runs on but MIPS
	ignore = 1  // SIG_IGN of the kernel's uapi
	// sets is the size of the kernel's sigset_t, which rt_sigaction(2) asks for.
	sets = last / 8
)

// action is the kernel's struct sigaction, or more than it: the architectures differ
// in what follows the handler, and of no use to us.
type action struct {
	handler uintptr
	_       [4]uintptr
}

// Restore gives every ignored signal the default action again; handlers stay. It
// may be called at any time.
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

// Ignore gives every ignored signal the default action, but for a hang-up that this
// process was started to survive (nohup): that one is caught and dropped, which a
// child does not inherit.
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
