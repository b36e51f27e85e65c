package doctor

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocumentationNamesAllChecks keeps the table of docs/troubleshooting.md true.
func TestDocumentationNamesAllChecks(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		row := "| `" + string(c.area) + "` |"
		i := strings.Index(string(page), row)
		if i < 0 {
			t.Errorf("docs/troubleshooting.md has no row for the area %s", c.area)
			continue
		}
		line, _, _ := strings.Cut(string(page)[i:], "\n")
		for _, id := range c.ids {
			if !strings.Contains(line, "`"+id+"`") {
				t.Errorf("the row of %s in docs/troubleshooting.md does not name %s", c.area, id)
			}
		}
	}
	for _, m := range regexp.MustCompile("`((?:host|kernel|cgroup|firewall|network|port|time|disk|limit|program|certificate|server|state)-[a-z-]+)`").FindAllStringSubmatch(string(page), -1) {
		if !slices.Contains(IDs(), m[1]) {
			t.Errorf("docs/troubleshooting.md names %s, which is no check", m[1])
		}
	}
}
