package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// guideRuns lists the sections of docs/guide.md whose shell blocks the test runs, in the order
// of the guide.
var guideRuns = map[string]bool{
	"Manual: you start the instances": true, "Automatic: rik keeps a number of instances": true,
	"Update, roll back, scale": true, "Look inside": true, "Resources, probes, volumes": true, "Private registries": true,
	"Tenants and users": true, "kubectl": true, "Kubernetes' Deployments": true, "The published API": true,
}

// guideLeaves lists the other sections with shell blocks, with the reason why the test does not
// run them.
var guideLeaves = map[string]string{
	"User guide":                  "the test writes the sample image by itself",
	"Start a server":              "the cluster of the test is this",
	"Install it":                  "needs systemd: TestPrivilegedInstall",
	"Point rikctl at it":          "needs another machine",
	"A Function":                  "needs a VMM: TestPrivilegedKinds",
	"Look inside one":             "needs a VMM: TestPrivilegedKinds",
	"What a node needs for it":    "installs packages",
	"Apps":                        "needs a server with the archive: TestPrivilegedKinds",
	"Suspend and resume":          "needs a VMM: TestPrivilegedKinds",
	"Add one":                     "needs another machine: TestPrivilegedComponentsAlone",
	"Firewalls of other programs": "needs these programs: TestPrivilegedFirewalls",
	"Label, taint, cordon, drain": "needs another machine",
	"Remove one":                  "needs another machine",
	"Reach into the cluster":      "runs until it is stopped",
	"Nodes that wait":             "needs a lost datastore",
	"Check the files":             "needs systemd: internal/apiserver TestCheckFiles",
	"Components alone":            "TestPrivilegedComponentsAlone",
	"Clean up":                    "removes the machine's own cluster",
}

// airgapRuns and airgapLeaves are the same for docs/airgap.md.
var (
	airgapRuns = map[string]bool{
		"A sample archive": true, "Import images": true, "Load images when a node starts": true, "Deploy": true, "See and remove images": true,
	}
	airgapLeaves = map[string]string{
		"What to carry over": "needs a registry in the internet: the formats are tested in internal/riklet/image",
		"Install rik":        "needs another machine: TestPrivilegedInstall",
	}
)

// block is a fenced block of code.
type block struct{ section, language, text string }

var fence = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")

// blocksOf returns the fenced blocks of a page in order, each with the heading above it.
func blocksOf(page string) []block {
	var blocks []block
	section := ""
	for {
		at := fence.FindStringSubmatchIndex(page)
		if at == nil {
			return blocks
		}
		for line := range strings.SplitSeq(page[:at[0]], "\n") {
			if text, isHeading := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); isHeading && strings.HasPrefix(line, "#") {
				section = text
			}
		}
		blocks = append(blocks, block{section, page[at[2]:at[3]], page[at[4]:at[5]]})
		page = page[at[1]:]
	}
}

// TestGuideSectionsAreKnown fails for a section of a page with commands that is in neither of its
// two tables.
func TestGuideSectionsAreKnown(t *testing.T) {
	t.Parallel()
	for name, page := range map[string]struct {
		runs   map[string]bool
		leaves map[string]string
	}{"guide.md": {guideRuns, guideLeaves}, "airgap.md": {airgapRuns, airgapLeaves}} {
		seen := map[string]bool{}
		for _, b := range readPage(t, name) {
			if b.language != "sh" {
				continue
			}
			seen[b.section] = true
			if !page.runs[b.section] && page.leaves[b.section] == "" {
				t.Errorf("docs/%s: no table has the commands of %q", name, b.section)
			}
		}
		for section := range page.runs {
			if !seen[section] {
				t.Errorf("docs/%s has no section %q with commands", name, section)
			}
		}
	}
}

func readPage(t *testing.T, name string) []block {
	t.Helper()
	page, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return blocksOf(string(page))
}

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
	for _, b := range readPage(t, "guide.md") {
		text := paths.Replace(b.text)
		switch {
		case b.language == "yaml":
			writeNamed(t, work, text)
		case b.language == "sh" && guideRuns[b.section]:
			runBlock(t, c, work, b.section, text)
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
