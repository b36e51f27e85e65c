package app

import "testing"

func TestCalled(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"rik":                        "rik",
		"/usr/local/bin/rik":         "rik",
		"./bin/syncer":               "syncer",
		"deployment-splitter":        "deployment-splitter",
		"/opt/rik/controller":        "controller",
		"/opt/controller/rik-v0.1.0": "rik",
		"server":                     "rik",
		"":                           "rik",
	} {
		got := Called(path)
		if got != want {
			t.Errorf("Called(%q) = %q, want %q", path, got, want)
		}
		if name := commandOf(got).Name(); name != want {
			t.Errorf("the program of %q is %q, want %q", path, name, want)
		}
	}
}
