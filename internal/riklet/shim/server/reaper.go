package server

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reaper takes the ends of all children: the runtimes that were called, the
// containers' processes, which become ours when their runtime ends, and other
// orphans, which nobody asks for.
type reaper struct {
	sigs chan os.Signal

	mu      sync.Mutex // guards what follows; held while a child is reaped or signalled
	waiting map[int]chan int
	// strays are ends that nobody waits for yet. A container may end before its
	// start has learned its number; they are kept only while one is under way.
	strays   map[int]int
	starting int
}

func newReaper() *reaper {
	r := &reaper{sigs: make(chan os.Signal, 1), waiting: map[int]chan int{}, strays: map[int]int{}}
	signal.Notify(r.sigs, syscall.SIGCHLD)
	return r
}

func (r *reaper) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.sigs:
			r.reap()
		}
	}
}

func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		r.endedLocked(pid, exitCode(status))
	}
}

func (r *reaper) endedLocked(pid, code int) {
	if waiter := r.waiting[pid]; waiter != nil {
		delete(r.waiting, pid)
		waiter <- code // has room for the one value that it ever gets
		return
	}
	if r.starting > 0 {
		r.strays[pid] = code
	}
}

// exitCode is what a shell would say: 128+n for signal n.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// begin and finish enclose a start, in which ends of unknown children are kept.
func (r *reaper) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting++
}

func (r *reaper) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.starting--; r.starting == 0 {
		clear(r.strays)
	}
}

// spawn starts a child and gives its number and the channel of its exit code.
func (r *reaper) spawn(argv []string, attr *syscall.ProcAttr) (int, <-chan int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return 0, nil, err
	}
	return pid, r.waitLocked(pid), nil
}

// wait gives the channel of the exit code of a child that another made.
func (r *reaper) wait(pid int) <-chan int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waitLocked(pid)
}

func (r *reaper) waitLocked(pid int) <-chan int {
	ended := make(chan int, 1)
	if code, ok := r.strays[pid]; ok {
		delete(r.strays, pid)
		ended <- code
		return ended
	}
	r.waiting[pid] = ended
	return ended
}

// kill signals a child that has not been reaped, or its group if target is -pid; for
// one that has it does nothing, since its number may be another's by now.
func (r *reaper) kill(pid, target int, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[pid] == nil {
		return nil
	}
	if err := unix.Kill(target, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}
