package oci

import (
	"context"
	"os/exec"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Version returns the first line of a runtime's version, such as "runc 1.5.2". It is empty if the
// program prints none.
func Version(ctx context.Context, runtime string) string {
	out, err := exec.CommandContext(ctx, runtime, "--version").Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.Replace(strings.TrimSpace(line), " version ", " ", 1)
}

// ValidRuntime reports whether a name can be that of an additional runtime.
func ValidRuntime(name string) bool {
	return len(validation.IsDNS1123Label(name)) == 0 && name != DefaultRuntime
}
