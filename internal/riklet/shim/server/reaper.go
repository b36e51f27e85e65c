package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reaper waits for all children: the runtimes, the containers' processes, which become children
// of the supervisor when their runtime exits, and other orphans, whose exits are dropped.
type reaper struct {
	sigs chan os.Signal

	mu      sync.Mutex // guards the fields below; held while a child is reaped or signaled
	waiting map[int]chan exit
	// unclaimedExits are exits without a waiter. A container may end before the start has read its
	// PID. They are stored only while a start is in progress.
	unclaimedExits map[int]exit
	starting       int
}

// exit describes how a process ended.
type exit struct {
	code int // as in a shell
	// unexecuted means that the process was still the runtime's and had not executed the
	// container's program.
	unexecuted bool
}

func newReaper() *reaper {
	r := &reaper{sigs: make(chan os.Signal, 1), waiting: map[int]chan exit{}, unclaimedExits: map[int]exit{}}
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
		pid := ended()
		if pid <= 0 {
			return
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // before it is reaped
		var status syscall.WaitStatus
		for {
			if _, err := syscall.Wait4(pid, &status, 0, nil); !errors.Is(err, syscall.EINTR) {
				break
			}
		}
		e := exit{code: exitCode(status)}
		e.unexecuted = status.Exited() && e.code != 0 && strings.TrimSpace(string(name)) == runcInit
		r.endedLocked(pid, e)
	}
}

// runcInit is the name of runc's process in a container until it executes the container's
// program. If that fails, it can report the error only on its stderr.
const runcInit = "runc:[2:INIT]"

// ended returns a child that has ended and must be reaped. It returns 0 if no child has ended.
func ended() int {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0
		}
		// si_pid is the fifth word of siginfo_t on 64-bit machines, because the union around it
		// contains pointers.
		return int((*[5]int32)(unsafe.Pointer(&info))[4])
	}
}

func (r *reaper) endedLocked(pid int, e exit) {
	if waiter := r.waiting[pid]; waiter != nil {
		delete(r.waiting, pid)
		waiter <- e // the buffer has room for its only value
		return
	}
	if r.starting > 0 {
		r.unclaimedExits[pid] = e
	}
}

// exitCode returns the exit code as in a shell: 128+n for signal n.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// begin and finish enclose a start. Between them, the exits of unknown children are kept.
func (r *reaper) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting++
}

func (r *reaper) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.starting--; r.starting == 0 {
		clear(r.unclaimedExits)
	}
}

// spawn starts a child. It returns its PID and the channel for its exit.
func (r *reaper) spawn(argv []string, attr *syscall.ProcAttr) (int, <-chan exit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return 0, nil, err
	}
	return pid, r.waitLocked(pid), nil
}

// wait returns the channel for the exit of a child that another process started.
func (r *reaper) wait(pid int) <-chan exit {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waitLocked(pid)
}

func (r *reaper) waitLocked(pid int) <-chan exit {
	ended := make(chan exit, 1)
	if e, ok := r.unclaimedExits[pid]; ok {
		delete(r.unclaimedExits, pid)
		ended <- e
		return ended
	}
	r.waiting[pid] = ended
	return ended
}

// kill signals a child that has not been reaped, or its group if target is -pid. For a reaped
// child it does nothing, because the PID may belong to another process now.
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
