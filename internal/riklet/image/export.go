package image

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"rik.dev/rik/internal/riklet/image/internal/wire"
	"rik.dev/rik/internal/riklet/progress"
)

// Export writes an image that the node has as an OCI layout in a tar archive. The store has only
// unpacked layers, so the archive has the same files and settings as the image, and other digests.
func (s *Store) Export(ctx context.Context, name string, to io.Writer) error {
	r, err := s.find(name)
	if err != nil {
		return err
	}
	progress.Of(ctx).Begin(progress.Progress{What: "exporting " + Name(r.Reference)})
	s.pin(r.Chain)
	defer s.unpin(r.Chain)
	if err := s.export(ctx, r, to); err != nil {
		return fmt.Errorf("exporting %s: %w", Name(r.Reference), err)
	}
	return nil
}

func (s *Store) export(ctx context.Context, r *record, to io.Writer) error {
	s.mu.Lock()
	_, err := s.imageOfLocked(r)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	dir, remove, err := s.tempDir("export-", s.log)
	if err != nil {
		return err
	}
	defer remove()
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	var copying sync.WaitGroup
	var failed error
	var n int64
	copying.Go(func() {
		n, failed = io.Copy(to, in)
		_ = in.Close() // a child that writes more fails
	})
	limits := s.cfg.Limits.WithDefaults()
	limits.CompressedBytes = limits.Bytes
	result, err := s.askChild(ctx, wire.Request{LayersDir: s.path(layersDir), TempDir: dir, Limits: limits, Export: &wire.Export{
		Reference: exportName(r.Reference), Config: r.Config, Architecture: r.Architecture, Chain: r.Chain,
	}}, out)
	copying.Wait()
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return err
	case result.Exported != n:
		return fmt.Errorf("%w: the archive has %d of %d bytes", errNoResult, n, result.Exported)
	}
	return nil
}

// exportName returns the name of an image in its archive. It is empty for an image without a tag in a
// registry: the digest in a reference is not that of the archive.
func exportName(canonical string) string {
	name := Name(canonical)
	if name == canonical || strings.Contains(name, "@") {
		return ""
	}
	return name
}
