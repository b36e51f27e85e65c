// Package program finds the programs that tests start. A server that a test needs, and
// is not about, runs as a process of its own: without the race detector, and without a
// Kubernetes API server in the test's own binary.
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

// EnvBin names the folder of the built programs; the tests of make set it.
const EnvBin = "RIK_BIN"

const (
	// testserver is what only tests need: parts of rik's servers, alone.
	testserver = "testserver"
	// source of it, below the repository.
	source = "./internal/testkit/testserver"
	// tags are those of hack/env.sh: what make built already is not compiled again.
	tags = "containers_image_openpgp,netgo,osusergo,grpcnotrace"
)

// built is for all tests of a process, also when it cannot be.
var built = sync.OnceValues(build)

// Testserver is the path of the program of that name: the one in the folder that EnvBin
// names or, where there is none, one that is built of this source now and kept for the
// next test process.
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

// Dir is the folder of the programs that make builds: EnvBin's, or the repository's bin.
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

// build leaves the decision what is to be done to the go command, which does nothing if
// the program is that of this source already.
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

// repository is the folder of go.mod above this one: a test runs in that of its package.
// A program does not know where its source was (hack/env.sh).
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

// cacheOf is a folder for one checkout, beside those of others.
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

// lock is held by one process at a time; the kernel takes it from one that ends.
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
