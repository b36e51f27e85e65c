package main

import (
	"strings"
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"

	"rik.dev/rik/internal/apiserver/apis/openapi"
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

// TestPagesAreWhole looks for what each page must have, and for what would make
// it differ between two machines.
func TestPagesAreWhole(t *testing.T) {
	t.Setenv("RIK_TOKEN", "secret-of-this-machine")
	if err := neutral(); err != nil {
		t.Fatal(err)
	}
	for page, words := range map[string][]string{
		rikctlPage():                           {"## rikctl create workload", "## rikctl rollout undo", "--to-revision"},
		rikletPage():                           {"## riklet purge", "--token-file", "--cgroup-parent"},
		kcpPage():                              {"## rik kcp", "## rik cluster-controller", "--push-mode", "## rik syncer", "## rik crd-puller", "## rik compat"},
		apiPage(openapi.GetOpenAPIDefinitions): {"## Workload\n", "[Container](#container)", "| `terminationGracePeriodSeconds` | integer |"},
	} {
		for _, w := range words {
			if !strings.Contains(page, w) {
				t.Errorf("the page that begins with %q lacks %q", page[:20], w)
			}
		}
		if strings.Contains(page, "secret-of-this-machine") {
			t.Errorf("the page that begins with %q shows the environment", page[:20])
		}
	}
}

func TestCellAndFenced(t *testing.T) {
	t.Parallel()
	if got := cell("a\n b|c"); got != `a b\|c` {
		t.Errorf("cell = %q", got)
	}
	if got := fenced("\n  a \n\nb\n"); got != "```\n  a\n\nb\n```\n" {
		t.Errorf("fenced = %q", got)
	}
}
