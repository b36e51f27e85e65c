// Package handover runs rikctl for the commands of users that the program rik accepts. It does not
// link rikctl, which would add 20 MB to each server.
package handover

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"rik.dev/rik/internal/executable"
)

// commands are the commands of rikctl that rik also accepts. The published design uses them: rik
// deploy, rik get apps, rik delete NAME. The file for a bug report is written on servers and nodes.
var commands = []string{"deploy", "get", "delete", "debug"}

// errNoRikctl is the error of a missing rikctl.
var errNoRikctl = errors.New("rikctl is neither next to rik nor on the PATH: install it, it contains the commands for users")

// Applies reports whether rikctl must run a command line of a program.
func Applies(program string, args []string) bool {
	return program == "rik" && len(args) > 0 && slices.Contains(commands, args[0])
}

// Run replaces the process with rikctl and the same arguments. It returns only if that fails.
func Run(args []string) error {
	path, err := executable.Find("rikctl")
	if err != nil {
		return errNoRikctl
	}
	err = syscall.Exec(path, append([]string{"rikctl"}, args...), os.Environ())
	return fmt.Errorf("running %s: %w", path, err)
}
