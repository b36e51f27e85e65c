package privileged

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAskedAndLong(t *testing.T) {
	for variable, reports := range map[string]func() bool{EnvAsk: Asked, EnvLong: Long} {
		for value, want := range map[string]bool{"": false, "0": false, "true": false, "1": true} {
			t.Setenv(variable, value)
			if got := reports(); got != want {
				t.Errorf("with %s=%q: got %v, want %v", variable, value, got, want)
			}
		}
	}
}

func TestRequireSkipsUnlessAsked(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv(EnvAsk, "")
	t.Setenv(EnvLog, log)
	passed := false
	t.Run("inner", func(t *testing.T) {
		Require(t)
		passed = true
	})
	if passed {
		t.Error("Require continued although the variable is not set")
	}
	if _, err := os.Stat(log); !os.IsNotExist(err) {
		t.Errorf("a skipped test was recorded: stat says %v", err)
	}
}

func TestRecordAppends(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	for _, name := range []string{"TestPrivilegedOne", "TestPrivilegedTwo/sub"} {
		if err := record(log, name); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("TestPrivilegedOne\nTestPrivilegedTwo/sub\n", string(got)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

func TestRecordReportsABadPath(t *testing.T) {
	t.Parallel()
	if err := record(filepath.Join(t.TempDir(), "missing", "log"), "x"); err == nil {
		t.Error("no error for a log in a directory that does not exist")
	}
}
