package dircache

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
)

// loadPins reads the pins. It ignores names that this package would not have written.
func (s *Cache) loadPins() error {
	users, err := os.ReadDir(s.path(pinsDir))
	if err != nil {
		return fmt.Errorf("reading the cache: %w", err)
	}
	for _, u := range users {
		keys, err := os.ReadDir(s.path(pinsDir, u.Name()))
		if err != nil {
			return fmt.Errorf("reading the cache: %w", err)
		}
		for _, k := range keys {
			s.notePinLocked(u.Name(), k.Name()) // no other goroutine has s yet
		}
	}
	return nil
}

func (s *Cache) notePinLocked(user, key string) {
	if s.pins[key] == nil {
		s.pins[key] = map[string]bool{}
	}
	s.pins[key][user] = true
}

// pin saves that a user has pinned an item. held reports whether that was so before.
func (s *Cache) pin(user, key string) (held bool, err error) {
	if !name.MatchString(user) || !name.MatchString(key) {
		return false, fmt.Errorf("%w: user %q, key %q", ErrInvalidName, user, key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pins[key][user] {
		return true, nil
	}
	// No sync, because a power failure also ends the users.
	if err := os.MkdirAll(s.path(pinsDir, user), 0o700); err != nil {
		return false, fmt.Errorf("pinning %s for %s: %w", key, user, err)
	}
	if err := os.WriteFile(s.path(pinsDir, user, key), nil, 0o600); err != nil {
		return false, fmt.Errorf("pinning %s for %s: %w", key, user, err)
	}
	s.notePinLocked(user, key)
	return false, nil
}

// unpin removes one pin.
func (s *Cache) unpin(user, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Remove(s.path(pinsDir, user, key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpinning %s for %s: %w", key, user, err)
	}
	s.forgetPinLocked(user, key)
	// This succeeds only if it was the user's last pin.
	_ = os.Remove(s.path(pinsDir, user))
	return nil
}

func (s *Cache) forgetPinLocked(user, key string) {
	delete(s.pins[key], user)
	if len(s.pins[key]) == 0 {
		delete(s.pins, key)
	}
}

// Release removes all pins of a user. If the user has none, it does nothing.
func (s *Cache) Release(user string) error {
	if !name.MatchString(user) {
		return fmt.Errorf("%w: user %q", ErrInvalidName, user)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.RemoveAll(s.path(pinsDir, user)); err != nil {
		return fmt.Errorf("releasing the items of %s: %w", user, err)
	}
	for key, users := range s.pins {
		if users[user] {
			s.forgetPinLocked(user, key)
			s.touchLocked(key) // the time since its last use starts now
		}
	}
	return nil
}

// Held returns the keys of a user's pins, sorted.
func (s *Cache) Held(user string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for key, users := range s.pins {
		if users[user] {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Users returns the users with pins, sorted.
func (s *Cache) Users() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]bool{}
	for _, users := range s.pins {
		maps.Copy(all, users)
	}
	return slices.Sorted(maps.Keys(all)), nil
}
