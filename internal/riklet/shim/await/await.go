// Package await runs an OCI runtime that starts a command in a container, and stands for the
// command until that ends.
//
// Without --detach, runc reads the command's output through pipes of its own, and does not end
// before every process that holds them has: a command that leaves one in the background would
// seem to run on. With --detach the command has the caller's streams, and runc ends when the
// command runs; who called it then has to wait for a process that is not its child. The
// program here makes itself the parent of orphans, so that the command becomes its child.
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

// Word is the first argument with which rik-shim calls [Run].
const Word = "await"

// codeFailed is runc's own for what it could not do.
const codeFailed = 255

// Arguments are those of rik-shim for a runtime, with its own arguments, that writes the
// command's process ID to pidFile.
func Arguments(pidFile, path string, args []string) []string {
	return append([]string{Word, pidFile, path}, args...)
}

// Run does what the arguments after Word say, and ends the process: with the code of the
// command, with 128 and the number of the signal that killed it, or with the runtime's code
// when there is no command.
func Run(args []string) {
	if len(args) < 2 {
		fail(errors.New("the riklet calls this program; it is of no use by hand"))
	}
	// The death signal of the runtime is about the thread that starts it.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fail(fmt.Errorf("becoming the parent of orphans: %w", err))
	}
	cmd := exec.Command(args[1], args[2:]...) //nolint:gosec // the riklet's own runtime
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
		return 0, fmt.Errorf("reading which process the command is: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("the runtime says that the command is process %.20q", text)
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
