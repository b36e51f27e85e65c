package oci

import (
	"os"
	"path/filepath"
	"testing"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "crun")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho 'crun version 1.14'\necho commit: x\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := Version(t.Context(), program); got != "crun 1.14" {
		t.Errorf("Version() = %q, want crun 1.14", got)
	}
	if got := Version(t.Context(), "/nonexist"); got != "" {
		t.Errorf("Version() of a missing program = %q", got)
	}
}

func TestValidRuntime(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"crun": true, "runc": false, "F o": false, "": false} {
		if got := ValidRuntime(name); got != want {
			t.Errorf("ValidRuntime(%q) = %v, want %v", name, got, want)
		}
	}
}
