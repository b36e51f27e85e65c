// Package await runs an OCI runtime that starts a command in a container, and represents the
// command until it ends.
//
// Without --detach, runc reads the command's output through its own pipes. It does not exit
// before every process that holds the pipes has ended, so a command that leaves a process in the
// background would seem to continue. With --detach the command has the caller's streams, and
// runc exits when the command runs. The caller would then have to wait for a process that is not
// its child. This program makes itself the parent of orphans, so that the command becomes its
// child.
package await

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Word is the first argument of rik-shim that calls [Run].
const Word = "await"

// codeFailed is runc's exit code for its own errors.
const codeFailed = 255

// Arguments returns the arguments of rik-shim that run a runtime at path, with args. The runtime
// writes the command's process ID to pidFile.
func Arguments(pidFile, path string, args []string) []string {
	return append([]string{Word, pidFile, path}, args...)
}

// Run executes the arguments after Word, and ends the process. The exit code is that of the
// command, or 128 and the number of the signal that killed it. If there is no command, it is the
// runtime's code.
func Run(args []string) {
	if len(args) < 2 {
		fail(errors.New("the riklet starts this program; do not start it yourself"))
	}
	// The parent-death signal of the runtime depends on the thread that starts it.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fail(fmt.Errorf("becoming a child subreaper: %w", err))
	}
	cmd := exec.Command(args[1], args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fail(fmt.Errorf("calling the runtime: %w", err))
	}
	code, err := wait(args[0])
	if err != nil {
		fail(err)
	}
	os.Exit(code)
}

// wait waits for the process whose ID is in a file.
func wait(pidFile string) (code int, err error) {
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, fmt.Errorf("reading the process ID of the command: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("the runtime reports an invalid process ID of the command, %.20q", text)
	}
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("waiting for the command, process %d: %w", pid, err)
		case status.Signaled():
			return 128 + int(status.Signal()), nil
		default:
			return status.ExitStatus(), nil
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "rik-shim:", err)
	os.Exit(codeFailed)
}
