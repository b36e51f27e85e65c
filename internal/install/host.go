package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strings"
)

// Host is the part of a machine that Install and Uninstall need beyond its files. All methods are
// idempotent.
type Host interface {
	// Usable returns an error if this machine cannot run services, or the caller is not root.
	Usable() error
	// Start loads changed units, enables a unit, and starts or restarts it. It does not wait until
	// the unit has started.
	Start(ctx context.Context, unit string) error
	// State returns the state of a unit.
	State(ctx context.Context, unit string) (UnitState, error)
	// Stop stops and disables a unit. A missing unit is not an error.
	Stop(ctx context.Context, unit string) error
	// Reload loads changed units.
	Reload(ctx context.Context) error
	// EnsureUser creates a system user without a shell, and gives it a directory of data. created
	// is false if the user existed.
	EnsureUser(ctx context.Context, name, dataDir string) (created bool, err error)
	// RemoveUser removes a user. A missing user is not an error.
	RemoveUser(ctx context.Context, name string) error
}

// Systemd is the Host of a machine with systemd.
type Systemd struct{}

var _ Host = Systemd{}

// ErrNoSystemd means that systemd does not manage this machine.
var ErrNoSystemd = errors.New("systemd does not run on this machine")

// booted reports whether systemd manages this machine. sd_booted(3) says that the directory means that.
func booted() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// Usable implements Host.
func (Systemd) Usable() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can install services: use sudo")
	}
	if !booted() {
		return fmt.Errorf("%w: use --no-start to install the files, and run rik server or rik agent under your own supervisor", ErrNoSystemd)
	}
	return nil
}

// Start implements Host.
func (s Systemd) Start(ctx context.Context, unit string) error {
	if err := s.Reload(ctx); err != nil {
		return err
	}
	if err := run(ctx, "systemctl", "enable", "--quiet", unit); err != nil {
		return err
	}
	if err := run(ctx, "systemctl", "restart", "--no-block", unit); err != nil {
		return fmt.Errorf("%w; see: journalctl -u %s -n 50", err, unit)
	}
	return nil
}

// State implements Host.
func (Systemd) State(ctx context.Context, unit string) (UnitState, error) {
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=InvocationID,ActiveState,SubState,StatusText", unit).Output()
	if err != nil {
		return UnitState{}, fmt.Errorf("reading the state of %s: %w", unit, err)
	}
	return parseState(string(out)), nil
}

// parseState reads the output of "systemctl show".
func parseState(out string) UnitState {
	var s UnitState
	fields := map[string]*string{"InvocationID": &s.Invocation, "ActiveState": &s.Active, "SubState": &s.Sub, "StatusText": &s.Text}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if field := fields[name]; field != nil {
			*field = value
		}
	}
	return s
}

// Starts reports whether a unit runs, or is about to run. Without systemd no unit does.
func (Systemd) Starts(ctx context.Context, unit string) bool {
	if !booted() {
		return false
	}
	// The exit code of a unit that is starting is not 0.
	out, _ := exec.CommandContext(ctx, "systemctl", "is-active", unit).Output()
	return slices.Contains([]string{"active", "activating", "reloading"}, strings.TrimSpace(string(out)))
}

// Stop implements Host.
func (s Systemd) Stop(ctx context.Context, unit string) error {
	if !booted() {
		return nil // a machine without systemd has no services to stop
	}
	out, err := exec.CommandContext(ctx, "systemctl", "show", "--property=LoadState", "--value", unit).Output()
	if err != nil || strings.TrimSpace(string(out)) == "not-found" {
		return err
	}
	return run(ctx, "systemctl", "disable", "--quiet", "--now", unit)
}

// Reload implements Host.
func (Systemd) Reload(ctx context.Context) error {
	if !booted() {
		return nil
	}
	return run(ctx, "systemctl", "daemon-reload")
}

// EnsureUser implements Host.
func (Systemd) EnsureUser(ctx context.Context, name, dataDir string) (bool, error) {
	created := false
	if _, err := user.Lookup(name); err != nil {
		if !errors.As(err, new(user.UnknownUserError)) {
			return false, err
		}
		if err := run(ctx, "useradd", "--system", "--user-group", "--no-create-home", "--home-dir", dataDir, "--shell", "/usr/sbin/nologin", name); err != nil {
			return false, err
		}
		created = true
	}
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return created, err
	}
	return created, run(ctx, "chown", "-R", "--no-dereference", name+":"+name, dataDir)
}

// RemoveUser implements Host.
func (Systemd) RemoveUser(ctx context.Context, name string) error {
	if _, err := user.Lookup(name); err != nil {
		if errors.As(err, new(user.UnknownUserError)) {
			return nil
		}
		return err
	}
	return run(ctx, "userdel", name)
}

// run runs a command, and returns its output in the error.
func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
