package nested

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Node is the program that Run keeps running.
type Node struct {
	// Argv is the program and its arguments.
	Argv []string
	// Final lists the exit codes with which another start does not help.
	Final []int
	// Again is the time before another start, and Grace the time that processes have after SIGTERM
	// when the container stops.
	Again, Grace time.Duration
	Logger       *slog.Logger
}

// The default times of a Node.
const (
	DefaultAgain = time.Second
	DefaultGrace = 5 * time.Second
)

// First is the process ID of the first process of a container.
const First = 1

var errNotFirst = errors.New("this process is not the first one of a container, and it would stop all processes of the machine")

// ended is a process that has ended.
type ended struct {
	pid    int
	status unix.WaitStatus
}

// Run runs the node until SIGTERM or SIGINT, and returns its exit code. It must be called from the
// goroutine that called Prepare. Instances run on while the riklet is started again. At the end,
// Run sends SIGTERM to all processes of the container and waits for them: the container stops like a
// machine that shuts down.
func (n Node) Run() (int, error) {
	if os.Getpid() != First {
		return 0, errNotFirst
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGCHLD)
	defer signal.Stop(signals)
	for {
		process, err := os.StartProcess(n.Argv[0], n.Argv, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
		if err != nil {
			return 0, fmt.Errorf("starting the node: %w", err)
		}
		pid := process.Pid
		_ = process.Release() // reap waits for all processes
		code, stopping := n.await(pid, signals)
		if stopping {
			return code, n.stopOthers(signals)
		}
		if slices.Contains(n.Final, code) {
			return code, nil
		}
		n.Logger.Warn("the riklet has ended and will be started again; instances continue to run", "code", code, "after", n.Again)
		if !pauseFor(n.Again, signals) {
			return code, n.stopOthers(signals)
		}
	}
}

// await waits until the process ends, and forwards the request to stop.
func (n Node) await(pid int, signals <-chan os.Signal) (code int, stopping bool) {
	for {
		all, _ := reap()
		for _, e := range all {
			if e.pid == pid {
				return exitCode(e.status), stopping
			}
		}
		if s := <-signals; s != unix.SIGCHLD {
			stopping = true
			_ = unix.Kill(pid, unix.SIGTERM)
		}
	}
}

// pauseFor waits for d and collects processes meanwhile. It returns false if the container must stop.
func pauseFor(d time.Duration, signals <-chan os.Signal) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case s := <-signals:
			if s != unix.SIGCHLD {
				return false
			}
			_, _ = reap()
		}
	}
}

// stopOthers ends all other processes of the container. Those that remain after the time end with
// the container.
func (n Node) stopOthers(signals <-chan os.Signal) error {
	if err := unix.Kill(-1, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("stopping the processes of the instances: %w", err)
	}
	timer := time.NewTimer(n.Grace)
	defer timer.Stop()
	for {
		if _, more := reap(); !more {
			return nil
		}
		select {
		case <-timer.C:
			n.Logger.Warn("processes of instances did not end and are killed", "after", n.Grace)
			return nil
		case <-signals:
		}
	}
}

// reap collects the processes that have ended, and reports whether there are others.
func reap() (all []ended, more bool) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return all, false // ECHILD
		case pid == 0:
			return all, true
		default:
			all = append(all, ended{pid, status})
		}
	}
}

// exitCode returns the code of a shell for a status.
func exitCode(s unix.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}
