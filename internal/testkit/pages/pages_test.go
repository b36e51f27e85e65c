package pages

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// documents returns the pages for users: README.md and all of docs but the generated reference and
// the decisions.
func documents(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root(), "docs/*.md"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	names := []string{"README.md", "CONTRIBUTING.md"}
	for _, path := range found {
		names = append(names, "docs/"+filepath.Base(path))
	}
	return names
}

func TestEveryBlockHasARunner(t *testing.T) {
	t.Parallel()
	opened := tests(t)
	for _, name := range documents(t) {
		blocks, err := read(name)
		if err != nil {
			t.Fatal(err)
		}
		used := map[string]bool{}
		for _, b := range blocks {
			if !b.commands() {
				continue
			}
			r := runnerOf(name, b)
			used[b.Section], used[b.key()] = true, true
			switch {
			case r.test == "" && r.reason == "":
				t.Errorf("%s: the block %q has neither a test that runs it nor a reason why none does", name, b.key())
			case r.reason != "":
				for _, named := range testNames.FindAllString(r.reason, -1) {
					if _, exists := opened[named]; !exists {
						t.Errorf("%s: the reason for the block %q names %s, which does not exist", name, b.key(), named)
					}
				}
			case !slices.Contains(opened[r.test], name):
				t.Errorf("%s: the block %q is assigned to %s, which does not exist or does not open the page", name, b.key(), r.test)
			}
		}
		for key := range runners[name] {
			if !used[key] {
				t.Errorf("the table has %q of %s, which has no such commands", key, name)
			}
		}
	}
	for name := range runners {
		if !slices.Contains(documents(t), name) {
			t.Errorf("the table has the page %s, which does not exist", name)
		}
	}
}

var testNames = regexp.MustCompile(`\bTest[A-Z]\w+`)

// tests returns the pages that each test function of the folder test opens.
func tests(t *testing.T) map[string][]string {
	t.Helper()
	opened := map[string][]string{}
	err := filepath.WalkDir(filepath.Join(root(), "test"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, isFunc := decl.(*ast.FuncDecl)
			if !isFunc || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			opened[f.Name.Name] = nil
			ast.Inspect(f, func(n ast.Node) bool {
				if name, ok := opens(n); ok {
					opened[f.Name.Name] = append(opened[f.Name.Name], name)
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// opens returns the page of a call of pages.Open.
func opens(n ast.Node) (page string, ok bool) {
	call, isCall := n.(*ast.CallExpr)
	if !isCall || len(call.Args) != 2 {
		return "", false
	}
	f, isSelector := call.Fun.(*ast.SelectorExpr)
	if !isSelector || f.Sel.Name != "Open" {
		return "", false
	}
	literal, isLiteral := call.Args[1].(*ast.BasicLit)
	if from, isIdent := f.X.(*ast.Ident); !isIdent || from.Name != "pages" || !isLiteral {
		return "", false
	}
	page, err := strconv.Unquote(literal.Value)
	return page, err == nil
}

func TestBlocks(t *testing.T) {
	t.Parallel()
	got := blocksOf("# A\n```sh\none\n```\ntext\n```yaml\n# b.yaml\n```\n## B\n- item\n\n  ```sh\n  two\n  three\n  ```\n```sh\nfour\n```\n")
	want := []Block{
		{"A", 1, "sh", "one\n"}, {"A", 0, "yaml", "# b.yaml\n"}, {"B", 1, "sh", "two\nthree\n"}, {"B", 2, "sh", "four\n"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("blocksOf (-want +got):\n%s", diff)
	}
}

// TestMissedBlocks requires that a test that leaves out one of its blocks fails.
func TestMissedBlocks(t *testing.T) {
	t.Parallel()
	p := &Page{t: named{t, "TestPrivilegedGuide/one"}, name: "docs/guide.md", taken: map[string]bool{}}
	p.blocks = []Block{{"Look inside", 1, "sh", "a"}, {"Look inside", 2, "sh", "b"}, {"Clean up", 1, "sh", "c"}}
	p.Block("Look inside", 2)
	if diff := cmp.Diff([]string{"Look inside 1"}, p.missed()); diff != "" {
		t.Errorf("missed (-want +got):\n%s", diff)
	}
}

// named is a test with another name.
type named struct {
	testing.TB
	name string
}

func (n named) Name() string { return n.name }
