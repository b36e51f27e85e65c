package dircache

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"

	"rik.dev/rik/internal/atomicfile"
)

// notePath uses a hash of the name, because it may be a URL with a secret.
func (s *Cache) notePath(about string) string {
	sum := sha256.Sum256([]byte(about))
	return s.path(notesDir, hex.EncodeToString(sum[:])+".json")
}

// ReadNote reads a note. ok is false if the note is missing or unreadable, because a note only
// saves work.
func (s *Cache) ReadNote(about string, into any) (ok bool) {
	data, err := os.ReadFile(s.notePath(about))
	return err == nil && json.Unmarshal(data, into) == nil
}

// WriteNote stores a value under a name. Collect removes it if it is not stored again in time.
func (s *Cache) WriteNote(about string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("saving a note in the cache: %w", err)
	}
	if err := atomicfile.WriteUnsynced(s.notePath(about), data); err != nil {
		return fmt.Errorf("saving a note in the cache: %w", err)
	}
	return nil
}
