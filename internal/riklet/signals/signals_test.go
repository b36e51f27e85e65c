package signals

import (
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// This is the signal that a C library reserves. The Go runtime does not read its action.
const reserved = 32

const none = "0000000000000000"

// ignored returns the signals that a child process ignores.
func ignored(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("grep", "SigIgn", "/proc/self/status").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))[1]
}

// A node agent under nohup survives the end of the terminal. Its child processes receive SIGHUP.
func TestIgnore(t *testing.T) {
	if err := Restore(); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGHUP)
	defer signal.Reset(unix.SIGHUP)
	if now := ignored(t); now != "0000000000000001" {
		t.Fatalf("a child does not inherit the ignored signals: %s", now)
	}
	if err := Ignore(); err != nil {
		t.Fatal(err)
	}
	if now := ignored(t); now != none {
		t.Errorf("a child still ignores %s", now)
	}
	if err := unix.Kill(unix.Getpid(), unix.SIGHUP); err != nil { // ends this process if it is not caught
		t.Fatal(err)
	}
}

func TestRestore(t *testing.T) {
	if err := Restore(); err != nil { // of the signals that the parent process ignores
		t.Fatal(err)
	}
	var old action
	if err := change(reserved, &action{handler: ignore}, &old); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := change(reserved, &old, nil); err != nil {
			t.Error(err)
		}
	})
	handled := make(chan os.Signal, 1)
	signal.Notify(handled, unix.SIGUSR1)
	defer signal.Stop(handled)
	if now := ignored(t); now != "0000000080000000" {
		t.Fatalf("a child does not inherit the ignored signals: %s", now)
	}
	if err := Restore(); err != nil {
		t.Fatal(err)
	}
	if now := ignored(t); now != none {
		t.Errorf("a child still ignores %s", now)
	}
	if err := unix.Kill(unix.Getpid(), unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	<-handled // a handler did not change
}
