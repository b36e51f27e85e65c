// Package users hands the commands of users, of which rik has some too, to rikctl.
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

// commands are those of rikctl that rik has too, as the published design
// writes them: rik deploy, rik get apps, rik delete NAME.
var commands = []string{"deploy", "get", "delete"}

// errNoRikctl says that the program with the users' commands is missing.
var errNoRikctl = errors.New("rikctl is neither next to rik nor on the PATH: install it, it contains the commands for users")

// Means says whether a command line of a program is rikctl's.
func Means(program string, args []string) bool {
	return program == "rik" && len(args) > 0 && slices.Contains(commands, args[0])
}

// Run replaces the process by rikctl with the same arguments; it returns
// only when that fails. Linking its commands in would cost every server 20 MB.
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

// findRikctl prefers the one that was installed together with the program.
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
