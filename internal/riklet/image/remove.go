package image

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// Name returns the reference of an Info as people write it.
func Name(canonical string) string { return strings.TrimPrefix(canonical, transportDocker+"://") }

// Canonical returns the reference of the Info that an image in a workload uses, if the node has it.
// Without that it returns the reference under which a pull would store it.
func (s *Store) Canonical(name string) (string, error) {
	ref, err := parseReference(name)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.recordLocked(ref.String()); r != nil {
		return r.Reference, nil
	}
	return ref.String(), nil
}

// find returns the record of an image.
func (s *Store) find(name string) (*record, error) {
	ref, err := parseReference(name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.recordLocked(ref.String())
	if r == nil {
		return nil, fmt.Errorf("%w: %s", ErrNotPresent, ref.target)
	}
	return r, nil
}

// recordLocked returns the record of a reference. A digest also finds an image of that repository
// that has a tag on this node, because imported images have tags: the content is the same. It
// returns nil if the node does not have the image.
func (s *Store) recordLocked(canonical string) *record {
	if r, ok := s.records[canonical]; ok {
		return r
	}
	repository, want, ok := strings.Cut(canonical, "@")
	if !ok {
		return nil
	}
	var best *record
	for key, r := range s.records {
		if r.Digest != digest.Digest(want) || repositoryOf(key) != repository {
			continue
		}
		if best == nil || r.Reference < best.Reference { // always the same one
			best = r
		}
	}
	return best
}

// repositoryOf returns a canonical reference without its tag.
func repositoryOf(canonical string) string {
	named, err := reference.ParseNormalizedNamed(Name(canonical))
	if err != nil || Name(canonical) == canonical {
		return ""
	}
	return transportDocker + "://" + named.Name()
}

// Remove removes an image that no mount uses, and the layers that only it has. It returns the bytes
// that became free. The error is ErrInUse if a mount uses it.
func (s *Store) Remove(ctx context.Context, name string) (int64, error) {
	r, err := s.find(name)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	for id, m := range s.mounts {
		// Another record with the same layers keeps them.
		if m.Reference == r.Reference && slices.Equal(m.Chain, r.Chain) {
			s.mu.Unlock()
			return 0, fmt.Errorf("%w: %s is mounted for %s", ErrInUse, Name(r.Reference), id)
		}
	}
	delete(s.records, r.Reference)
	s.mu.Unlock()
	if err := s.flush(r.Reference, atOnce); err != nil {
		return 0, fmt.Errorf("removing the record of %s: %w", Name(r.Reference), err)
	}
	s.log.Info("image removed", "image", r.Reference, "digest", r.Digest)
	return s.Collect(ctx, CollectPolicy{HighPercent: 101, Now: s.now()})
}
