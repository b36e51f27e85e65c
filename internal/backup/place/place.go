// Package place stores backups: in a directory, or in a bucket of an S3-compatible store.
//
// A backup appears under its name when it is complete, and not before.
package place

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/backup"
)

// Place holds backups under names.
type Place interface {
	// Put stores a backup. It stores nothing if the reader fails.
	Put(ctx context.Context, name string, content io.Reader) error
	// Open opens a backup.
	Open(ctx context.Context, name string) (io.ReadCloser, error)
	// List returns the backups, oldest first by their names.
	List(ctx context.Context) ([]Item, error)
	// Remove removes a backup.
	Remove(ctx context.Context, name string) error
	// Path returns the name with the place, for messages and for Parse.
	Path(name string) string
}

// Item is a stored backup.
type Item struct {
	Name     string    `json:"name"`
	Bytes    int64     `json:"bytes"`
	Modified time.Time `json:"modified"`
}

// s3Scheme begins the address of a bucket.
const s3Scheme = "s3://"

// Parse returns the place of an address, and the name in it. The address is a file, a directory, or
// s3://bucket/prefix. The name is empty for a directory, and for a prefix: an address in a bucket
// that does not end with backup.Extension.
func Parse(address string) (Place, string, error) {
	if rest, ok := strings.CutPrefix(address, s3Scheme); ok {
		return parseBucket(rest)
	}
	if strings.Contains(address, "://") {
		return nil, "", fmt.Errorf("%q is neither a file or a directory nor s3://bucket/prefix", address)
	}
	if address == "" {
		return nil, "", errors.New("the place of the backup is empty: use a file, a directory, or s3://bucket/prefix")
	}
	if info, err := os.Stat(address); err == nil && info.IsDir() || strings.HasSuffix(address, "/") {
		return directory(filepath.Clean(address)), "", nil
	}
	return directory(filepath.Dir(address)), filepath.Base(address), nil
}

// directory is a Place on this machine.
type directory string

func (d directory) Path(name string) string { return filepath.Join(string(d), name) }

func (d directory) Put(ctx context.Context, name string, content io.Reader) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("creating the directory of the backup: %w", err)
	}
	return atomicfile.Copy(d.Path(name), withContext{ctx, content}, 0o600)
}

func (d directory) Open(_ context.Context, name string) (io.ReadCloser, error) {
	return os.Open(d.Path(name))
}

func (d directory) List(context.Context) ([]Item, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var items []Item
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), backup.Extension) || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed in the meantime
		}
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() {
			items = append(items, Item{Name: e.Name(), Bytes: info.Size(), Modified: info.ModTime()})
		}
	}
	sortItems(items)
	return items, nil
}

func (d directory) Remove(_ context.Context, name string) error { return os.Remove(d.Path(name)) }

func sortItems(items []Item) {
	slices.SortFunc(items, func(a, b Item) int { return strings.Compare(a.Name, b.Name) })
}

// withContext is a reader that fails when its context ends.
type withContext struct {
	ctx context.Context //nolint:containedctx // of one call
	io.Reader
}

func (r withContext) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}
