// Package version holds the version that the programs were built as.
package version

import (
	"runtime/debug"
	"strings"
)

// Set by the linker; see the Makefile. A build without it, such as that of
// go install, has what the toolchain noted.
var (
	// Version of rik.
	Version string
	// Commit that was built.
	Commit string
	// Date of that commit, as RFC 3339 has it.
	Date string
	// Dirty is true when files differed from the commit.
	Dirty string
)

// Kubernetes is the version of Kubernetes whose API server rik's is made of;
// that of go.mod.
const Kubernetes = "v1.36.3"

// unreleased is the version of a build from no tag.
const unreleased = "v0.1.0-dev"

func init() {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	complete(info)
}

// complete fills in what the linker did not set.
func complete(info *debug.BuildInfo) {
	if Version == "" && info.Main.Version != "" && info.Main.Version != "(devel)" {
		Version = info.Main.Version
	}
	if Version == "" {
		Version = unreleased
	}
	if Commit != "" {
		return
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			Commit = s.Value
		case "vcs.time":
			Date = s.Value
		case "vcs.modified":
			Dirty = s.Value
		}
	}
}

// mark parts Kubernetes' version from rik's.
const mark = "+rik-"

// Served is the version that the API server reports to Kubernetes' clients. It is the version of
// the Kubernetes API, which they compare with their own, with rik's version as build metadata.
func Served() string { return served(Version) }

func served(own string) string {
	// https://semver.org allows letters, digits, dots and hyphens there.
	return Kubernetes + mark + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		default:
			return '-'
		}
	}, own)
}

// Split takes what a server serves apart. own is empty if it is not rik's.
func Split(served string) (own, kubernetes string) {
	kubernetes, own, _ = strings.Cut(served, mark)
	return own, kubernetes
}
