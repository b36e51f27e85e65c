package debug

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"rik.dev/rik/internal/executable"
)

// The services of rik, and how much of their journal is read.
const (
	unitServer   = "rik"
	unitNode     = "riklet"
	journalLines = 20000
	// commandTimeout bounds each program.
	commandTimeout = time.Minute
)

// local is the machine on which rikctl runs. Tests have another one.
type local struct {
	// root is in front of all paths; empty on a real machine.
	root string
	// run runs a program and returns its output, also with an error.
	run func(ctx context.Context, name string, args ...string) ([]byte, error)
}

func thisMachine() local {
	return local{run: func(ctx context.Context, name string, args ...string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, commandTimeout)
		defer cancel()
		path, err := executable.Find(name)
		if err != nil {
			return nil, err
		}
		var out, problem bytes.Buffer
		c := exec.CommandContext(ctx, path, args...)
		c.Stdout, c.Stderr = &out, &problem
		if err := c.Run(); err != nil {
			return out.Bytes(), fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(problem.String()))
		}
		return out.Bytes(), nil
	}}
}

// settings are files with the settings of rik, as patterns.
var settings = []string{"/etc/default/rik", "/etc/default/riklet", "/etc/rik/*", "/etc/rik/*/*", "/etc/systemd/system/rik*.service.d/*", "/etc/sysctl.d/90-rik.conf", "/etc/modules-load.d/rik.conf"}

// marks are files and directories of which each shows that rik is on a machine.
var marks = []string{"/var/lib/rik", "/var/lib/riklet", "/etc/default/rik", "/etc/default/riklet", "/etc/rik"}

// here reports whether rik is on the machine.
func (l local) here() bool {
	for _, m := range marks {
		if _, err := os.Stat(filepath.Join(l.root, m)); err == nil {
			return true
		}
	}
	return false
}

// collectLocal adds what is on this machine, if rik is on it.
func collectLocal(ctx context.Context, b *bundle, l local, o options) {
	if !l.here() {
		return
	}
	l.doctor(ctx, b)
	for _, unit := range []string{unitServer, unitNode} {
		status, err := l.run(ctx, "systemctl", "status", "--no-pager", "--lines=0", "--full", unit)
		if len(status) > 0 {
			err = nil // the exit code is that of a unit that does not run
		}
		b.text("local/status-"+unit+".txt", status, err)
		log, err := l.run(ctx, "journalctl", "--unit", unit, "--no-pager", "--output=short-iso", fmt.Sprintf("--lines=%d", journalLines), fmt.Sprintf("--since=-%ds", int(o.since.Seconds())))
		b.text("local/journal-"+unit+".txt", log, err)
	}
	for _, pattern := range settings {
		files, _ := filepath.Glob(filepath.Join(l.root, pattern)) // only a wrong pattern is an error
		for _, file := range files {
			if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() {
				continue
			}
			data, err := os.ReadFile(file)
			b.text("local"+strings.TrimPrefix(file, l.root), data, err)
		}
	}
}

// doctor adds the report of rik doctor. The program rik is on a server, and riklet on a node. An exit
// code other than 0 means that there are findings.
func (l local) doctor(ctx context.Context, b *bundle) {
	var out []byte
	var err error
	for _, program := range []string{"rik", "riklet"} {
		out, err = l.run(ctx, program, "doctor", "-o", "json")
		if len(out) > 0 || !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if len(out) > 0 {
		err = nil
	}
	b.text("local/doctor.json", out, err)
}
