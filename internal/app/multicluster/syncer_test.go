package multicluster

import (
	"io"
	"slices"
	"strings"
	"testing"
)

func TestSyncerAcceptsTheFlagsOfThePrototype(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ args, want []string }{
		"today's":         {[]string{"--cluster", "east", "pods"}, []string{"--cluster", "east", "pods"}},
		"the prototype's": {[]string{"-from_kubeconfig", "f", "-cluster", "east", "-to_context=c"}, []string{"--from-kubeconfig", "f", "--cluster", "east", "--to-context=c"}},
		"two dashes":      {[]string{"--from_cluster=admin"}, []string{"--from-cluster=admin"}},
		"a value":         {[]string{"--cluster=-to_context", "a=b"}, []string{"--cluster=-to_context", "a=b"}},
		"unknown":         {[]string{"-x_y"}, []string{"-x_y"}},
		"after the end":   {[]string{"--", "-cluster"}, []string{"--", "-cluster"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := prototypeFlags(tc.args, syncerCommand().Flags()); !slices.Equal(got, tc.want) {
				t.Errorf("prototypeFlags(%q) = %q, want %q", tc.args, got, tc.want)
			}
		})
	}
}

func TestSyncerNamesMissingFlags(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"nothing":       {nil, "--from-kubeconfig FILE --cluster NAME"},
		"no file":       {[]string{"--from-kubeconfig", "/nowhere/kubeconfig", "--cluster", "east"}, "reading --from-kubeconfig"},
		"a level":       {[]string{"--log-level", "loud"}, "use debug, info, warn or error"},
		"unknown flags": {[]string{"--nothing"}, "unknown flag"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := syncerCommand()
			c.SetOut(io.Discard)
			c.SetErr(io.Discard)
			c.SilenceErrors, c.SilenceUsage = true, true
			c.SetArgs(tc.args)
			if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("syncer %q = %v, want %q", tc.args, err, tc.want)
			}
		})
	}
}
