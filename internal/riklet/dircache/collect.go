package dircache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Collect removes things, and notes, that nobody has and nobody used for so long.
func (s *Shelf) Collect(ctx context.Context, olderThan time.Duration) error {
	trash, err := s.Temp()
	if err != nil {
		return err
	}
	defer s.Discard(trash)
	entries, err := os.ReadDir(s.path(itemsDir))
	if err != nil {
		return fmt.Errorf("reading the store: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		errs = append(errs, s.drop(e.Name(), trash, olderThan))
	}
	return errors.Join(append(errs, s.collectNotes(olderThan))...)
}

// drop moves one thing away if nobody has it; removing it takes longer.
func (s *Shelf) drop(key, trash string, olderThan time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.isOld(s.path(itemsDir, key), olderThan)
	if err != nil || len(s.pins[key]) > 0 || !old {
		return nil //nolint:nilerr // it went by itself
	}
	if err := os.Rename(s.path(itemsDir, key), filepath.Join(trash, key)); err != nil {
		return fmt.Errorf("removing %s from the store: %w", key, err)
	}
	s.log.Info("removing what nobody uses", "key", key)
	return nil
}

func (s *Shelf) collectNotes(olderThan time.Duration) error {
	entries, err := os.ReadDir(s.path(notesDir))
	if err != nil {
		return fmt.Errorf("reading the store: %w", err)
	}
	var errs []error
	for _, e := range entries {
		path := s.path(notesDir, e.Name())
		if old, err := s.isOld(path, olderThan); err == nil && old {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// isOld tells whether something was last used so long ago. What was used later than now, by a
// clock that was ahead, counts from now on: it would never be old.
func (s *Shelf) isOld(path string, olderThan time.Duration) (bool, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return false, err
	}
	now := s.now()
	if info.ModTime().After(now) {
		return olderThan <= 0, os.Chtimes(path, now, now)
	}
	return now.Sub(info.ModTime()) >= olderThan, nil
}
