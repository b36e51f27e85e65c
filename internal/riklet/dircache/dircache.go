package dircache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/lockfile"
	"rik.dev/rik/internal/riklet/flight"
)

var (
	// ErrLocked is returned by Open: another Cache, perhaps in another process, uses the
	// directory.
	ErrLocked = errors.New("in use")
	// ErrInvalidName is returned for a key or user that is not a plain file name.
	ErrInvalidName = errors.New("invalid name")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("closed")
)

// name matches one path component that no tool interprets as an option.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Names below the root.
const (
	itemsDir = "items"
	pinsDir  = "pins"
	notesDir = "notes"
	tmpDir   = "tmp"
)

// Cache stores items in a directory. It is safe for concurrent use.
type Cache struct {
	root    string
	log     *slog.Logger
	lock    *lockfile.Lock
	now     func() time.Time
	flights *flight.Group[string, struct{}]

	// mu orders pinning, releasing and collecting, so that no item gets a pin between the check
	// of its pins and its removal. Only fast calls on single files happen under it.
	mu   sync.Mutex
	pins map[string]map[string]bool // users by key
}

// Open opens the cache at root, creates it if necessary, and removes what a crash left
// incomplete. Other users than root can pass through the root but not list it. The creator of an
// item decides whether they may read it.
func Open(root string, log *slog.Logger) (*Cache, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if !filepath.IsAbs(root) || filepath.Clean(root) == "/" {
		return nil, fmt.Errorf("%w: root %q is not an absolute path below /", ErrInvalidName, root)
	}
	s := &Cache{root: filepath.Clean(root), log: log, now: time.Now, flights: flight.New[string, struct{}](ErrClosed), pins: map[string]map[string]bool{}}
	for dir, mode := range map[string]fs.FileMode{"": 0o711, itemsDir: 0o711, pinsDir: 0o700, notesDir: 0o700, tmpDir: 0o700} {
		if err := os.MkdirAll(s.path(dir), mode); err != nil {
			return nil, fmt.Errorf("creating the cache: %w", err)
		}
		if err := os.Chmod(s.path(dir), mode); err != nil { // independently of the umask
			return nil, fmt.Errorf("creating the cache: %w", err)
		}
	}
	if err := s.acquireLock(); err != nil {
		return nil, err
	}
	if err := errors.Join(s.sweep(), s.loadPins()); err != nil {
		return nil, errors.Join(err, s.lock.Release())
	}
	return s, nil
}

func (s *Cache) path(parts ...string) string {
	return filepath.Join(append([]string{s.root}, parts...)...)
}

func (s *Cache) acquireLock() error {
	lock, err := lockfile.Take(s.path("lock"))
	var held *lockfile.HeldError
	if errors.As(err, &held) {
		return fmt.Errorf("the cache %[3]s is %[1]w by %[2]s; stop that process first", ErrLocked, held.By, s.root)
	}
	if err != nil {
		return fmt.Errorf("locking the cache: %w", err)
	}
	s.lock = lock
	return nil
}

// Close cancels the creation of items and releases the directory. Pins stay.
func (s *Cache) Close() error {
	s.flights.Close()
	return s.lock.Release()
}

// sweep removes the items that were being created or removed when the last process ended.
func (s *Cache) sweep() error {
	entries, err := os.ReadDir(s.path(tmpDir))
	if err != nil {
		return fmt.Errorf("reading the cache: %w", err)
	}
	for _, e := range entries {
		s.log.Info("removing temporary files of an interrupted process", "path", e.Name())
		if err := os.RemoveAll(s.path(tmpDir, e.Name())); err != nil {
			return fmt.Errorf("removing temporary files from the cache: %w", err)
		}
	}
	return nil
}

// Temp creates a directory for temporary files, on the file system of the items. The caller
// removes it; Open removes it if the caller could not.
func (s *Cache) Temp() (string, error) {
	dir, err := os.MkdirTemp(s.path(tmpDir), "new-")
	if err != nil {
		return "", fmt.Errorf("creating a directory in the cache: %w", err)
	}
	return dir, nil
}

// Discard removes a directory of Temp.
func (s *Cache) Discard(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		s.log.Warn("temporary files were not removed; the next start removes them", "path", dir, "err", err)
	}
}

// Take pins an item for a user and returns its directory. If the cache lacks the item, Take
// calls fill with an empty directory. Simultaneous calls share one call of fill, whose context
// lasts as long as one of them waits. After an error, the user has no new pin.
func (s *Cache) Take(ctx context.Context, user, key string, fill func(ctx context.Context, dir string) error) (string, error) {
	for {
		held, err := s.pin(user, key)
		if err != nil {
			return "", err
		}
		if err := s.Put(ctx, key, fill); err != nil {
			if !held {
				err = errors.Join(err, s.unpin(user, key))
			}
			return "", err
		}
		// Another call for the same user and item may have failed in the meantime and removed
		// the pin.
		dir, ok, err := s.Pin(user, key)
		if ok || err != nil {
			return dir, err
		}
	}
}

// Put creates an item without pinning it, so it may be removed at any time.
func (s *Cache) Put(ctx context.Context, key string, fill func(ctx context.Context, dir string) error) error {
	if !name.MatchString(key) {
		return fmt.Errorf("%w: key %q", ErrInvalidName, key)
	}
	_, err := s.flights.Do(ctx, key, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.ensure(ctx, key, fill)
	})
	return err
}

// Pin is Take for an item that must exist already. ok reports whether it did.
func (s *Cache) Pin(user, key string) (dir string, ok bool, err error) {
	held, err := s.pin(user, key)
	if err != nil {
		return "", false, err
	}
	if s.touch(key) {
		return s.path(itemsDir, key), true, nil
	}
	if held {
		return "", false, nil
	}
	return "", false, s.unpin(user, key)
}

// Has reports whether the item exists, and marks it as used if so.
func (s *Cache) Has(key string) bool { return name.MatchString(key) && s.touch(key) }

// touch marks an item as used now, and reports whether it exists.
func (s *Cache) touch(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.touchLocked(key)
}

func (s *Cache) touchLocked(key string) bool {
	now := s.now()
	return os.Chtimes(s.path(itemsDir, key), now, now) == nil
}

// ensure creates an item that does not exist.
func (s *Cache) ensure(ctx context.Context, key string, fill func(ctx context.Context, dir string) error) error {
	if s.touch(key) {
		return nil
	}
	dir, err := s.Temp()
	if err != nil {
		return err
	}
	defer s.Discard(dir)
	item := filepath.Join(dir, "item")
	err = os.Mkdir(item, 0o711)
	if err == nil {
		err = os.Chmod(item, 0o711)
	}
	if err != nil {
		return fmt.Errorf("creating a directory in the cache: %w", err)
	}
	if err := fill(ctx, item); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	return s.publish(key, item)
}

// publish moves an item to its place, after its content has been synced.
func (s *Cache) publish(key, item string) error {
	items, err := os.Open(s.path(itemsDir))
	if err != nil {
		return fmt.Errorf("opening the cache: %w", err)
	}
	defer func() { _ = items.Close() }()
	// Sync the file system with one call, because a tree has many files.
	if err := unix.Syncfs(int(items.Fd())); err != nil {
		return fmt.Errorf("writing %s to the disk: %w", key, err)
	}
	err = os.Rename(item, s.path(itemsDir, key))
	// An earlier run, which no caller waits for any more, may have created it first.
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("moving %s into the cache: %w", key, err)
	}
	s.touch(key)
	if err := items.Sync(); err != nil {
		return fmt.Errorf("writing %s to the disk: %w", key, err)
	}
	return nil
}
