// Package scratch creates directories for test processes. If a process is killed or times out,
// the next one removes its directories.
package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// owner is the file in a directory that its process keeps locked. The kernel releases the lock
// when the process ends in any way.
const owner = ".owner"

// Dir is a directory of this process.
type Dir struct {
	// Path of the directory, below the one for temporary files.
	Path string

	lock *os.File
}

// New creates a directory whose name begins with the prefix. It removes those with the same
// prefix whose processes have ended.
func New(prefix string) (*Dir, error) {
	if err := sweep(prefix); err != nil {
		return nil, fmt.Errorf("removing what ended processes left: %w", err)
	}
	path, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, fmt.Errorf("making a directory: %w", err)
	}
	d := &Dir{Path: path}
	if err := d.own(); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), d.Remove())
	}
	return d, nil
}

// own locks the file before it gets its name, so that no process finds it unlocked.
func (d *Dir) own() error {
	var err error
	if d.lock, err = os.CreateTemp(d.Path, owner); err != nil {
		return err
	}
	if err := syscall.Flock(int(d.lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	return os.Rename(d.lock.Name(), filepath.Join(d.Path, owner))
}

// Remove removes the directory with its content.
func (d *Dir) Remove() error {
	err := os.RemoveAll(d.Path)
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}

func sweep(prefix string) error {
	paths, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*", owner))
	if err != nil {
		return err
	}
	var problems []error
	for _, path := range paths {
		problems = append(problems, removeLeft(path))
	}
	return errors.Join(problems...)
}

// removeLeft removes a directory if no process holds its lock. It leaves a directory of another
// user, or one that another process is removing.
func removeLeft(lock string) error {
	file, err := os.OpenFile(lock, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(filepath.Dir(lock))
}
