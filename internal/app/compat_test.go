package app

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCompatExitCodes: scripts go by them, whatever the program is called.
func TestCompatExitCodes(t *testing.T) {
	dir := t.TempDir()
	crd := func(name, field string) string {
		path := filepath.Join(dir, name)
		text := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: widgets.example.dev}\n" +
			"spec:\n  group: example.dev\n  scope: Namespaced\n  names: {plural: widgets, kind: Widget}\n  versions:\n" +
			"  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {" + field + "}}}}\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	before, wider, other := crd("old.yaml", "size: {type: integer}"), crd("wider.yaml", "size: {type: number}"), crd("other.yaml", "size: {type: string}")
	for _, tc := range []struct {
		program string
		args    []string
		want    int
	}{
		{"compat", []string{before, wider}, 0},
		{"rik", []string{"compat", before, wider}, 0},
		{"compat", []string{before, other}, 1},
		{"rik", []string{"compat", before, other}, 1},
		{"compat", []string{before, filepath.Join(dir, "nowhere")}, 2},
		{"compat", []string{before}, 2},
		{"compat", []string{before, wider, "--no-such-flag"}, 2},
	} {
		if got := Main(tc.program, tc.args); got != tc.want {
			t.Errorf("%s %v = %d, want %d", tc.program, tc.args, got, tc.want)
		}
	}
}
