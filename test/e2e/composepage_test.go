package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/pages"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedComposePage runs the commands of README.md and docs/install.md for containers as printed,
// with Docker and with Podman. make images compiles programs for minutes, so it runs only in the long
// tests.
func TestPrivilegedComposePage(t *testing.T) {
	privileged.Require(t)
	if !privileged.Long() {
		t.Skip("not run: only the long tests run it (make nightly)")
	}
	beginOutside(t)
	if !rikcluster.Alone(t) {
		return
	}
	readme, install := pages.Open(t, "README.md"), pages.Open(t, "docs/install.md")
	dir := func(t *testing.T) string {
		t.Helper()
		dir, err := os.MkdirTemp("/var/tmp", engineName+"-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
		return dir
	}
	first := readme.Block("Try it", 3)
	var steps []string
	for number := range 4 {
		steps = append(steps, install.Block("With containers", 1+number))
	}
	podman, service := install.Block("Podman", 1), install.Block("Podman", 2)

	t.Run("docker", func(t *testing.T) {
		e := startDocker(t, dir(t))
		e.plugin(t)
		e.answers(t, e.asPrinted(t, first))
		e.asPrinted(t, steps[3])
		e.asPrinted(t, steps[0])
		e.answers(t, e.asPrinted(t, steps[1]))
		if out := e.asPrinted(t, steps[2]); strings.Count(out, "node-") < 2 || !strings.Contains(out, "hello-") {
			t.Errorf("the commands in the server's container print:\n%s", out)
		}
		e.asPrinted(t, steps[3])
	})
	t.Run("podman", func(t *testing.T) {
		e := startPodman(t, dir(t))
		e.answers(t, e.asPrinted(t, podman))
	})
	t.Run("docker compose with Podman", func(t *testing.T) {
		e := startPodmanService(t, dir(t))
		e.plugin(t)
		e.answers(t, e.asPrinted(t, strings.ReplaceAll(service, "/run/podman/podman.sock", filepath.Join(e.dir, "podman.sock"))))
	})
}

// plugin gives the engine's command line the plugin "compose".
func (e engine) plugin(t *testing.T) {
	t.Helper()
	plugins := filepath.Join(e.dir, "config", "cli-plugins")
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(rikcluster.Bin(t), pluginProgram), filepath.Join(plugins, "docker-compose")); err != nil {
		t.Fatal(err)
	}
}

// asPrinted runs a block of a page in the root of the repository. The test is root and needs no sudo.
func (e engine) asPrinted(t *testing.T, block string) string {
	t.Helper()
	out, err := e.command(t.Context(), "bash", "-euo", "pipefail", "-c", "sudo() { [ \"$1\" != -E ] || shift; env \"$@\"; }\n"+block).CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", block, err, out)
	}
	return string(out)
}

// answers requires that the application answered in the output of a block.
func (e engine) answers(t *testing.T, out string) {
	t.Helper()
	if !strings.Contains(out, "hello from hello-") {
		t.Errorf("the application did not answer:\n%s", out)
	}
}
