// Package netns makes network namespaces, and runs work in them and in those of other processes.
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Of opens the network namespace of a process. The file keeps the namespace.
func Of(pid int) (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
}

// New makes a network namespace that nothing but the file keeps. Its loopback is down.
func New() (*os.File, error) {
	var namespace *os.File
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		var left bool
		var err error
		if namespace, left, err = create(); left {
			runtime.UnlockOSThread()
		} // else the thread, which is in the wrong place, ends with the goroutine
		done <- err
	}()
	if err := <-done; err != nil {
		return nil, fmt.Errorf("making a network namespace: %w", err)
	}
	return namespace, nil
}

// create does the work of New. left is true if the thread is in its own namespace again.
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

// Within runs work on a thread that is in the given network namespace, and waits
// for it. A socket belongs to the namespace that its thread was in when it was made,
// and /proc/sys/net shows that of the thread which looks. Work that starts goroutines
// leaves the namespace with them.
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
		} // else the thread, which is in the wrong place, ends with the goroutine
		done <- err
	}()
	return <-done
}

// enter moves the thread into a network namespace, if it is not there already.
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
