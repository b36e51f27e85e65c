package lockfile

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestTake(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, path := range map[string]string{"a file": filepath.Join(dir, "lock"), "a directory": dir} {
		first, err := Take(path)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var held *HeldError
		if _, err := Take(path); !errors.As(err, &held) || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) {
			t.Errorf("%s, by a second: %v, want a HeldError that names this process", name, err)
		}
		if err := first.Release(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		again, err := Take(path)
		if err != nil {
			t.Fatalf("%s, after the release: %v", name, err)
		}
		if err := again.Release(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Take(filepath.Join(dir, "absent", "lock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in no directory: %v, want %v", err, os.ErrNotExist)
	}
}

func TestHolderIn(t *testing.T) {
	t.Parallel()
	const locks = `1: FLOCK  ADVISORY  WRITE 2483 fe:00:802914 0 EOF
2: OFDLCK ADVISORY  WRITE -1 fe:00:802995 0 EOF
2: -> FLOCK  ADVISORY  WRITE 77 fe:00:802995 0 EOF
3: FLOCK  ADVISORY  WRITE 12 00:24:802914 0 EOF
4: POSIX  ADVISORY  WRITE 13 fe:00:31 0 EOF
`
	for name, tc := range map[string]struct {
		major, minor uint32
		inode        uint64
		want         int
	}{
		"one":                    {254, 0, 802914, 2483},
		"one of another device":  {0, 36, 802914, 12},
		"a device of its own":    {0, 99, 802914, 12},
		"one of another kind":    {254, 0, 31, 0},
		"one that is waited for": {254, 0, 802995, 0},
		"none":                   {254, 0, 5, 0},
		"the end of another's":   {254, 0, 914, 0},
	} {
		if got := holderIn(locks, tc.major, tc.minor, tc.inode); got != tc.want {
			t.Errorf("%s: holderIn() = %d, want %d", name, got, tc.want)
		}
	}
}

func TestHeldBy(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	if by := HeldBy(path); by != "" {
		t.Errorf("HeldBy of a file that does not exist = %q", by)
	}
	lock, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if by := HeldBy(path); !strings.Contains(by, "process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("HeldBy of a held lock = %q, want this process", by)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if by := HeldBy(path); by != "" {
		t.Errorf("HeldBy of a released lock = %q", by)
	}
}
