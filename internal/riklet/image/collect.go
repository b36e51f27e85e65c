package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// CollectPolicy defines when unused images are removed.
type CollectPolicy struct {
	// MinAge is the minimum time that an image stays after its last use.
	MinAge time.Duration
	// HighPercent is the usage of the file system at which a collection starts. It removes the
	// least recently used images first, until the usage is LowPercent. With 0, it removes all
	// images that were unused for longer than MinAge.
	HighPercent, LowPercent int
	// Now is the time from which ages are computed.
	Now time.Time
}

// inventory is the input of a collection's decision.
type inventory struct {
	images []*record
	layers map[digest.Digest]int64 // in the store, with sizes
	used   map[digest.Digest]bool  // by mounts and pulls
	total  int64                   // of the file system
	free   int64
}

// removals is the decision of a collection: the references and layers to remove, and how many
// bytes that frees.
type removals struct {
	references []string
	layers     []digest.Digest
	bytes      int64
}

// Collect removes images that no mount uses and that were not imported, and layers that no image, mount or running pull
// uses. It returns the number of bytes freed, also with an error.
func (s *Store) Collect(ctx context.Context, policy CollectPolicy) (int64, error) {
	h := inventory{used: map[digest.Digest]bool{}}
	var err error
	if h.layers, err = s.storedLayers(ctx); err != nil {
		return 0, err
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(s.cfg.Root, &st); err != nil {
		return 0, fmt.Errorf("reading the free space of the image store: %w", err)
	}
	h.total, h.free = int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
	trash, err := os.MkdirTemp(s.path(tmpDir), "collect-")
	if err != nil {
		return 0, fmt.Errorf("removing unused images: %w", err)
	}
	plan, err := s.drop(h, policy, trash)
	errs := []error{err}
	for _, ref := range plan.references {
		errs = append(errs, s.flush(ref, backgroundWrites))
	}
	errs = append(errs, os.RemoveAll(trash))
	if len(plan.references)+len(plan.layers) > 0 {
		s.log.Info("unused images removed", "images", len(plan.references), "layers", len(plan.layers), "bytes", plan.bytes)
	}
	if err := errors.Join(errs...); err != nil {
		return plan.bytes, fmt.Errorf("removing unused images: %w", err)
	}
	return plan.bytes, nil
}

// drop decides and acts under one lock, so that no pull or mount starts to use a layer in
// between. It moves the removed layers to trash.
func (s *Store) drop(h inventory, policy CollectPolicy, trash string) (removals, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref, r := range s.records {
		// A time of last use in the future, from a clock that was ahead, is set to now.
		// Otherwise the image would never be old enough.
		if now := s.now(); r.LastUsed.After(now) {
			used := *r
			used.LastUsed = now
			s.records[ref], r = &used, &used
		}
		h.images = append(h.images, r)
	}
	for c := range s.pins {
		h.used[c] = true
	}
	for _, m := range s.mounts {
		for _, c := range m.Chain {
			h.used[c] = true
		}
	}
	plan := decide(h, policy)
	for _, ref := range plan.references {
		delete(s.records, ref)
	}
	var errs []error
	for _, c := range plan.layers {
		name, err := wire.LayerDir(c)
		if err == nil {
			err = os.Rename(s.path(layersDir, name), filepath.Join(trash, name))
		}
		if err != nil {
			plan.bytes -= h.layers[c]
			errs = append(errs, err)
		}
	}
	return plan, errors.Join(errs...)
}

// decide decides on a collection, without side effects.
func decide(h inventory, policy CollectPolicy) removals {
	need := int64(0) // bytes to free; 0 means no limit
	if policy.HighPercent > 0 {
		inUse := h.total - h.free
		if h.total == 0 || inUse*100 < h.total*int64(policy.HighPercent) {
			policy.MinAge, need = 1<<63-1, 0 // only layers that no image uses
		} else {
			need = max(inUse-h.total*int64(policy.LowPercent)/100, 1)
		}
	}
	holders := map[digest.Digest]int{}
	for _, r := range h.images {
		for _, c := range r.Chain {
			holders[c]++
		}
	}
	var out removals
	take := func(c digest.Digest) {
		if size, stored := h.layers[c]; stored && holders[c] == 0 && !h.used[c] {
			out.layers = append(out.layers, c)
			out.bytes += size
		}
	}
	for c := range h.layers {
		take(c)
	}
	slices.SortFunc(h.images, func(a, b *record) int {
		return cmp.Or(a.LastUsed.Compare(b.LastUsed), cmp.Compare(a.Reference, b.Reference))
	})
	for _, r := range h.images {
		if need > 0 && out.bytes >= need {
			break
		}
		inUse := slices.ContainsFunc(r.Chain[max(len(r.Chain)-1, 0):], func(c digest.Digest) bool { return h.used[c] })
		if inUse || r.Imported || policy.Now.Sub(r.LastUsed) < policy.MinAge {
			continue
		}
		out.references = append(out.references, r.Reference)
		for _, c := range r.Chain {
			holders[c]--
			take(c)
		}
	}
	return out
}

// storedLayers returns the layers on the disk with their sizes.
func (s *Store) storedLayers(ctx context.Context) (map[digest.Digest]int64, error) {
	entries, err := os.ReadDir(s.path(layersDir))
	if err != nil {
		return nil, fmt.Errorf("reading the image store: %w", err)
	}
	layers := make(map[digest.Digest]int64, len(entries))
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var stored wire.Stored
		err := readJSON(s.path(layersDir, e.Name(), wire.StoredFile), &stored)
		if name, nameErr := wire.LayerDir(stored.Chain); err != nil || nameErr != nil || name != e.Name() {
			s.log.Warn("the record of a stored layer cannot be read", "path", e.Name(), "err", errors.Join(err, nameErr))
			continue
		}
		layers[stored.Chain] = stored.Bytes
	}
	return layers, nil
}
