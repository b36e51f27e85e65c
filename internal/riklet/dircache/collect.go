package dircache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Collect removes items that have no pin and were not used for the given time, and notes of that
// age.
func (s *Cache) Collect(ctx context.Context, olderThan time.Duration) error {
	trash, err := s.Temp()
	if err != nil {
		return err
	}
	defer s.Discard(trash)
	entries, err := os.ReadDir(s.path(itemsDir))
	if err != nil {
		return fmt.Errorf("reading the cache: %w", err)
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

// drop moves one item away if it has no pin. The caller deletes it later, because that takes
// longer.
func (s *Cache) drop(key, trash string, olderThan time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.isOld(s.path(itemsDir, key), olderThan)
	if err != nil || len(s.pins[key]) > 0 || !old {
		return nil
	}
	if err := os.Rename(s.path(itemsDir, key), filepath.Join(trash, key)); err != nil {
		return fmt.Errorf("removing %s from the cache: %w", key, err)
	}
	s.log.Info("removing unused items from the cache", "key", key)
	return nil
}

func (s *Cache) collectNotes(olderThan time.Duration) error {
	entries, err := os.ReadDir(s.path(notesDir))
	if err != nil {
		return fmt.Errorf("reading the cache: %w", err)
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

// isOld reports whether the last use was at least the given time ago. A last use in the future,
// from a clock that was ahead, is set to now. Otherwise the item would never be old enough.
func (s *Cache) isOld(path string, olderThan time.Duration) (bool, error) {
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
