package image

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"pgregory.net/rapid"

	"rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/ociimage"
)

var noon = time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)

func TestDecide(t *testing.T) {
	t.Parallel()
	const gib = int64(1 << 30)
	image := func(name string, age time.Duration, chain ...digest.Digest) *record {
		return &record{Reference: name, LastUsed: noon.Add(-age), Chain: chain}
	}
	hold := func(freePercent int64, used ...digest.Digest) inventory {
		h := inventory{
			images: []*record{
				image("young", time.Minute, "base", "young"),
				image("old", 3*time.Hour, "base", "old"),
				image("older", 4*time.Hour, "older"),
			},
			layers: map[digest.Digest]int64{"base": gib, "young": gib, "old": gib, "older": gib},
			used:   map[digest.Digest]bool{},
			total:  100 * gib, free: freePercent * gib,
		}
		for _, c := range used {
			h.used[c] = true
		}
		return h
	}
	orphaned := hold(50)
	orphaned.layers["orphan"] = gib
	orphanInUse := hold(50, "orphan")
	orphanInUse.layers["orphan"] = gib
	pressure := CollectPolicy{MinAge: time.Hour, HighPercent: 85, LowPercent: 80, Now: noon}
	all := CollectPolicy{MinAge: time.Hour, Now: noon}
	for _, tc := range []struct {
		name   string
		h      inventory
		policy CollectPolicy
		refs   []string
		layers []digest.Digest
	}{
		{"room enough", hold(50), pressure, nil, nil},
		{"an orphan goes without pressure", orphaned, pressure, nil, []digest.Digest{"orphan"}},
		{"an orphan that is used stays", orphanInUse, pressure, nil, nil},
		{"a little pressure: the oldest only", hold(15), CollectPolicy{MinAge: time.Hour, HighPercent: 85, LowPercent: 84, Now: noon}, []string{"older"}, []digest.Digest{"older"}},
		{"more than there is: the young stays", hold(1), pressure, []string{"older", "old"}, []digest.Digest{"older", "old"}},
		{"by age", hold(99), all, []string{"older", "old"}, []digest.Digest{"older", "old"}},
		{"mounted ones stay", hold(1, "older", "base", "old"), pressure, nil, nil},
		{"everything", hold(99), CollectPolicy{Now: noon}, []string{"older", "old", "young"}, []digest.Digest{"older", "old", "base", "young"}},
		{"a file system of no size", inventory{}, pressure, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := decide(tc.h, tc.policy)
			if diff := cmp.Diff(tc.refs, got.references); diff != "" {
				t.Errorf("references (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.layers, got.layers); diff != "" {
				t.Errorf("layers (-want +got):\n%s", diff)
			}
			if want := gib * int64(len(tc.layers)); got.bytes != want {
				t.Errorf("bytes = %d, want %d", got.bytes, want)
			}
		})
	}
}

// Invariants for any content of the store: nothing that is used is removed, no remaining image
// loses a layer, and nothing is removed twice.
func TestDecideKeepsNeededLayers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.Custom(func(t *rapid.T) digest.Digest {
			return digest.Digest(fmt.Sprintf("l%d", rapid.IntRange(0, 9).Draw(t, "layer")))
		})
		h := inventory{
			layers: rapid.MapOf(name, rapid.Int64Range(0, 100)).Draw(t, "layers"),
			used:   rapid.MapOf(name, rapid.Just(true)).Draw(t, "used"),
			total:  1000,
			free:   rapid.Int64Range(0, 1000).Draw(t, "free"),
		}
		for i := range rapid.IntRange(0, 6).Draw(t, "images") {
			h.images = append(h.images, &record{
				Reference: fmt.Sprint(i),
				Chain:     rapid.SliceOfNDistinct(name, 1, 4, func(d digest.Digest) digest.Digest { return d }).Draw(t, "chain"),
				LastUsed:  noon.Add(-time.Duration(rapid.IntRange(0, 100).Draw(t, "age")) * time.Minute),
			})
		}
		policy := CollectPolicy{
			MinAge:      time.Duration(rapid.IntRange(0, 100).Draw(t, "min")) * time.Minute,
			HighPercent: rapid.IntRange(0, 100).Draw(t, "high"),
			Now:         noon,
		}
		policy.LowPercent = rapid.IntRange(0, policy.HighPercent).Draw(t, "low")
		got := decide(h, policy)
		seen := map[digest.Digest]bool{}
		for _, c := range got.layers {
			if _, stored := h.layers[c]; h.used[c] || seen[c] || !stored {
				t.Fatalf("layer %s: used %v, twice %v, stored %v", c, h.used[c], seen[c], stored)
			}
			seen[c] = true
		}
		for _, r := range h.images {
			gone := slices.Contains(got.references, r.Reference)
			if gone && noon.Sub(r.LastUsed) < policy.MinAge {
				t.Fatalf("image %s went before its time", r.Reference)
			}
			if !gone && slices.ContainsFunc(r.Chain, func(c digest.Digest) bool { return seen[c] }) {
				t.Fatalf("image %s stays and loses a layer", r.Reference)
			}
		}
	})
}

func TestCollectRemovesUnusedImages(t *testing.T) {
	t.Parallel()
	s := open(t, nil)
	_, ref, _ := layout(t, small())
	img, err := s.Pull(t.Context(), PullRequest{Reference: ref})
	if err != nil {
		t.Fatal(err)
	}
	policy := CollectPolicy{MinAge: time.Hour, Now: time.Now()}
	if freed, err := s.Collect(t.Context(), policy); err != nil || freed != 0 {
		t.Errorf("Collect of a young image = %d, %v; want nothing", freed, err)
	}
	policy.Now = policy.Now.Add(2 * time.Hour)
	s.pin([]digest.Digest{chainOf(t, s, img)[1]}) // like a running pull
	if _, err := s.Collect(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(img.Layers[1]); err != nil {
		t.Errorf("a layer of a running pull was collected: %v", err)
	}
	s.unpin([]digest.Digest{chainOf(t, s, img)[1]})
	if _, err := s.Collect(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	requireNothingLeft(t, s, 0)
	if _, err := s.Pull(t.Context(), PullRequest{Reference: ref, Policy: v1alpha1.PullNever}); !errors.Is(err, ErrNotPresent) {
		t.Errorf("after the collection: %v, want %v", err, ErrNotPresent)
	}
	if files, err := os.ReadDir(s.path(imagesDir)); err != nil || len(files) != 0 {
		t.Errorf("records: %v, %v; want none", files, err)
	}
	if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); err != nil {
		t.Errorf("pulling again: %v", err)
	}
}

func TestCollectReportsFreedBytes(t *testing.T) {
	t.Parallel()
	s := open(t, nil)
	_, ref, _ := layout(t, ociimage.Spec{Files: map[string]ociimage.File{"f": {Content: make([]byte, 12345)}}})
	if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); err != nil {
		t.Fatal(err)
	}
	if freed, err := s.Collect(t.Context(), CollectPolicy{Now: time.Now().Add(time.Second)}); err != nil || freed != 12345 {
		t.Errorf("Collect = %d, %v; want 12345", freed, err)
	}
}

func chainOf(tb testing.TB, s *Store, img *Image) []digest.Digest {
	tb.Helper()
	chain, err := s.chainOf(img.Layers)
	if err != nil {
		tb.Fatal(err)
	}
	return chain
}

// The age of an image whose last use is in the future, because of a clock that was ahead, starts
// now.
func TestImagesDatedInTheFuture(t *testing.T) {
	t.Parallel()
	s := open(t, nil)
	_, ref, _ := layout(t, small())
	s.now = func() time.Time { return time.Now().Add(365 * 24 * time.Hour) }
	if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); err != nil {
		t.Fatal(err)
	}
	s.now = time.Now
	policy := CollectPolicy{MinAge: time.Hour, Now: time.Now()}
	if freed, err := s.Collect(t.Context(), policy); err != nil || freed != 0 {
		t.Errorf("Collect = %d, %v; want nothing yet", freed, err)
	}
	policy.Now = policy.Now.Add(2 * time.Hour)
	if freed, err := s.Collect(t.Context(), policy); err != nil || freed == 0 {
		t.Errorf("Collect two hours later = %d, %v; want the image gone", freed, err)
	}
}
