package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"rik.dev/rik/internal/riklet/progress"
	"rik.dev/rik/internal/riklet/safeopen"
)

// always lists directories that no tenant's path may lead into: secrets of the machine, and
// virtual file systems.
var always = []string{"/proc", "/sys", "/dev", "/root", "/boot", "/run", "/var/run", "/var/lib/riklet", "/var/lib/rik", "/etc"}

// LocalPath validates a path of the node from a template, and resolves it. It must exist and be
// absolute. It must not lead to the directories that are always private, nor to or above those
// in private. Symbolic links are resolved before the check. Only the node's administrator can
// change the path later.
func LocalPath(path string, private []string) (string, fs.FileInfo, error) {
	if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
		return "", nil, fmt.Errorf("%w: %q is not an absolute path", ErrRefused, shorten(path))
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", nil, fmt.Errorf("%w: %s does not exist on this node: %w", ErrRefused, shorten(path), err)
	}
	if real == "/" {
		return "", nil, fmt.Errorf("%w: it is the root directory of the node", ErrRefused)
	}
	for _, p := range append(append([]string(nil), always...), private...) {
		if resolved, err := filepath.EvalSymlinks(p); err == nil {
			p = resolved
		}
		p = filepath.Clean(p)
		if below(real, p) || below(p, real) {
			return "", nil, fmt.Errorf("%w: %s leads to %s, which is private to the node", ErrRefused, shorten(path), p)
		}
	}
	info, err := os.Stat(real)
	if err != nil {
		return "", nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return real, info, nil
}

func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// Copy is Get for a file of the node. The copy does not change while it is read.
func (f *Fetcher) Copy(ctx context.Context, from, to, sum string) (*Result, error) {
	if sum != "" {
		var err error
		if sum, err = CheckSHA256(sum); err != nil {
			return nil, err
		}
	}
	ctx, stop := context.WithTimeoutCause(ctx, f.cfg.Time, fmt.Errorf("%w: the limit is %s", ErrTimeout, f.cfg.Time))
	defer stop()
	file, err := openRegular(from)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("copying %s: %w", shorten(from), err)
	}
	work := progress.Of(ctx)
	work.Begin(progress.Progress{What: "copying " + shorten(from), Total: info.Size()})
	body := readerFunc(func(p []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		n, err := file.Read(p)
		work.Add(int64(n))
		return n, err
	})
	res, err := f.save(body, -1, Request{Path: to, SHA256: sum})
	if err != nil {
		return nil, fmt.Errorf("copying %s: %w", shorten(from), err)
	}
	return res, nil
}

// Sum returns the SHA-256 of a file of the node.
func (f *Fetcher) Sum(ctx context.Context, path string) (string, error) {
	file, err := openRegular(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	n, err := io.Copy(hash, io.LimitReader(readerFunc(func(p []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return file.Read(p)
	}), f.cfg.Bytes+1))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", shorten(path), err)
	}
	if n > f.cfg.Bytes {
		return "", fmt.Errorf("%w: %s has more than %d bytes", ErrTooLarge, shorten(path), f.cfg.Bytes)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// openRegular opens only regular files, because others could block or be endless.
func openRegular(path string) (*os.File, error) {
	file, err := safeopen.OpenNoFollow(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return file, nil
}
