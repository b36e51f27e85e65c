package arch

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	// testName is a test, benchmark or fuzz test in a document. A name that ends in "…" stands for
	// all tests that begin with it.
	testName = regexp.MustCompile(`\b((?:Test|Benchmark|Fuzz)[A-Z0-9]\w*)(…?)`)
	// packageOfTest is a test directly after its package: `internal/pki` TestLeaf.
	packageOfTest = regexp.MustCompile("`([a-z][a-z0-9_/]*)` ((?:Test|Benchmark|Fuzz)[A-Z0-9]\\w*)")
	// inlineCode is a path, file or identifier in a document.
	inlineCode = regexp.MustCompile("`([A-Za-z][A-Za-z0-9_./]*)`")
)

// TestDocumentsNameTests fails for each test, benchmark and fuzz test that a document names and
// that does not exist, or that exists in another package. In the tables of a specification, a
// test may come without its package if the row names that package.
func TestDocumentsNameTests(t *testing.T) {
	t.Parallel()
	folders := map[string][]string{} // by the name of a test
	for _, name := range testNames(t) {
		folder, test, _ := strings.Cut(name, ".")
		folders[test] = append(folders[test], folder)
	}
	names := slices.Sorted(maps.Keys(folders))
	named := 0
	for document, lines := range documentLines(t) {
		isTable := slices.Contains([]string{"docs/specification.md", "docs/threat-model.md"}, document)
		for i, line := range lines {
			where := fmt.Sprintf("%s:%d", document, i+1)
			for _, m := range packageOfTest.FindAllStringSubmatch(line, -1) {
				if in := folders[m[2]]; len(in) > 0 && !isInAny(in, m[1:2]) {
					t.Errorf("%s: %s is not in %s, but in %s. Correct the document.", where, m[2], m[1], strings.Join(in, ", "))
				}
			}
			packages := packagesOf(line)
			for _, m := range testName.FindAllStringSubmatch(line, -1) {
				named++
				if problem := missingTest(m[1], m[2] != "", names); problem != "" {
					t.Errorf("%s: %s", where, problem)
				} else if in := folders[m[1]]; isTable && strings.HasPrefix(line, "|") && !isInAny(in, packages) {
					t.Errorf("%s: the row does not name the package of %s. Write `%s` before it.", where, m[1], in[0])
				}
			}
		}
	}
	if named < 400 {
		t.Errorf("found %d names of tests in the documents, want more", named)
	}
}

// packagesOf are the packages that a row of a table names. A row that names benchmarks means
// the package bench.
func packagesOf(row string) []string {
	packages := []string{"bench"}
	for _, m := range inlineCode.FindAllStringSubmatch(row, -1) {
		packages = append(packages, m[1])
	}
	return packages
}

// isInAny returns whether one of some folders is one of some packages, or ends with it.
func isInAny(folders, packages []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		return slices.ContainsFunc(packages, func(end string) bool { return folder == end || strings.HasSuffix(folder, "/"+end) })
	})
}

// missingTest says what is wrong with the name of a test in a document. It returns "" if nothing
// is wrong. names are all tests, sorted.
func missingTest(name string, isPrefix bool, names []string) string {
	i, found := slices.BinarySearch(names, name)
	switch {
	case isPrefix && i < len(names) && strings.HasPrefix(names[i], name):
		return ""
	case isPrefix:
		return fmt.Sprintf("no test begins with %s. Correct the document.", name)
	case found:
		return ""
	}
	return fmt.Sprintf("there is no test %s; the most similar name is %s. If the test was renamed, name it as it is called now. If it was deleted, remove the guarantee or name another test.", name, similar(name, names))
}

// similar returns the name that has the most words in common with a name.
func similar(name string, names []string) string {
	want := words(name)
	return slices.MaxFunc(names, func(a, b string) int { return cmp.Compare(common(want, words(a)), common(want, words(b))) })
}

// common is how alike two names are: words of both count for it, other words a little against it.
func common(a, b []string) int {
	both := 0
	for _, w := range a {
		if slices.Contains(b, w) {
			both++
		}
	}
	return 10*both - len(b)
}

// words splits a name at its capital letters.
func words(name string) []string {
	var b strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return strings.Fields(b.String())
}

// TestSpecificationNamesCode fails for each package, file and identifier that the column "where"
// of docs/specification.md names and that does not exist. An identifier has to be in the code of
// a package of the same cell, if the cell has one.
func TestSpecificationNamesCode(t *testing.T) {
	t.Parallel()
	const document = "docs/specification.md"
	paths, identifiers := allPaths(t), identifiersByFolder(t)
	named := 0
	for i, line := range documentLines(t)[document] {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		var folders []string
		for _, m := range inlineCode.FindAllStringSubmatch(cells[2], -1) {
			name := m[1]
			named++
			switch {
			case strings.Contains(paths, "/"+name+"\n"):
				folders = append(folders, name)
			case strings.ContainsAny(name, "/") || path.Ext(name) == ".go":
				t.Errorf("%s:%d: there is no file or folder %s. Correct the document.", document, i+1, name)
			default:
				name = name[strings.LastIndex(name, ".")+1:]
				if !isIn(identifiers, name, folders) {
					t.Errorf("%s:%d: the code of %s has no identifier %s. Correct the document.", document, i+1, cmp.Or(strings.Join(folders, ", "), "rik"), name)
				}
			}
		}
	}
	if named < 200 {
		t.Errorf("found %d names in %s, want more", named, document)
	}
}

// isIn returns whether an identifier is in the code of one of some folders. Without folders, the
// whole module counts.
func isIn(identifiers map[string]map[string]bool, name string, folders []string) bool {
	for folder, has := range identifiers {
		if has[name] && (len(folders) == 0 || isInAny([]string{folder}, folders)) {
			return true
		}
	}
	return false
}

// documentLines are the lines of all documents, by their path from the root of the module.
func documentLines(t *testing.T) map[string][]string {
	t.Helper()
	documents := map[string][]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			name, err := filepath.Rel(root, file)
			if err != nil {
				t.Fatal(err)
			}
			documents[filepath.ToSlash(name)] = strings.Split(string(text), "\n")
		}
	}
	return documents
}

// identifiersByFolder are the identifiers in the code of each folder, without comments and tests.
// Benchmarks of the folder bench count as code.
func identifiersByFolder(t *testing.T) map[string]map[string]bool {
	t.Helper()
	identifiers := map[string]map[string]bool{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || file == filepath.Join(root, "bin")):
			return fs.SkipDir
		case !d.Type().IsRegular() || path.Ext(file) != ".go":
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		folder = filepath.ToSlash(folder)
		if folder != "bench" && strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if identifiers[folder] == nil {
			identifiers[folder] = map[string]bool{}
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				identifiers[folder][id.Name] = true
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return identifiers
}
