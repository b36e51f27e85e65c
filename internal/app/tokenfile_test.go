package app

import "testing"

func TestTokenFile(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ flag, want string }{
		{"", "/var/lib/rik/data/node-token"},
		{"/run/shared/token", "/run/shared/token"},
	} {
		if got := (ControlPlane{DataDir: "/var/lib/rik/data/", TokenFile: tc.flag}).tokenFile(); got != tc.want {
			t.Errorf("with --node-token-file=%q, tokenFile() = %q, want %q", tc.flag, got, tc.want)
		}
	}
}
