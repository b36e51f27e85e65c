package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root of the module, from here.
const root = "../.."

// faultsPage tables the faults of the published RIK and the tests against them.
const faultsPage = root + "/docs/faults.md"

var (
	// faultName finds the names by which tests say which fault they guard against.
	faultName = regexp.MustCompile(`Fault[0-9]{2}`)
	// isTest matches the name of a test, benchmark or fuzz test.
	isTest = regexp.MustCompile("^(Test|Benchmark|Fuzz)[^a-z]")
	// listedTest is a test as the page names it: `folder.TestName`.
	listedTest = regexp.MustCompile("`([a-z][A-Za-z0-9_/]*)\\.(Test[A-Za-z0-9_]*)`")
)

// TestFaultsAreListed keeps docs/faults.md true: each test that names a fault
// stands there, and each test that stands there exists.
func TestFaultsAreListed(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(faultsPage)
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, m := range listedTest.FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, m[1]+"."+m[2])
	}
	all := testNames(t)
	if len(listed) == 0 || len(all) < 100 {
		t.Fatalf("found %d listed tests and %d tests, want more of both", len(listed), len(all))
	}
	for _, name := range listed {
		if !slices.Contains(all, name) {
			t.Errorf("docs/faults.md names %s, which does not exist", name)
		}
	}
	for _, name := range all {
		if faultName.MatchString(name) && !slices.Contains(listed, name) {
			t.Errorf("%s is missing in docs/faults.md", name)
		}
	}
}

// testNames are all tests, benchmarks and fuzz tests of the module as folder.TestName. A subtest whose name
// is a word with a fault in it stands for itself.
func testNames(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || path == filepath.Join(root, "bin")):
			return fs.SkipDir
		case !d.Type().IsRegular() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		found, err := testsOf(path)
		names = append(names, found...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func testsOf(path string) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Rel(root, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !isTest.MatchString(f.Name.Name) {
			continue
		}
		names = append(names, filepath.ToSlash(dir)+"."+f.Name.Name)
		for _, sub := range subtests(f) {
			names = append(names, filepath.ToSlash(dir)+"."+sub)
		}
	}
	return names, nil
}

// subtests are the names in t.Run("…FaultNN", …) of a test.
func subtests(f *ast.FuncDecl) []string {
	var names []string
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}
		run, isRun := call.Fun.(*ast.SelectorExpr)
		name, isName := call.Args[0].(*ast.BasicLit)
		if !isRun || run.Sel.Name != "Run" || !isName || name.Kind != token.STRING {
			return true
		}
		if text, err := strconv.Unquote(name.Value); err == nil && faultName.MatchString(text) {
			names = append(names, text)
		}
		return true
	})
	return names
}
