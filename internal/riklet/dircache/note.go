package dircache

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// notePath hashes the name: it may be a URL with a secret in it.
func (s *Shelf) notePath(about string) string {
	sum := sha256.Sum256([]byte(about))
	return s.path(notesDir, hex.EncodeToString(sum[:])+".json")
}

// Recall reads what was noted about something. ok is false when there is nothing, or
// nothing readable: a note only spares work.
func (s *Shelf) Recall(about string, into any) (ok bool) {
	data, err := os.ReadFile(s.notePath(about))
	return err == nil && json.Unmarshal(data, into) == nil
}

// Note remembers something until nobody has noted it again for as long as Collect says.
func (s *Shelf) Note(about string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("noting: %w", err)
	}
	f, err := os.CreateTemp(s.path(tmpDir), "note-")
	if err != nil {
		return fmt.Errorf("noting: %w", err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), s.notePath(about))
	}
	if err != nil {
		return fmt.Errorf("noting: %w", errors.Join(err, os.RemoveAll(f.Name())))
	}
	return nil
}
