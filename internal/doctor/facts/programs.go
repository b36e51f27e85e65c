package facts

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/executable"
	"rik.dev/rik/internal/riklet/runner/oci"
)

// versionTimeout bounds the run of a program that prints its version.
const versionTimeout = 10 * time.Second

// versionArguments are those with which a program prints its version.
var versionArguments = map[string][]string{
	"rik": {"version"}, "riklet": {"version"}, "rikctl": {"version", "--client"}, "runc": {"--version"},
	"qemu-system-aarch64": {"--version"}, "qemu-system-x86_64": {"--version"},
}

// versionText finds a version such as v1.2.3-4-gabc or 1.2.3 in what a program prints.
var versionText = regexp.MustCompile(`\bv?\d+\.\d+[^\s,)]*`)

func (g *gatherer) programs(ctx context.Context) []doctor.Program {
	all := slices.Clone(g.cfg.Programs)
	for i := range all {
		p := &all[i]
		if p.Path == "" {
			p.Path = find(p.Name)
		}
		if p.Path == "" {
			continue
		}
		p.Version = versionOf(ctx, *p)
		if p.Name == "runc" {
			if err := oci.CheckRunc(ctx, p.Path); err != nil {
				p.Problem = err.Error()
			}
		}
	}
	return all
}

// find looks for a program next to this one, on the PATH, and where administrators have programs.
func find(name string) string {
	if path, err := executable.Find(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/libexec"} {
		if path := filepath.Join(dir, name); executable.Check(path) == nil {
			return path
		}
	}
	return ""
}

func versionOf(ctx context.Context, p doctor.Program) string {
	arguments, ok := versionArguments[p.Name]
	if !ok {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, p.Path, arguments...).Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return versionText.FindString(line)
}
