package guestinit

import (
	"errors"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// reaper waits for every child of process 1, including those that it inherits.
type reaper struct {
	mu      sync.Mutex
	waiting map[int]chan unix.WaitStatus
}

func newReaper() *reaper {
	r := &reaper{waiting: map[int]chan unix.WaitStatus{}}
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	go func() {
		for range died {
			r.reap()
		}
	}()
	return r
}

// spawn starts a child and returns a channel for its exit status. The reaper is locked
// meanwhile, so the status of a child that ends at once is not lost.
func (r *reaper) spawn(start func() (int, error)) (int, <-chan unix.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := start()
	if err != nil {
		return 0, nil, err
	}
	ended := make(chan unix.WaitStatus, 1)
	r.waiting[pid] = ended
	return pid, ended, nil
}

func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ended, ok := r.waiting[pid]; ok {
			ended <- status
			delete(r.waiting, pid)
		}
	}
}

// signal sends a signal to a child that has not been reaped, so its PID is still valid.
func (r *reaper) signal(pid, sig int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.waiting[pid]; !ok {
		return nil
	}
	if err := unix.Kill(pid, unix.Signal(sig)); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// exitCode converts a status to an exit code as a shell does.
func exitCode(status unix.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
