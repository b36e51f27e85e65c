package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/testkit/pages"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedGuide runs the commands of docs/guide.md as they are printed.
func TestPrivilegedGuide(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{})
	images := filepath.Join(c.Dir, "sample-images")
	writeSamples(t, c, filepath.Join(images, "hello"))
	paths := strings.NewReplacer("/var/lib/rik/images", images, "/var/lib/rik/data", c.DataDir())
	work := t.TempDir()
	page := pages.Open(t, "docs/guide.md")
	for _, b := range page.All() {
		switch {
		case b.Language == "yaml":
			writeNamed(t, work, paths.Replace(b.Text))
		case page.Mine(b):
			runBlock(t, c, work, b.Section, paths.Replace(page.Take(b)))
		}
	}
}

// writeSamples does what make sample-images does.
func writeSamples(t *testing.T, c *rikcluster.Cluster, dir string) {
	t.Helper()
	spec, err := ociimage.ProgramSpec(c.HelloProgram(), true)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"v1", "v2"} {
		if _, err := ociimage.Write(dir, tag, spec); err != nil {
			t.Fatal(err)
		}
	}
}

// writeNamed writes a manifest whose first line is a comment with its file name.
func writeNamed(t *testing.T, dir, text string) {
	t.Helper()
	name, isNamed := strings.CutPrefix(strings.SplitN(text, "\n", 2)[0], "# ")
	if !isNamed || !strings.HasSuffix(name, ".yaml") {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func runBlock(t *testing.T, c *rikcluster.Cluster, dir, section, text string) {
	t.Helper()
	script := strings.Join([]string{
		"set -euxo pipefail", "cd " + dir, "export PATH=" + c.Bin + ":$PATH PASSWORD=secret HOME=" + dir,
		"export RIKCONFIG=" + filepath.Join(c.DataDir(), "config.yaml"),
		"export KUBECONFIG=" + filepath.Join(c.DataDir(), "admin.kubeconfig"), text,
	}, "\n")
	out := rikcluster.Command(t, "bash", "-c", script)
	if out.Err != nil {
		t.Fatalf("section %q: %v", section, out.Err)
	}
	t.Logf("%s:\n%s", section, out.Stdout)
}
