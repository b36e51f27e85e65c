package rikcluster

import (
	"flag"
	"os"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPatternOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, asked, want string }{
		{"TestA", "", "^TestA$"},
		{"TestA", "^TestA$", "^TestA$"},
		{"TestA", "Test/one/two", "^TestA$/one/two"},
		{"TestA/hack/demo.sh", "TestA", `^TestA$/^hack$/^demo\.sh$`},
		{"TestA", "TestA|TestB/one", "^TestA$"},
		{"TestA/one", "^TestA$/^one$/^deep$", "^TestA$/^one$/^deep$"},
	} {
		if got := patternOf(tc.name, tc.asked); got != tc.want {
			t.Errorf("patternOf(%q, %q) = %q, want %q", tc.name, tc.asked, got, tc.want)
		}
	}
}

func TestWithoutFrame(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ name, out, want string }{
		"plain": {
			"TestA",
			"=== RUN   TestA\n=== RUN   TestA/sub\n    a_test.go:1: said\n--- FAIL: TestA (1.00s)\n    --- FAIL: TestA/sub (0.50s)\nFAIL\n",
			"=== RUN   TestA/sub\n    a_test.go:1: said\n    --- FAIL: TestA/sub (0.50s)\n=== NAME  TestA\n",
		},
		"for go test -json": {
			"TestA",
			"\x16=== RUN   TestA\n\x16=== RUN   TestA/sub\n    a_test.go:1: said\n\x16    --- PASS: TestA/sub (0.50s)\n\x16--- PASS: TestA (1.00s)\n\x16PASS\n",
			"\x16=== RUN   TestA/sub\n    a_test.go:1: said\n\x16    --- PASS: TestA/sub (0.50s)\n\x16=== NAME  TestA\n",
		},
		"a subtest": {
			"TestA/sub",
			"=== RUN   TestA\n=== RUN   TestA/sub\n=== RUN   TestA/sub/deep\n--- PASS: TestA (1.00s)\n    --- PASS: TestA/sub (1.00s)\n        --- PASS: TestA/sub/deep (1.00s)\nPASS\n",
			"=== RUN   TestA/sub/deep\n        --- PASS: TestA/sub/deep (1.00s)\n=== NAME  TestA/sub\n",
		},
	} {
		if diff := cmp.Diff(tc.want, string(withoutFrame([]byte(tc.out), tc.name))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestAlone runs each subtest in a separate process. One of them fails there, on request.
func TestAlone(t *testing.T) {
	const fails = "RIK_E2E_ALONE_FAILS"
	if os.Getenv(fails) == "" && os.Getenv(aloneEnv) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAlone$")
		cmd.Env = append(os.Environ(), fails+"=1")
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("the failure in the process is none of its parent's:\n%s", out)
		}
	}
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			if !Alone(t) {
				return
			}
			if got, want := flag.Lookup("test.run").Value.String(), "^TestAlone$/^"+name+"$"; got != want {
				t.Errorf("the process runs %q, want %q", got, want)
			}
			if name == "second" && os.Getenv(fails) != "" {
				t.Error("asked to fail")
			}
		})
	}
}
