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

// reaper takes the ends of all children: the runtimes that were called, the
// containers' processes, which become ours when their runtime ends, and other
// orphans, which nobody asks for.
type reaper struct {
	sigs chan os.Signal

	mu      sync.Mutex // guards what follows; held while a child is reaped or signaled
	waiting map[int]chan exit
	// strays are ends that nobody waits for yet. A container may end before its
	// start has learned its number; they are kept only while one is under way.
	strays   map[int]exit
	starting int
}

// exit is how a process ended.
type exit struct {
	code int // as a shell has it
	// unexecuted: it was still the runtime's own, and not yet the container's program.
	unexecuted bool
}

func newReaper() *reaper {
	r := &reaper{sigs: make(chan os.Signal, 1), waiting: map[int]chan exit{}, strays: map[int]exit{}}
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
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // until it is reaped
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

// runcInit is the name of runc's own process in a container, up to the moment at which it
// executes the container's program. When that fails it can tell nobody but its stderr.
const runcInit = "runc:[2:INIT]"

// ended gives a child that has ended and is to be reaped; 0: there is none.
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
		// si_pid is the fifth word of the siginfo_t of 64-bit machines: the union that it
		// is in holds pointers.
		return int((*[5]int32)(unsafe.Pointer(&info))[4])
	}
}

func (r *reaper) endedLocked(pid int, e exit) {
	if waiter := r.waiting[pid]; waiter != nil {
		delete(r.waiting, pid)
		waiter <- e // has room for the one value that it ever gets
		return
	}
	if r.starting > 0 {
		r.strays[pid] = e
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

// spawn starts a child and gives its number and the channel of its end.
func (r *reaper) spawn(argv []string, attr *syscall.ProcAttr) (int, <-chan exit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return 0, nil, err
	}
	return pid, r.waitLocked(pid), nil
}

// wait gives the channel of the end of a child that another made.
func (r *reaper) wait(pid int) <-chan exit {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waitLocked(pid)
}

func (r *reaper) waitLocked(pid int) <-chan exit {
	ended := make(chan exit, 1)
	if e, ok := r.strays[pid]; ok {
		delete(r.strays, pid)
		ended <- e
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
