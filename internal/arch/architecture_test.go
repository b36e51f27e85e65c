package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// codePath is a path as docs/architecture.md names it.
var codePath = regexp.MustCompile("`([a-z][A-Za-z0-9_./-]*)`")

// TestArchitectureNamesWhatExists keeps docs/architecture.md true: each file and folder that
// it names exists. A path may lack its first folders.
func TestArchitectureNamesWhatExists(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(root + "/docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	paths := allPaths(t)
	named := 0
	for _, m := range codePath.FindAllStringSubmatch(string(page), -1) {
		name := m[1]
		if isFile := strings.HasSuffix(name, ".go"); !isFile && (!strings.Contains(name, "/") || strings.HasPrefix(name, "workloads.") || strings.HasPrefix(name, "rik.dev/") || strings.HasPrefix(name, "apps/")) {
			continue
		}
		named++
		if !strings.Contains(paths, "/"+name+"\n") {
			t.Errorf("docs/architecture.md names %s, which does not exist", name)
		}
	}
	if named < 50 {
		t.Errorf("found %d paths in docs/architecture.md, want more", named)
	}
}

// allPaths lists all files and folders of the repository, one a line, with a slash ahead.
func allPaths(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "bin") {
			return filepath.SkipDir
		}
		b.WriteString("/" + strings.TrimPrefix(filepath.ToSlash(path), root+"/") + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
