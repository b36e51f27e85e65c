// Package users runs rikctl for the commands of users that the program rik accepts.
package users

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// commands are the commands of rikctl that rik also accepts. The published design uses them: rik
// deploy, rik get apps, rik delete NAME.
var commands = []string{"deploy", "get", "delete"}

// errNoRikctl is the error of a missing rikctl.
var errNoRikctl = errors.New("rikctl is neither next to rik nor on the PATH: install it, it contains the commands for users")

// Means reports whether rikctl must run a command line of a program.
func Means(program string, args []string) bool {
	return program == "rik" && len(args) > 0 && slices.Contains(commands, args[0])
}

// Run replaces the process with rikctl and the same arguments. It returns only if that fails.
// Linking rikctl's commands into rik would add 20 MB to each server.
func Run(args []string) error {
	self, err := os.Executable()
	if err != nil {
		self = ""
	}
	path, err := findRikctl(self)
	if err != nil {
		return err
	}
	err = syscall.Exec(path, append([]string{"rikctl"}, args...), os.Environ())
	return fmt.Errorf("running %s: %w", path, err)
}

// findRikctl returns the path of rikctl. It prefers the one in the program's own directory.
func findRikctl(self string) (string, error) {
	if self != "" {
		beside := filepath.Join(filepath.Dir(self), "rikctl")
		if path, err := exec.LookPath(beside); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath("rikctl")
	if err != nil {
		return "", errNoRikctl
	}
	return path, nil
}
