package nodelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ErrNotANode means that a directory contains files, and none of a node.
var ErrNotANode = errors.New("does not belong to a node")

// RequireNode returns ErrNotANode unless a directory belongs to a node: it has one of the names in
// it, or is empty or missing. This protects other files from a mistake in a flag.
func RequireNode(flag, dir string, names ...string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s %s %w: it contains %s, and no file of a node (%s)", flag, dir, ErrNotANode, entries[0].Name(), strings.Join(names, ", "))
}
