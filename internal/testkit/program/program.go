// Package program finds the programs that tests start. A server that a test needs, and
// is not about, runs as a process of its own: without the race detector, and without a
// Kubernetes API server in the test's own binary.
package program

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
)

// EnvBin names the folder of the built programs; the tests of make set it.
const EnvBin = "RIK_BIN"

const (
	// KCP is the program of that name.
	KCP = "kcp"
	// Testserver is what only tests need: parts of rik's servers, alone.
	Testserver = "testserver"
)

// sources of the programs that can be built here, below the repository.
var sources = map[string]string{KCP: "cmd/kcp", Testserver: "internal/testkit/testserver"}

// tags are those of every build of rik.
const tags = "containers_image_openpgp"

var built struct {
	sync.Mutex
	paths map[string]string
}

// Path of a program of rik: the one in the folder that EnvBin names or, where there is
// none, one that is built of this source now and kept for the next test process.
func Path(ctx context.Context, name string) (string, error) {
	if dir := os.Getenv(EnvBin); dir != "" {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
	}
	built.Lock()
	defer built.Unlock()
	if path, ok := built.paths[name]; ok {
		return path, nil
	}
	path, err := build(ctx, name)
	if err != nil {
		return "", fmt.Errorf("building %s for a test: %w", name, err)
	}
	if built.paths == nil {
		built.paths = map[string]string{}
	}
	built.paths[name] = path
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
func build(ctx context.Context, name string) (string, error) {
	source, ok := sources[name]
	if !ok {
		return "", fmt.Errorf("programmer error: %q is no program that tests build", name)
	}
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
	path := filepath.Join(dir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-tags", tags, "-ldflags", "-s -w", "-o", path, "./"+source)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("running %s: %w\n%s", cmd, err, out)
	}
	return path, nil
}

// repository is known by the place of this source.
func repository() (string, error) {
	_, self, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(self) {
		return "", fmt.Errorf("the source's place is not known: set %s to the folder of the built programs", EnvBin)
	}
	return filepath.Join(filepath.Dir(self), "..", "..", ".."), nil
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
