package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/program"
)

// run runs one of the built programs. It returns the exit code and the output.
func run(t *testing.T, path string, args ...string) (code int, out string) {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	} else if err != nil {
		code = exit.ExitCode()
	}
	return code, string(said)
}

func binDir(t *testing.T) string {
	t.Helper()
	dir, err := program.Dir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestProgramsByName checks that rik runs the component whose name it has, as a link or a copy,
// in any directory.
func TestProgramsByName(t *testing.T) {
	t.Parallel()
	bin := binDir(t)
	for _, name := range []string{"rik", "controller", "scheduler", "kcp", "cluster-controller", "deployment-splitter", "syncer", "crd-puller", "compat"} {
		if code, out := run(t, filepath.Join(bin, name), "--help"); code != 0 || !strings.Contains(out, "\n  "+name+" ") {
			t.Errorf("%s --help = %d, and says\n%s", name, code, out)
		}
	}
	dir := filepath.Join(t.TempDir(), "controller")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for called, name := range map[string]string{"syncer": "syncer", "rik-v0.1.0": "rik", "server": "rik"} {
		path := filepath.Join(dir, called)
		if err := os.Symlink(filepath.Join(bin, "rik"), path); err != nil {
			t.Fatal(err)
		}
		if code, out := run(t, path, "--help"); code != 0 || !strings.Contains(out, "\n  "+name+" ") {
			t.Errorf("rik called %s --help = %d, and says\n%s", called, code, out)
		}
	}
}

// TestCompatExitCodes checks the exit codes, which scripts use, under each name of the program.
func TestCompatExitCodes(t *testing.T) {
	t.Parallel()
	bin, dir := binDir(t), t.TempDir()
	crd := func(name, field string) string {
		path := filepath.Join(dir, name)
		text := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: widgets.example.dev}\n" +
			"spec:\n  group: example.dev\n  scope: Namespaced\n  names: {plural: widgets, kind: Widget}\n  versions:\n" +
			"  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {" + field + "}}}}\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	before, wider, other := crd("old.yaml", "size: {type: integer}"), crd("wider.yaml", "size: {type: number}"), crd("other.yaml", "size: {type: string}")
	for _, tc := range []struct {
		program string
		args    []string
		want    int
	}{
		{"compat", []string{before, wider}, 0},
		{"rik", []string{"compat", before, wider}, 0},
		{"compat", []string{before, other}, 1},
		{"rik", []string{"compat", before, other}, 1},
		{"compat", []string{before, filepath.Join(dir, "nowhere")}, 2},
		{"compat", []string{before}, 2},
		{"compat", []string{before, wider, "--no-such-flag"}, 2},
	} {
		if got, out := run(t, filepath.Join(bin, tc.program), tc.args...); got != tc.want {
			t.Errorf("%s %v = %d, want %d, and says\n%s", tc.program, tc.args, got, tc.want, out)
		}
	}
}
