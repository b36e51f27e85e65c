package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConnectionsOfTheClusterUseNoProxy fails on a gRPC connection that HTTPS_PROXY would
// divert: the variable is for registries, and parts of a cluster reach each other directly.
// The function that dials says grpc.WithNoProxy, or dials within the process.
func TestConnectionsOfTheClusterUseNoProxy(t *testing.T) {
	t.Parallel()
	found := 0
	for _, root := range []string{"../../internal", "../../cmd"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/testkit/") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(text), "grpc.NewClient(") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, d := range file.Decls {
				body := string(text[d.Pos()-file.FileStart : d.End()-file.FileStart])
				f, ok := d.(*ast.FuncDecl)
				if !ok || !strings.Contains(body, "grpc.NewClient(") {
					continue
				}
				found++
				if !strings.Contains(body, "grpc.WithNoProxy()") && !strings.Contains(body, `"passthrough:///in-process"`) {
					t.Errorf("%s: %s dials without grpc.WithNoProxy", path, f.Name.Name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 5 {
		t.Errorf("found %d functions that dial, want all", found)
	}
}
