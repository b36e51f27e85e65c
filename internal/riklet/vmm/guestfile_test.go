package vmm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestGuestFile tests that only a file that a flag names must exist. A server looks for the files
// twice.
func TestGuestFile(t *testing.T) {
	t.Parallel()
	first, err := GuestFile("", KernelFile)
	if err != nil || !filepath.IsAbs(first) || filepath.Base(filepath.Dir(first)) != "guest" {
		t.Errorf("GuestFile() = %q, %v", first, err)
	}
	if second, err := GuestFile(first, KernelFile); err != nil || second != first {
		t.Errorf("the second GuestFile() = %q, %v, want %q", second, err, first)
	}
	file := filepath.Join(t.TempDir(), "vmlinux")
	if _, err := GuestFile(file, KernelFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("GuestFile() of a missing file = %v", err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := GuestFile(file, KernelFile); err != nil || got != file {
		t.Errorf("GuestFile() = %q, %v, want %q", got, err, file)
	}
}
