package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"rik.dev/rik/internal/atomicfile"
)

// record is the store's record of a reference: images/<hash>.json.
type record struct {
	Reference string
	Digest    digest.Digest
	Config    v1.ImageConfig
	// Architecture of the image; empty means the node's, or a record from before this field
	// existed.
	Architecture string `json:",omitempty"`
	Chain        []digest.Digest
	Bytes        int64
	LastUsed     time.Time
	// Imported is true for an image from an archive. The node may not be able to get it again, so
	// it stays until Remove.
	Imported bool `json:",omitempty"`
}

// Images lists the node's images, sorted by reference.
func (s *Store) Images() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Info, 0, len(s.records))
	for _, r := range s.records {
		out = append(out, r.info())
	}
	slices.SortFunc(out, func(a, b Info) int { return strings.Compare(a.Reference, b.Reference) })
	return out
}

func (r *record) info() Info {
	return Info{Reference: r.Reference, Digest: r.Digest.String(), Bytes: r.Bytes, LastUsed: r.LastUsed, Imported: r.Imported}
}

// recordPath uses a hash of the reference, because a reference has slashes and may be longer
// than a file name.
func (s *Store) recordPath(reference string) string {
	sum := sha256.Sum256([]byte(reference))
	return s.path(imagesDir, hex.EncodeToString(sum[:])+".json")
}

func (s *Store) loadRecords() error {
	entries, err := os.ReadDir(s.path(imagesDir))
	if err != nil {
		return fmt.Errorf("reading the image store: %w", err)
	}
	for _, e := range entries {
		file := s.path(imagesDir, e.Name())
		var r record
		err := readJSON(file, &r)
		if err == nil && s.recordPath(r.Reference) == file {
			s.records[r.Reference] = &r
			continue
		}
		// The image can be pulled again, but an error here would prevent the node from starting.
		s.log.Warn("removing an unreadable image record", "path", e.Name(), "err", err)
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("removing an unreadable image record: %w", err)
		}
	}
	return nil
}

// lookup returns the image of a reference if all its layers exist, and marks it as used.
func (s *Store) lookup(reference string) (*Image, error) {
	s.mu.Lock()
	r := s.recordLocked(reference)
	if r == nil {
		s.mu.Unlock()
		return nil, fmt.Errorf("%w: %s", ErrNotPresent, reference)
	}
	reference = r.Reference
	img, err := s.imageOfLocked(r)
	// The time of last use is saved with this precision. Exact times would need a write for
	// every container that starts.
	const grain = time.Minute
	stale := s.now().Sub(r.LastUsed).Abs() > grain // also if the clock was ahead
	if stale {
		used := *r
		used.LastUsed = s.now()
		s.records[reference] = &used
	}
	s.mu.Unlock()
	if err == nil && stale {
		if err := s.flush(reference, backgroundWrites); err != nil {
			s.log.Warn("the time of use of an image was not saved", "image", reference, "err", err)
		}
	}
	return img, err
}

// imageOfLocked checks that the layers of a record exist.
func (s *Store) imageOfLocked(r *record) (*Image, error) {
	dirs, err := s.layerDirs(r.Chain)
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrNotPresent, r.Reference, err)
		}
	}
	return &Image{
		Reference: r.Reference,
		Digest:    r.Digest.String(),
		Config:    cloneConfig(r.Config),
		Layers:    dirs,

		Architecture: r.Architecture,
	}, nil
}

// cloneConfig returns a deep copy, so that the caller may change it.
func cloneConfig(c v1.ImageConfig) v1.ImageConfig {
	var out v1.ImageConfig
	data, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		panic("programmer error: an image configuration that came from JSON: " + err.Error())
	}
	return out
}

// save stores a record.
func (s *Store) save(r *record) error {
	s.mu.Lock()
	s.records[r.Reference] = r
	s.mu.Unlock()
	if err := s.flush(r.Reference, atOnce); err != nil {
		return fmt.Errorf("saving the image record: %w", err)
	}
	return nil
}

// flush writes the record in memory to the file of the reference, or removes the file if there
// is no record.
func (s *Store) flush(reference string, when durability) error {
	s.files.Lock()
	defer s.files.Unlock()
	s.mu.Lock()
	r, ok := s.records[reference]
	s.mu.Unlock()
	file := s.recordPath(reference)
	if !ok {
		return removeFile(file)
	}
	return writeJSON(file, r, when)
}

func readJSON(file string, into any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// durability says when a file must be on the disk.
type durability int

const (
	// backgroundWrites: the file is complete or absent if the process dies. A power failure may
	// lose or truncate it. The start of a container does not wait for the disk.
	backgroundWrites durability = iota
	// atOnce: when the call returns.
	atOnce
)

// writeJSON replaces file atomically.
func writeJSON(file string, value any, when durability) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if when == atOnce {
		return atomicfile.Write(file, data)
	}
	return atomicfile.WriteUnsynced(file, data)
}

func removeFile(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
