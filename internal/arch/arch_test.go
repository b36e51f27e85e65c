package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "rik.dev/rik"

type listed struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
}

// TestDirections fails on an import that the table does not allow, and on a
// package without a rule.
func TestDirections(t *testing.T) {
	t.Parallel()
	packages := list(t)
	if len(packages) < 10 {
		t.Fatalf("go list found %d packages of the module, want all", len(packages))
	}
	for _, p := range packages {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		rule, ok := ruleFor(path)
		if !ok {
			t.Errorf("%s has no rule: add it to internal/arch", path)
			continue
		}
		for _, imported := range p.Imports {
			if own, ok := strings.CutPrefix(imported, module+"/"); ok && !rule.allows(own) {
				t.Errorf("%s imports %s: rule %q does not allow it", path, own, rule.Under)
			}
		}
		for _, imported := range append(p.TestImports, p.XTestImports...) {
			own, ok := strings.CutPrefix(imported, module+"/")
			if ok && !rule.allows(own) && !slices.ContainsFunc(forTests, func(dir string) bool { return below(own, dir) }) {
				t.Errorf("a test of %s imports %s: rule %q does not allow it", path, own, rule.Under)
			}
			if ok && !testMayImport(path, own) {
				t.Errorf("a test of %s imports %s: take internal/testkit/apiprocess or kcptest, which start a process", path, own)
			}
		}
		for _, dep := range p.Deps {
			if rule.forbids(dep) {
				t.Errorf("%s depends on %s: rule %q forbids it", path, dep, rule.Under)
				break
			}
		}
	}
}

// TestRuleForPicksTheLongest makes sure that the narrower of two rules applies.
func TestRuleForPicksTheLongest(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"internal/scheduler/placement": "internal/scheduler/placement",
		"internal/scheduler/inventory": "internal/scheduler",
		"cmd/rikctl":                   "cmd/rikctl",
		"cmd/scheduler":                "cmd",
	} {
		if rule, ok := ruleFor(path); !ok || rule.Under != want {
			t.Errorf("ruleFor(%q) = %q, %v, want %q", path, rule.Under, ok, want)
		}
	}
	if rule, ok := ruleFor("pkg/util"); ok {
		t.Errorf("ruleFor(pkg/util) = %q, want none", rule.Under)
	}
}

// TestCommandsOfRikctlHaveRulesOfTheirOwn makes sure that no package below the command line falls
// under the rule of its root, which may import all of them.
func TestCommandsOfRikctlHaveRulesOfTheirOwn(t *testing.T) {
	t.Parallel()
	const root = "internal/rikctl"
	for _, p := range list(t) {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		if rule, _ := ruleFor(path); rule.Under == root && path != root {
			t.Errorf("%s has no rule of its own: add it to rikctlShared or rikctlCommands", path)
		}
	}
	rule, _ := ruleFor(root + "/get")
	if rule.allows(root+"/apply") || !rule.allows(root+"/access") {
		t.Errorf("the rule of a command is %+v; it allows what commands share, and no other command", rule)
	}
}

func TestServersInPackagesAreForTheirOwnTests(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		path, kit string
		want      bool
	}{
		{"internal/apiserver/signer", "internal/testkit/kcpinside", true},
		{"internal/rikctl", "internal/testkit/apitest", false},
		{"internal/multicluster/syncer", "internal/testkit/kcpinside", false},
		{"internal/multicluster/syncer", "internal/testkit/kcptest", true},
	} {
		if got := testMayImport(tc.path, tc.kit); got != tc.want {
			t.Errorf("testMayImport(%q, %q) = %v, want %v", tc.path, tc.kit, got, tc.want)
		}
	}
}

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-tags", "containers_image_openpgp", "-json=ImportPath,Imports,TestImports,XTestImports,Deps", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var packages []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
