package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

func TestTypeOf(t *testing.T) {
	t.Parallel()
	text := spec.StringProperty()
	own := spec.RefProperty(prefix + "Container")
	for name, tc := range map[string]struct {
		schema *spec.Schema
		want   string
	}{
		"plain":         {text, "string"},
		"list":          {spec.ArrayProperty(text), "list of string"},
		"map":           {spec.MapProperty(text), "map of string"},
		"one of rik's":  {own, "[Container](#container)"},
		"list of these": {spec.ArrayProperty(own), "list of [Container](#container)"},
		"another's":     {spec.RefProperty("k8s.io/apimachinery/pkg/apis/meta/v1.Time"), "Time"},
		"anything":      {&spec.Schema{}, "any"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := typeOf(tc.schema); got != tc.want {
				t.Errorf("typeOf(%s) = %q, want %q", name, got, tc.want)
			}
		})
	}
}

// TestPagesAreWhole checks that each stored page has the required content. It also checks that no
// page has the secret that hack/generate.sh sets in the environment. hack/generate.sh --check
// finds stale pages.
func TestPagesAreWhole(t *testing.T) {
	t.Parallel()
	for name, words := range map[string][]string{
		"rikctl.md": {"## rikctl create workload", "## rikctl rollout undo", "--to-revision"},
		"riklet.md": {"## riklet purge", "--token-file", "--cgroup-parent"},
		"kcp.md":    {"## rik kcp", "## rik cluster-controller", "--push-mode", "## rik syncer", "## rik crd-puller", "## rik compat"},
		"rik.md":    {"## rik server", "--datastore-endpoint", "## rik controller", "## rik scheduler"},
		"api.md":    {"## Workload\n", "[Container](#container)", "| `terminationGracePeriodSeconds` | integer |"},
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range words {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s lacks %q", name, w)
			}
		}
		if strings.Contains(string(text), "never-on-a-page") {
			t.Errorf("%s shows the environment that it was made in", name)
		}
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	run := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "rik"}
	get := &cobra.Command{Use: "get TYPE", Short: "Show objects", Example: "  rik get pods  \n", Run: run}
	get.Flags().StringP("output", "o", "", "a format")
	get.AddCommand(&cobra.Command{Use: "all", Long: "\nShow all.\n", Run: run})
	root.AddCommand(get, &cobra.Command{Use: "debug", Hidden: true, Run: run}, &cobra.Command{Use: "list", Deprecated: "use get", Run: run})
	want := "## rik get\n\nShow objects.\n\n```\nrik get TYPE [flags]\n```\n\nExamples:\n\n```\n  rik get pods\n```\n" +
		"\nFlags:\n\n```\n  -o, --output string   a format\n```\n\n" +
		"## rik get all\n\n```\nShow all.\n```\n\n```\nrik get all\n```\n\n"
	if diff := cmp.Diff(want, Commands(root)); diff != "" {
		t.Errorf("Commands() (-want +got):\n%s", diff)
	}
}

func TestCellAndFenced(t *testing.T) {
	t.Parallel()
	if got := cell("a\n b|c"); got != `a b\|c` {
		t.Errorf("cell = %q", got)
	}
	if got := Fenced("\n  a \n\nb\n"); got != "```\n  a\n\nb\n```\n" {
		t.Errorf("Fenced = %q", got)
	}
}
