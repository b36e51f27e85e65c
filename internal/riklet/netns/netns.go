// Package netns runs work in the network namespace of another process.
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
