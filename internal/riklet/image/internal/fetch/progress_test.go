package fetch

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/riklet/image/internal/layer"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// TestReadingAnArchiveReportsProgress checks that reading an archive is reported as a step before
// its layers.
func TestReadingAnArchiveReportsProgress(t *testing.T) {
	t.Parallel()
	spec := ociimage.Spec{Files: map[string]ociimage.File{"f": {Content: bytes.Repeat([]byte("rik"), 100_000)}}}
	dir := t.TempDir()
	archive := filepath.Join(dir, "a.tar")
	if _, err := ociimage.WriteArchive(archive, "v1", spec); err != nil {
		t.Fatal(err)
	}
	budget, err := layer.NewBudget(wire.Limits{ReserveBytes: 1}, dir)
	if err != nil {
		t.Fatal(err)
	}
	m := &meter{}
	if err := unpackLayout(t.Context(), archive, filepath.Join(dir, "layout"), budget, m); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(archive)
	if err != nil {
		t.Fatal(err)
	}
	if p := m.progress(); p.Step != readingArchive || p.Bytes == 0 || p.Total != info.Size() {
		t.Errorf("the progress is %+v; the archive has %d bytes", p, info.Size())
	}
}

// TestPlainArchiveReportsProgress checks the same for an archive that is not an image, and that the
// last progress is reported.
func TestPlainArchiveReportsProgress(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "a.tar")
	if _, err := ociimage.WriteArchive(file, "v1", ociimage.Spec{Files: map[string]ociimage.File{"f": {Content: []byte("x")}}}); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "to")
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	req := wire.Request{Limits: wire.Limits{ReserveBytes: 1}, Archive: &wire.Archive{File: file, Dir: to, Form: wire.FormShared}}
	if _, err := serve(t.Context(), req, &sender{enc: json.NewEncoder(&out)}, nil); err != nil {
		t.Fatal(err)
	}
	var last wire.Event
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Progress == nil || last.Progress.Bytes == 0 || last.Progress.Bytes > last.Progress.Total {
		t.Errorf("events = %q, %v", lines, err)
	}
}
