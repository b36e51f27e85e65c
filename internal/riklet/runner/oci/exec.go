package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/command"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim/await"
)

func (e *pods) Exec(ctx context.Context, in engine.Running, name string, o instance.ExecOptions) (int, error) {
	uid := in.Instance.UID
	r, err := e.runtimeOf(in.Instance.Template.Runtime)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(e.dirs.Bundle(uid, name), execPrefix)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", instance.ErrNotRunning, err)
	}
	defer os.RemoveAll(dir)
	if err := begin(dir); err != nil {
		return 0, fmt.Errorf("running the command: %w", err)
	}
	pidFile, log := filepath.Join(dir, "pid"), filepath.Join(dir, "log")
	args := []string{"--root", r.root, "--log", log, "--log-format", "json", "exec", "--pid-file", pidFile}
	args = append(args, "--tty="+strconv.FormatBool(o.TTY))
	path, detach := r.path, !o.TTY && in.Instance.Template.Runtime == ""
	if detach { // only for runc is it known how to wait for the process
		args = append(args, "--detach")
	}
	if o.TTY && !command.HasTerm(e.environmentOf(uid, name)) {
		args = append(args, "--env", command.DefaultTerm)
	}
	args = append(append(args, engine.ContainerID(uid, name)), o.Command...)
	if detach {
		path, args = e.host.Node().Shim, await.Arguments(pidFile, r.path, args)
	}
	x := &command.Execution{Options: o, Cmd: exec.CommandContext(ctx, path, args...)}
	x.Cmd.WaitDelay = command.Stuck
	// The command leads a session inside the container. That session ends first, and then the
	// runtime that waits for it.
	x.Cmd.Cancel = func() error {
		if pid, ok := waitForPIDFile(pidFile); ok {
			command.KillSession(pid)
		}
		return x.Cmd.Process.Kill()
	}
	x.Start = func() error {
		if err := x.Cmd.Start(); err != nil {
			return fmt.Errorf("calling the runtime: %w", err)
		}
		return nil
	}
	x.Refused = func() (int, error, bool) {
		why, refused := lastError(log)
		if refused {
			code, err := failedBeforeStart(why)
			return code, err, true
		}
		if _, ran := notedProcess(pidFile); ran {
			return 0, nil, false
		}
		// The exit code is the runtime's own: it could not even log why it failed.
		return 0, fmt.Errorf("running the command: the runtime ended with code %d before the command ran; the node may be out of memory, processes or space", x.Cmd.ProcessState.ExitCode()), true
	}
	return x.Run(ctx)
}

// environmentOf returns the environment with which a container was started.
func (e *pods) environmentOf(uid, name string) []string {
	var config struct {
		Process struct {
			Env []string `json:"env"`
		} `json:"process"`
	}
	if engine.ReadJSON(filepath.Join(e.dirs.Bundle(uid, name), "config.json"), &config) != nil {
		return nil
	}
	return config.Process.Env
}

// The runtime writes a process's PID file just after the process has begun. If the runtime were
// killed in between, the process would run on without an owner.
const (
	noteTimeout = 2 * time.Second
	notePoll    = 5 * time.Millisecond
)

func waitForPIDFile(pidFile string) (pid int, ok bool) {
	for end := time.Now().Add(noteTimeout); ; time.Sleep(notePoll) {
		if pid, ok := notedProcess(pidFile); ok || time.Now().After(end) {
			return pid, ok
		}
	}
}

// lastError returns the last entry in a runtime's log, and whether it is an error. A runtime logs
// nothing when a command that it ran exits with an error, and the command cannot write to the
// log.
func lastError(path string) (string, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", false
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	var entry struct{ Level, Msg string }
	if json.Unmarshal([]byte(lines[len(lines)-1]), &entry) != nil {
		return "", false
	}
	return entry.Msg, entry.Level == "error"
}

// failedBeforeStart returns the result of a command that the runtime could not run. The runtime has
// already written the reason to the user, and its exit code is one that a command may return as
// well. A failure that is not about the program is returned as an error.
func failedBeforeStart(why string) (int, error) {
	switch {
	case strings.Contains(why, "executable file") && strings.Contains(why, "not found"):
		return command.CodeNotFound, nil
	case !strings.Contains(why, "exec"), strings.Contains(why, "chdir"), strings.Contains(why, "setns"):
		return 0, fmt.Errorf("running the command: %s", why)
	case strings.Contains(why, "no such file or directory"):
		return command.CodeNotFound, nil
	case strings.Contains(why, "permission denied"), strings.Contains(why, "is a directory"),
		strings.Contains(why, "exec format error"), strings.Contains(why, "not a directory"), strings.Contains(why, "text file busy"):
		return command.CodeNotRunnable, nil
	default:
		return 0, fmt.Errorf("running the command: %s", why)
	}
}
