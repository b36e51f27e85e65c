package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"rik.dev/rik/internal/riklet/progress"
	"rik.dev/rik/internal/riklet/safeopen"
)

// loadedFile is the file in the store that says which archives it has loaded.
const loadedFile = "archives.json"

// loadedArchive is an archive that the store has loaded.
type loadedArchive struct {
	Size       int64
	Modified   time.Time
	SHA256     string
	References []string // its images
}

// LoadArchives imports the image archives of a directory, in the order of their names. An archive
// that was loaded before is skipped if its content is the same and the node still has its images.
// LoadArchives must be called at most once, before any pull; it returns at once. From then on, a pull
// of an image that the node does not have waits until load has returned.
//
// load returns the problems by the names of the archives. A directory that does not exist has none.
func (s *Store) LoadArchives(dir string) (load func(ctx context.Context) map[string]error) {
	done := make(chan struct{})
	s.mu.Lock()
	s.loading = done
	s.mu.Unlock()
	return func(ctx context.Context) map[string]error {
		defer close(done)
		return s.loadArchives(ctx, dir)
	}
}

// awaitArchives waits while archives are being loaded. It reports whether it has waited.
func (s *Store) awaitArchives(ctx context.Context) (waited bool, err error) {
	s.mu.Lock()
	loading := s.loading
	s.mu.Unlock()
	if loading == nil {
		return false, nil
	}
	select {
	case <-loading:
		return false, nil
	default:
	}
	progress.Of(ctx).Begin(progress.Progress{What: "waiting for the node to load its image archives"})
	select {
	case <-loading:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

func (s *Store) loadArchives(ctx context.Context, dir string) map[string]error {
	problems := map[string]error{}
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return problems
	}
	if err != nil {
		problems[dir] = err
		return problems
	}
	known := map[string]loadedArchive{}
	if err := readJSON(s.path(loadedFile), &known); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("the list of loaded image archives cannot be read; all are loaded again", "err", err)
	}
	before := maps.Clone(known)
	there := map[string]bool{}
	for _, f := range files {
		if f.IsDir() || strings.HasPrefix(f.Name(), ".") {
			continue
		}
		there[f.Name()] = true
		now, err := s.loadArchive(ctx, filepath.Join(dir, f.Name()), known)
		if ctx.Err() != nil {
			break // the next start loads the others
		}
		delete(known, f.Name())
		if err != nil {
			problems[f.Name()] = err
			s.log.Error("an image archive was not loaded", "path", filepath.Join(dir, f.Name()), "err", err)
			continue
		}
		known[f.Name()] = now
	}
	if ctx.Err() == nil {
		maps.DeleteFunc(known, func(name string, _ loadedArchive) bool { return !there[name] })
	}
	if !maps.EqualFunc(before, known, func(a, b loadedArchive) bool {
		return a.Size == b.Size && a.Modified.Equal(b.Modified) && a.SHA256 == b.SHA256 && slices.Equal(a.References, b.References)
	}) {
		if err := writeJSON(s.path(loadedFile), known, atOnce); err != nil {
			s.log.Warn("the list of loaded image archives was not saved; all are loaded again at the next start", "err", err)
		}
	}
	return problems
}

// loadArchive imports one archive, unless it was loaded before.
func (s *Store) loadArchive(ctx context.Context, path string, known map[string]loadedArchive) (loadedArchive, error) {
	now, err := statArchive(path)
	if err != nil {
		return now, err
	}
	if old, ok := known[filepath.Base(path)]; ok && old.Size == now.Size && old.Modified.Equal(now.Modified) && s.has(old.References) {
		return old, nil
	}
	if now.SHA256, err = hashFile(ctx, path); err != nil {
		return now, err
	}
	// A copy, or the same file with another name or time.
	for _, old := range known {
		if old.SHA256 == now.SHA256 && s.has(old.References) {
			now.References = old.References
			return now, nil
		}
	}
	results, err := s.Import(ctx, ImportRequest{File: path})
	if err != nil {
		return now, err
	}
	var errs []error
	for _, r := range results {
		if r.Err != nil {
			errs = append(errs, r.Err)
			continue
		}
		now.References = append(now.References, r.Image.Reference)
	}
	if err := errors.Join(errs...); err != nil {
		return now, err
	}
	s.log.Info("image archive loaded", "path", path, "images", len(now.References))
	return now, nil
}

// has reports whether the store has all of these images.
func (s *Store) has(references []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(references, func(ref string) bool {
		r, ok := s.records[ref]
		if !ok || !r.Imported {
			return true
		}
		_, err := s.imageOfLocked(r)
		return err != nil
	})
}

func statArchive(path string) (loadedArchive, error) {
	info, err := os.Stat(path)
	if err != nil {
		return loadedArchive{}, err
	}
	if !info.Mode().IsRegular() {
		return loadedArchive{}, fmt.Errorf("%w: it is not a regular file", ErrRefused)
	}
	return loadedArchive{Size: info.Size(), Modified: info.ModTime()}, nil
}

func hashFile(ctx context.Context, path string) (string, error) {
	f, err := safeopen.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	defer context.AfterFunc(ctx, func() { _ = f.Close() })()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
