package oci

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestStartedWithin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		started, began, lasted time.Duration
		want                   bool
	}{
		"at once":                            {100 * time.Second, 100 * time.Second, 0, true},
		"a tick before, by its coarse clock": {99990 * time.Millisecond, 100 * time.Second, 0, true},
		"while the runtime worked":           {105 * time.Second, 100 * time.Second, 6 * time.Second, true},
		"before the command":                 {90 * time.Second, 100 * time.Second, time.Second, false},
		"after it was noted":                 {110 * time.Second, 100 * time.Second, time.Second, false},
		"the clock was set back meanwhile":   {100 * time.Second, 100 * time.Second, -time.Hour, false},
		"the clock was set ahead meanwhile":  {200 * time.Second, 100 * time.Second, time.Hour, false},
	} {
		if got := startedWithin(c.started, c.began, c.lasted); got != c.want {
			t.Errorf("%s: startedWithin(%s, %s, %s) = %v, want %v", name, c.started, c.began, c.lasted, got, c.want)
		}
	}
}

// TestLeftoversAndTheClock checks that a command of an earlier agent is recognized, and that a
// later process with its PID is not, whatever the wall clock was while the command began.
func TestLeftoversAndTheClock(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"right": 0, "ahead": 24 * time.Hour, "behind": -24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := begin(dir); err != nil {
				t.Fatal(err)
			}
			c := exec.CommandContext(t.Context(), "sleep", "600")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = c.Process.Kill()
				_ = c.Wait()
			})
			note(t, dir, strconv.Itoa(c.Process.Pid), ahead)
			if pid, ok := leftoverCommand(dir); !ok || pid != c.Process.Pid {
				t.Errorf("leftoverCommand() = %d, %v, want %d", pid, ok, c.Process.Pid)
			}
			// An earlier command had the PID of this process.
			now, err := uptime()
			if err != nil {
				t.Fatal(err)
			}
			earlier := t.TempDir()
			write(t, filepath.Join(earlier, beganFile), max(now-time.Hour, 0).String())
			note(t, earlier, strconv.Itoa(c.Process.Pid), ahead)
			if now > time.Minute {
				if pid, ok := leftoverCommand(earlier); ok {
					t.Errorf("a later process %d counts as the command", pid)
				}
			}
		})
	}
}

// TestLeftoversWithoutATime checks that nothing is ended on the basis of a PID alone.
func TestLeftoversWithoutATime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "pid"), strconv.Itoa(os.Getpid()))
	if pid, ok := leftoverCommand(dir); ok {
		t.Errorf("leftoverCommand() = %d without the time at which the command began", pid)
	}
	write(t, filepath.Join(dir, beganFile), "soon")
	if pid, ok := leftoverCommand(dir); ok {
		t.Errorf("leftoverCommand() = %d with a time that is none", pid)
	}
}

// note writes a PID file, with the times of both files shifted like those of a clock that is
// wrong.
func note(t *testing.T, dir, pid string, ahead time.Duration) {
	t.Helper()
	write(t, filepath.Join(dir, "pid"), pid)
	for _, name := range []string{beganFile, "pid"} {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err == nil {
			err = os.Chtimes(path, time.Time{}, info.ModTime().Add(ahead))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
