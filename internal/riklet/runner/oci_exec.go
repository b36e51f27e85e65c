package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/shim/await"
)

func (e ociEngine) exec(ctx context.Context, m *machine, name string, o instance.ExecOptions) (int, error) {
	d, uid := e.d, m.uid
	r, err := d.runtimeOf(m.rec.Instance.Template.Runtime)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(d.bundle(uid, name), execPrefix)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", instance.ErrNotRunning, err)
	}
	defer os.RemoveAll(dir)
	pidFile, log := filepath.Join(dir, "pid"), filepath.Join(dir, "log")
	args := []string{"--root", r.root, "--log", log, "--log-format", "json", "exec", "--pid-file", pidFile}
	args = append(args, "--tty="+strconv.FormatBool(o.TTY))
	path, detach := r.path, !o.TTY && m.rec.Instance.Template.Runtime == ""
	if detach { // only for runc is it known how to wait for the process
		args = append(args, "--detach")
	}
	if o.TTY && !hasVariable(d.environmentOf(uid, name), termName) {
		args = append(args, "--env", defaultTerm)
	}
	args = append(append(args, containerID(uid, name)), o.Command...)
	if detach {
		path, args = d.cfg.Shim, await.Arguments(pidFile, r.path, args)
	}
	x := &execution{o: o, cmd: exec.CommandContext(ctx, path, args...)}
	x.cmd.WaitDelay = stuckCommand
	// The command leads a session inside the container. That session ends first, and then the
	// runtime that waits for it.
	x.cmd.Cancel = func() error {
		if pid, ok := awaitNoted(pidFile); ok {
			killSession(pid)
		}
		return x.cmd.Process.Kill()
	}
	x.start = func() error {
		if err := x.cmd.Start(); err != nil {
			return fmt.Errorf("calling the runtime: %w", err)
		}
		return nil
	}
	x.refused = func() (int, error, bool) {
		why, refused := lastError(log)
		if refused {
			code, err := neverRan(why)
			return code, err, true
		}
		if _, _, ran := notedProcess(pidFile); ran {
			return 0, nil, false
		}
		// The exit code is the runtime's own: it could not even log why it failed.
		return 0, fmt.Errorf("running the command: the runtime ended with code %d before the command ran; the node may be out of memory, processes or space", x.cmd.ProcessState.ExitCode()), true
	}
	return x.do(ctx)
}

// A program on a terminal must know the type of the terminal. Every client's terminal understands
// the control sequences of xterm.
const (
	termName    = "TERM"
	defaultTerm = termName + "=xterm"
)

func hasVariable(env []string, name string) bool {
	return slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
}

// environmentOf returns the environment with which a container was started.
func (d *Driver) environmentOf(uid, name string) []string {
	var config struct {
		Process struct {
			Env []string `json:"env"`
		} `json:"process"`
	}
	if readJSON(filepath.Join(d.bundle(uid, name), "config.json"), &config) != nil {
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

func awaitNoted(pidFile string) (pid int, ok bool) {
	for end := time.Now().Add(noteTimeout); ; time.Sleep(notePoll) {
		if pid, _, ok := notedProcess(pidFile); ok || time.Now().After(end) {
			return pid, ok
		}
	}
}

func killSession(pid int) {
	_ = unix.Kill(-pid, unix.SIGKILL)
	_ = unix.Kill(pid, unix.SIGKILL)
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

// neverRan returns the result of a command that the runtime could not run. The runtime has
// already written the reason to the user, and its exit code is one that a command may return as
// well. A failure that is not about the program is returned as an error.
func neverRan(why string) (int, error) {
	switch {
	case strings.Contains(why, "executable file") && strings.Contains(why, "not found"):
		return codeNotFound, nil
	case !strings.Contains(why, "exec"), strings.Contains(why, "chdir"), strings.Contains(why, "setns"):
		return 0, fmt.Errorf("running the command: %s", why)
	case strings.Contains(why, "no such file or directory"):
		return codeNotFound, nil
	case strings.Contains(why, "permission denied"), strings.Contains(why, "is a directory"),
		strings.Contains(why, "exec format error"), strings.Contains(why, "not a directory"), strings.Contains(why, "text file busy"):
		return codeNotRunnable, nil
	default:
		return 0, fmt.Errorf("running the command: %s", why)
	}
}
