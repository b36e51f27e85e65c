package scratch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const childEnv = "RIK_TEST_SCRATCH_CHILD"

func TestMain(m *testing.M) {
	prefix := os.Getenv(childEnv)
	if prefix == "" {
		os.Exit(m.Run())
	}
	// A process that is killed with a directory.
	d, err := New(prefix)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(d.Path)
	select {}
}

// TestKilledProcessLeavesNothingForLong checks that New removes the directory of a killed
// process, and keeps that of a running one.
func TestKilledProcessLeavesNothingForLong(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv(childEnv, "some-")
	child := exec.Command(os.Args[0])
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 4096)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	left := strings.TrimSpace(string(line[:n]))
	if err := os.WriteFile(filepath.Join(left, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}

	mine, err := New("some-")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); err != nil {
		t.Errorf("the directory of a living process: %v", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // reports that it was killed
	foreign := filepath.Join(os.TempDir(), "some-other")
	if err := os.Mkdir(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	second, err := New("some-")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of a killed process: %v, want it gone", err)
	}
	for _, path := range []string{mine.Path, second.Path, foreign} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: %v, want it there", path, err)
		}
	}
	for _, d := range []*Dir{mine, second} {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(d.Path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s after Remove: %v, want it gone", d.Path, err)
		}
	}
}
