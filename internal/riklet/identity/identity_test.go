package identity

import (
	"os"
	"path/filepath"
	"testing"
)

const known = "0123456789abcdef0123456789abcdef"

func TestInstallationKeyIsCreatedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := InstallationKey(dir)
	if err != nil || len(first) != 64 {
		t.Fatalf("InstallationKey() = %q, %v, want 64 digits", first, err)
	}
	if again, err := InstallationKey(dir); err != nil || again != first {
		t.Errorf("InstallationKey() again = %q, %v, want %q", again, err, first)
	}
	if other, err := InstallationKey(t.TempDir()); err != nil || other == first {
		t.Errorf("InstallationKey() of another directory = %q, %v, want another", other, err)
	}
	info, err := os.Stat(filepath.Join(dir, InstallationFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key is kept with mode %v, %v, want 0600", info.Mode(), err)
	}
}

func TestMachineID(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, etc, own string
		want           string // empty: a new one
	}{
		{name: "of the distribution", etc: known + "\n", want: known},
		{name: "own one first", etc: "fedcba9876543210fedcba9876543210", own: known, want: known},
		{name: "missing"},
		{name: "not set up yet", etc: "uninitialized\n"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			etc := filepath.Join(dir, "etc")
			put(t, etc, tc.etc)
			put(t, filepath.Join(dir, ownFile), tc.own)
			s := Source{MachineIDFile: etc}
			got, err := s.MachineID(dir)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want != "" && got != tc.want {
				t.Errorf("MachineID() = %q, want %q", got, tc.want)
			}
			again, err := s.MachineID(dir)
			if err != nil || again != got || !machineForm.MatchString(got) {
				t.Errorf("second MachineID() = %q, %v, want %q again", again, err, got)
			}
		})
	}
}

func TestTwoMachinesDiffer(t *testing.T) {
	t.Parallel()
	s := Source{MachineIDFile: "/nonexistent/machine-id"}
	first, err := s.MachineID(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.MachineID(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if first == second {
		t.Errorf("two machines were given the same id %q", first)
	}
}

func TestBootID(t *testing.T) {
	t.Parallel()
	if got, err := (Source{}).BootID(); err != nil || len(got) != 36 {
		t.Errorf("BootID() = %q, %v, want a UUID", got, err)
	}
	if got, err := (Source{BootIDFile: "/nonexistent/boot"}).BootID(); err == nil {
		t.Errorf("BootID() of a missing file = %q, want an error", got)
	}
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if content == "" {
		return
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
