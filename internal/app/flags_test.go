package app

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"rik.dev/rik/internal/app/node"
)

// parsed returns the flags of rik server for a command line.
func parsed(t *testing.T, line ...string) *flags {
	t.Helper()
	f := newFlags()
	s := pflag.NewFlagSet("server", pflag.ContinueOnError)
	f.common(s)
	f.listening(s)
	f.plane(s)
	f.schedulerPorts(s)
	f.nodeTimeout(s)
	if err := s.Parse(append([]string{"--data-dir", filepath.Join(t.TempDir(), "data")}, line...)); err != nil {
		t.Fatal(err)
	}
	return &f
}

func TestValidateNamesTheFlag(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		line, wants []string
	}{
		"defaults":            {nil, nil},
		"ports of the kernel": {[]string{"--port=0", "--worker-port=0", "--node-port=0"}, nil},
		"no directory":        {[]string{"--data-dir="}, []string{"--data-dir is empty", defaultDataDir}},
		"a file":              {[]string{"--data-dir=" + file}, []string{"--data-dir " + file, "is a file"}},
		"a name":              {[]string{"--bind-address=foo"}, []string{"--bind-address \"foo\""}},
		"one port for two":    {[]string{"--port=5000", "--worker-port=5000"}, []string{"--port and --worker-port are both 5000"}},
		"no port":             {[]string{"--port=70000", "--node-port=-1"}, []string{"--port 70000", "--node-port -1"}},
		"times":               {[]string{"--replace-after=-1s", "--node-timeout=-5s"}, []string{"--replace-after -1s", "--node-timeout -5s"}},
		"validity":            {[]string{"--node-certificate-validity=1s"}, []string{"--node-certificate-validity 1s"}},
		"datastore":           {[]string{"--datastore-cafile=/nonexistent"}, []string{"--datastore-cafile", "/nonexistent"}},
		"ranges":              {[]string{"--cluster-cidr=10.0.0.0/33"}, []string{"10.0.0.0/33"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := parsed(t, tc.line...)
			err := f.validate(f.validatePlane, f.validateScheduler, f.validateTogether)
			if len(tc.wants) == 0 && err != nil {
				t.Errorf("validate() = %v", err)
			}
			for _, want := range tc.wants {
				if !errors.Is(err, node.ErrUsage) || !strings.Contains(err.Error(), want) {
					t.Errorf("validate() = %v, want wrong usage with the text %q", err, want)
				}
			}
		})
	}
}

// Not parallel: it changes the environment.
func TestPortFromTheEnvironment(t *testing.T) {
	t.Setenv("PORT", "5001")
	if f := parsed(t); f.control.Port != 5001 || f.validate(f.validatePlane) != nil {
		t.Errorf("with PORT=5001 the port is %d, %v", f.control.Port, f.validate(f.validatePlane))
	}
	t.Setenv("PORT", "abc")
	f := parsed(t)
	if err := f.validate(f.validatePlane); err == nil || !strings.Contains(err.Error(), `PORT="abc"`) {
		t.Errorf("validate() = %v, want PORT refused", err)
	}
	if f = parsed(t, "--port=5002"); f.validate(f.validatePlane) != nil {
		t.Errorf("validate() = %v, want --port to win", f.validate(f.validatePlane))
	}
}
