package versions

import "testing"

func TestServerText(t *testing.T) {
	t.Parallel()
	for served, want := range map[string]string{
		"v1.36.3+rik-v0.1.0-dev": "v0.1.0-dev (Kubernetes API v1.36.3)",
		"v1.30.1+k3s1":           "v1.30.1+k3s1 (not a rik server)",
	} {
		if got := serverText(served); got != want {
			t.Errorf("serverText(%q) = %q, want %q", served, got, want)
		}
	}
}
