package clusterid

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"rik.dev/rik/internal/atomicfile"
)

// FileName is the name of the identity's file in the data directory.
const FileName = "cluster.json"

// Read reads the file of a data directory. It returns nil if there is none.
func Read(dir string) (*File, error) {
	path := filepath.Join(dir, FileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented
	}
	if err != nil {
		return nil, fmt.Errorf("reading the identity of the cluster: %w", err)
	}
	var f File
	if err := json.Unmarshal(data, &f); err != nil || f.ID == "" {
		return nil, fmt.Errorf("%s is damaged: restore it from a backup, or remove it, and the server reads the identity from the datastore (%w)", path, errors.Join(err, errNoID))
	}
	return &f, nil
}

var errNoID = errors.New("the ID is missing")

// Write replaces the file if its content differs.
func Write(dir string, f File) error {
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the identity of the cluster: %w", err)
	}
	data = append(data, '\n')
	path := filepath.Join(dir, FileName)
	if have, err := os.ReadFile(path); err == nil && string(have) == string(data) {
		return nil
	}
	return atomicfile.Write(path, data)
}

// Fingerprint identifies a key or certificate without revealing it, because keys are random and
// have at least 128 bits.
func Fingerprint(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
