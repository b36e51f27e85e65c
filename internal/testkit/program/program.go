// Package program finds the programs that tests start. A server that a test needs but does not
// test runs as a separate process. It has no race detector, and the test's own binary does not
// contain a Kubernetes API server.
package program

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

// EnvBin names the directory of the built programs. The tests of make set it.
const EnvBin = "RIK_BIN"

const (
	// testserver is a program only for tests: single parts of rik's servers.
	testserver = "testserver"
	// source is its package in the repository.
	source = "./internal/testkit/testserver"
	// tags are the build tags of hack/env.sh, so that packages that make has built are not
	// compiled again.
	tags = "containers_image_openpgp,netgo,osusergo,grpcnotrace"
)

// built caches the result, also an error, for all tests of a process.
var built = sync.OnceValues(build)

// Testserver returns the path of the program testserver. It is in the directory EnvBin. If it is
// not there, Testserver builds it from this source and keeps it for the next test process.
func Testserver() (string, error) {
	if dir := os.Getenv(EnvBin); dir != "" {
		path := filepath.Join(dir, testserver)
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
	}
	path, err := built()
	if err != nil {
		return "", fmt.Errorf("building %s: %w", testserver, err)
	}
	return path, nil
}

// Dir returns the directory of the programs that make builds: EnvBin, or the repository's bin.
func Dir() (string, error) {
	if dir := os.Getenv(EnvBin); dir != "" {
		return dir, nil
	}
	root, err := repository()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "bin"), nil
}

// build calls the go command, which does nothing if the program is up to date.
func build() (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	dir, err := cacheOf(root)
	if err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	path := filepath.Join(dir, testserver)
	cmd := exec.Command("go", "build", "-buildvcs=false", "-tags", tags, "-ldflags", "-s -w", "-o", path, source)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("running %s: %w\n%s", cmd, err, out)
	}
	return path, nil
}

// repository returns the directory of go.mod above the working directory, which is that of the
// test's package. A program does not contain the path of its source (hack/env.sh).
func repository() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("looking for the repository: %w", err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is in no module: set %s to the folder of the built programs", wd, EnvBin)
		}
	}
}

// cacheOf returns a directory for one checkout, separate from those of others.
func cacheOf(root string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("looking for the user's cache: %w", err)
	}
	sum := sha256.Sum256([]byte(root))
	dir := filepath.Join(cache, "rik-test", fmt.Sprintf("%x", sum[:6]))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("making a folder for built programs: %w", err)
	}
	return dir, nil
}

// lock locks the file against other processes. The kernel releases the lock when the process
// ends.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a lock: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}
