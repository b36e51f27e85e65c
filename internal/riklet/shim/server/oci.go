package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/logfile"
)

// runContainer calls the OCI runtime with the pipes of the log. The runtime exits and leaves the
// container's process.
func (s *Server) runContainer(ctx context.Context, o shim.Start) (*live, error) {
	out, err := newOutput(o)
	if err != nil {
		return nil, err
	}
	s.reaper.begin() // keep exits of unknown processes until the container's PID is known
	defer s.reaper.finish()
	pid, err := s.call(ctx, o, out)
	if err != nil {
		return nil, errors.Join(err, out.finish(time.Now()))
	}
	return s.child(pid, s.reaper.wait(pid), out), nil
}

// call runs the runtime and returns the container's process ID. If a runtime is canceled, the
// processes that it leaves, also those of the container, are killed with its cgroup.
func (s *Server) call(ctx context.Context, o shim.Start, out *output) (pid int, err error) {
	for _, file := range []string{o.PIDFile, o.RuntimeLog} {
		_ = os.Remove(file) // of an earlier attempt
	}
	// Only the path: the supervisor's other settings, which keep it small, would make a runtime
	// slow.
	attr := &syscall.ProcAttr{Env: []string{"PATH=" + os.Getenv("PATH")}, Files: out.childFDs(), Sys: &syscall.SysProcAttr{Setsid: true}}
	runtime, ended, err := s.reaper.spawn(o.Argv, attr)
	out.closeChildFDs()
	if err != nil {
		return 0, fmt.Errorf("calling the runtime %s: %w", o.Argv[0], err)
	}
	defer context.AfterFunc(ctx, func() { _ = s.reaper.kill(runtime, -runtime, syscall.SIGKILL) })()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	if out.console != nil {
		if err := out.receive(ended); err != nil {
			return 0, fmt.Errorf("%w%s", err, runtimeError(o.RuntimeLog))
		}
	}
	if code := out.result(ended); code != 0 {
		return 0, fmt.Errorf("the runtime exited with %d%s", code, runtimeError(o.RuntimeLog))
	}
	data, err := os.ReadFile(o.PIDFile)
	if err != nil {
		return 0, fmt.Errorf("reading the container's process ID: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// refusal returns the reason why a program was not executed: the text that the runtime's process
// wrote to the program's output, with a remedy.
func refusal(o shim.Start) string {
	var text bytes.Buffer
	err := logfile.Read(context.Background(), o.LogDir, logfile.Options{Tail: 1}, &text)
	why := strings.TrimSpace(text.String())
	if err != nil || why == "" {
		return "the program could not be executed"
	}
	switch {
	case strings.HasSuffix(why, syscall.ENOEXEC.Error()):
		return why + " (it is neither a program for this architecture nor a script that begins with #!)"
	case strings.HasSuffix(why, syscall.ENOENT.Error()):
		return why + " (the file exists, but its interpreter or dynamic loader does not)"
	}
	return excerpt.Prefix(why, maxRuntimeError)
}

// maxRuntimeError limits the text from a runtime, in bytes.
const maxRuntimeError = 2000

// runtimeError returns the error in the runtime's log, in the form ": reason".
func runtimeError(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	last := ""
	for line := range bytes.Lines(data) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal(line, &entry) == nil && (entry.Level == "error" || entry.Level == "fatal") {
			last = entry.Msg
		}
	}
	if last == "" {
		return ""
	}
	return ": " + excerpt.Prefix(last, maxRuntimeError)
}
