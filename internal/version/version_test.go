package version

import (
	"os"
	"regexp"
	"runtime/debug"
	"testing"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

func TestServed(t *testing.T) {
	t.Parallel()
	for _, own := range []string{"v0.1.0-dev", "v1.2.3", "v0.0.0-20261122100000-0123456789ab+dirty", "a_b c"} {
		got := served(own)
		if _, err := utilversion.ParseSemantic(got); err != nil {
			t.Errorf("served(%q) = %q: %v", own, got, err)
		}
		if _, kubernetes := Split(got); kubernetes != Kubernetes {
			t.Errorf("Split(%q) gives Kubernetes %q", got, kubernetes)
		}
	}
	if own, kubernetes := Split("v1.36.3+rik-v0.1.0-dev"); own != "v0.1.0-dev" || kubernetes != "v1.36.3" {
		t.Errorf("Split = %q, %q", own, kubernetes)
	}
	if own, kubernetes := Split("v1.36.3+k3s1"); own != "" || kubernetes != "v1.36.3+k3s1" {
		t.Errorf("Split of another server's = %q, %q", own, kubernetes)
	}
}

// The constant cannot be derived at run time: tests and stripped builds have no
// list of modules.
func TestKubernetesIsThatOfTheModule(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (\S+)`).FindSubmatch(data)
	if m == nil || string(m[1]) != Kubernetes {
		t.Errorf("Kubernetes = %q, go.mod has %q", Kubernetes, m)
	}
}

// Not parallel: it sets what the linker sets.
func TestComplete(t *testing.T) {
	before := [4]string{Version, Commit, Date, Dirty}
	t.Cleanup(func() { Version, Commit, Date, Dirty = before[0], before[1], before[2], before[3] })
	info := &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}}
	for _, tc := range []struct{ linked, main, want string }{
		{"v9", "v1.2.3", "v9"}, {"", "v1.2.3", "v1.2.3"}, {"", "(devel)", unreleased}, {"", "", unreleased},
	} {
		Version, Commit, Date, Dirty = tc.linked, "", "", ""
		info.Main.Version = tc.main
		complete(info)
		if Version != tc.want || Commit != "abc" || Dirty != "true" {
			t.Errorf("linked as %q, module %q: Version = %q, Commit = %q, Dirty = %q; want %q, abc, true", tc.linked, tc.main, Version, Commit, Dirty, tc.want)
		}
	}
}
