// Package executable finds the programs that rik runs. They are next to the running program, or on
// the PATH.
package executable

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// Find returns the path of a program. It prefers the one next to the running program.
func Find(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		self = ""
	}
	return FindFrom(self, name)
}

// FindFrom is Find for a running program at a path. If the path is empty, only the PATH is searched.
func FindFrom(self, name string) (string, error) {
	if self != "" {
		beside := filepath.Join(filepath.Dir(self), name)
		if Check(beside) == nil {
			return beside, nil
		}
	}
	return exec.LookPath(name)
}

// Check returns an error if a file cannot be executed.
func Check(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("the file does not exist")
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("is not a file")
	case info.Mode()&0o111 == 0:
		return errors.New("is not executable")
	}
	return nil
}
