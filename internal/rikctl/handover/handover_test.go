package handover

import (
	"errors"
	"testing"
)

func TestApplies(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		program string
		args    []string
		want    bool
	}{
		{"rik", []string{"deploy", "-f", "x"}, true},
		{"rik", []string{"get", "apps"}, true},
		{"rik", []string{"delete", "nginx"}, true},
		{"rik", []string{"debug", "bundle"}, true},
		{"rik", []string{"server"}, false},
		{"rik", nil, false},
		{"controller", []string{"get"}, false},
	} {
		if got := Applies(tc.program, tc.args); got != tc.want {
			t.Errorf("Applies(%s, %v) = %v, want %v", tc.program, tc.args, got, tc.want)
		}
	}
}

// Not parallel: it changes the PATH.
func TestRunWithoutRikctl(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := Run([]string{"get", "apps"}); !errors.Is(err, errNoRikctl) {
		t.Errorf("Run() without rikctl = %v", err)
	}
}
