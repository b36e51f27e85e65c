// Package netns creates network namespaces, and runs functions in them and in those of other
// processes.
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Of opens the network namespace of a process. The namespace exists at least as long as the file is
// open.
func Of(pid int) (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
}

// New creates a network namespace that exists as long as the file is open. Its loopback device is
// down.
func New() (*os.File, error) {
	var namespace *os.File
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		var left bool
		var err error
		if namespace, left, err = create(); left {
			runtime.UnlockOSThread()
		} // otherwise the thread is in the wrong namespace, and must end with the goroutine
		done <- err
	}()
	if err := <-done; err != nil {
		return nil, fmt.Errorf("making a network namespace: %w", err)
	}
	return namespace, nil
}

// create does the work of New. left reports whether the thread is in its own namespace again.
func create() (namespace *os.File, left bool, err error) {
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, true, err
	}
	defer own.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, true, os.NewSyscallError("unshare", err)
	}
	namespace, err = os.Open("/proc/thread-self/ns/net")
	return namespace, unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil, err
}

// Within runs work on a thread that is in the given network namespace, and waits for it. A socket
// belongs to the namespace in which its thread was when it created the socket. /proc/sys/net shows
// the namespace of the thread that reads it. Goroutines that work starts are not in the namespace.
func Within(namespace *os.File, work func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back, err := enter(namespace)
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		err = work()
		if back() == nil {
			runtime.UnlockOSThread()
		} // otherwise the thread is in the wrong namespace, and must end with the goroutine
		done <- err
	}()
	return <-done
}

// enter moves the thread into a network namespace, unless it is there already.
func enter(namespace *os.File) (back func() error, err error) {
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	same, err := same(own, namespace)
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	if same {
		return own.Close, nil
	}
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, errors.Join(fmt.Errorf("entering a network namespace: %w", err), own.Close())
	}
	return func() error {
		defer own.Close()
		return unix.Setns(int(own.Fd()), unix.CLONE_NEWNET)
	}, nil
}

func same(a, b *os.File) (bool, error) {
	x, err := a.Stat()
	if err != nil {
		return false, err
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y), err
}
