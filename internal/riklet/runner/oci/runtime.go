package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/runner/engine"
)

var (
	// ErrRuntime is returned for a runtime that the node does not have.
	ErrRuntime = errors.New("this node has no such runtime")
	// ErrOldRunc is returned by CheckRunc for a runc version with known vulnerabilities.
	ErrOldRunc = errors.New("runc is too old: a container can escape from it (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881); " +
		"install 1.2.8, 1.3.3, 1.4.0 or later")
)

// program calls one OCI runtime with runc's command line, which other runtimes accept as well.
type program struct {
	name, path, root string
}

func (e *pods) runtimeOf(name string) (program, error) {
	if name == "" || name == DefaultRuntime {
		return program{DefaultRuntime, e.cfg.Runc, e.dirs.runtimeRoot(DefaultRuntime)}, nil
	}
	path, ok := e.cfg.Runtimes[name]
	if !ok || !engine.ValidName(name) {
		return program{}, fmt.Errorf("%w: %q", ErrRuntime, name)
	}
	return program{name, path, e.dirs.runtimeRoot(name)}, nil
}

// runtimes lists all runtimes of the node.
func (e *pods) runtimes() []program {
	list := []program{{DefaultRuntime, e.cfg.Runc, e.dirs.runtimeRoot(DefaultRuntime)}}
	for name := range e.cfg.Runtimes {
		if r, err := e.runtimeOf(name); err == nil && name != DefaultRuntime {
			list = append(list, r)
		}
	}
	return list
}

// runArgs returns the command line that starts a container and returns.
func (r program) runArgs(id, bundle, pidFile, log, console string) []string {
	args := []string{r.path, "--root", r.root, "--log", log, "--log-format", "json", "run", "--detach",
		"--bundle", bundle, "--pid-file", pidFile}
	if console != "" {
		args = append(args, "--console-socket", console)
	}
	return append(args, id)
}

// callTimeout bounds a call of a runtime, which usually takes milliseconds.
const callTimeout = 2 * time.Minute

func (r program) call(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("%s did not end", r.name))
	defer cancel()
	cmd := exec.CommandContext(ctx, r.path, append([]string{"--root", r.root}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("calling %s %s: %w: %s", r.name, args[0], err, bytes.TrimSpace(out[:min(len(out), 1000)]))
	}
	return nil
}

// delete ends a container if it runs, and removes the runtime's state for it. It is no error if
// the runtime does not have the container.
func (r program) delete(ctx context.Context, id string) error {
	if _, err := os.Lstat(filepath.Join(r.root, id)); errors.Is(err, fs.ErrNotExist) {
		return nil // saves a process in the usual case
	}
	// With --force, runc waits 100 ms even for a container that has ended. So --force is only for
	// a container that still runs or whose state is broken.
	if r.call(ctx, "delete", id) == nil {
		return nil
	}
	return r.call(ctx, "delete", "--force", id)
}

func (r program) kill(ctx context.Context, id string, signal syscall.Signal) error {
	return r.call(ctx, "kill", id, strconv.Itoa(int(signal)))
}

// The number of attempts to pause a container, and the time between two attempts. runc gives up
// after 0.3 s if the processes of a version 1 cgroup got no processor time meanwhile: about every
// millisecond it thaws them and starts again.
const (
	maxHoldCalls   = 10
	holdAgainAfter = 100 * time.Millisecond
)

// hold pauses or resumes a container. It is no error if the container is already in that state,
// because an earlier call may have reached only some of the instance's containers.
func (r program) hold(ctx context.Context, id string, held bool) error {
	order, status := "resume", "running"
	if held {
		order, status = "pause", "paused"
	}
	for n := 1; ; n++ {
		err := r.call(ctx, order, id)
		if err == nil || r.status(ctx, id) == status {
			return nil
		}
		if n == maxHoldCalls {
			return err
		}
		if !pause.For(ctx, holdAgainAfter) {
			return err
		}
	}
}

// status returns the state that the runtime reports for a container, or "" if the runtime does
// not have it.
func (r program) status(ctx context.Context, id string) string {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var state struct {
		Status string `json:"status"`
	}
	out, err := exec.CommandContext(ctx, r.path, "--root", r.root, "state", id).Output()
	if err != nil || json.Unmarshal(out, &state) != nil {
		return ""
	}
	return state.Status
}

// states lists the containers for which the runtime has a state directory.
func (r program) states() []string {
	entries, err := os.ReadDir(r.root)
	if err != nil {
		return nil
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids
}

// CheckRunc returns ErrOldRunc for a runc version with known vulnerabilities.
func CheckRunc(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return fmt.Errorf("getting the version of %s: %w", path, err)
	}
	version, ok := runcVersion(string(out))
	if ok && !isSafeVersion(version) {
		return fmt.Errorf("%w (%s is %d.%d.%d)", ErrOldRunc, path, version[0], version[1], version[2])
	}
	return nil
}

var runcVersionLine = regexp.MustCompile(`(?m)^runc version v?(\d+)\.(\d+)\.(\d+)`)

// runcVersion reads the version from the output of runc --version. ok is false if another program
// printed it, such as crun.
func runcVersion(out string) (version [3]int, ok bool) {
	m := runcVersionLine.FindStringSubmatch(out)
	if m == nil {
		return version, false
	}
	for i := range version {
		version[i], _ = strconv.Atoi(m[i+1])
	}
	return version, true
}

// isSafeVersion reports whether a runc version has the fixes of November 2025, by the first fixed
// release of each branch.
func isSafeVersion(v [3]int) bool {
	switch {
	case v[0] != 1:
		return v[0] > 1
	case v[1] == 2:
		return v[2] >= 8
	case v[1] == 3:
		return v[2] >= 3
	default:
		return v[1] >= 4
	}
}
