package shelf

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
	info, err := os.Lstat(s.path(itemsDir, key))
	if err != nil || len(s.pins[key]) > 0 || s.now().Sub(info.ModTime()) < olderThan {
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
		info, err := e.Info()
		if err != nil || s.now().Sub(info.ModTime()) < olderThan {
			continue
		}
		errs = append(errs, os.Remove(s.path(notesDir, e.Name())))
	}
	return errors.Join(errs...)
}
