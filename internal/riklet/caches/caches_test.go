package caches

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/fetch"
	"rik.dev/rik/internal/riklet/image"
)

func TestDownloads(t *testing.T) {
	t.Parallel()
	limits := image.Limits{Bytes: 32 << 30, CompressedBytes: 1e9, Entries: 7, Time: time.Hour, Stall: time.Minute}
	want := fetch.Limits{Bytes: 32 << 30, DownloadBytes: 1e9, Entries: 7, Time: time.Hour, Stall: time.Minute}
	if got := downloads(limits); got != want {
		t.Errorf("downloads() = %+v, want %+v", got, want)
	}
}

// TestPolicy tests that only disk pressure removes images that were used on the same day, and then at
// any fill level of the disk.
func TestPolicy(t *testing.T) {
	t.Parallel()
	now := time.Now()
	if got, want := policy(false, now), (image.CollectPolicy{MinAge: 24 * time.Hour, HighPercent: 85, LowPercent: 80, Now: now}); got != want {
		t.Errorf("policy() = %+v, want %+v", got, want)
	}
	if got, want := policy(true, now), (image.CollectPolicy{MinAge: time.Minute, Now: now}); got != want {
		t.Errorf("policy() under disk pressure = %+v, want %+v", got, want)
	}
}

// TestOpen tests where the caches are, and that a node without microVMs has no disks.
func TestOpen(t *testing.T) {
	t.Parallel()
	for _, microVMs := range []bool{false, true} {
		dir := t.TempDir()
		c, err := Open(Config{StateDir: dir, RunDir: t.TempDir(), Unpacker: "/bin/true", MicroVMs: microVMs, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]bool{LayersDir: true, "apps": true, "disks": microVMs} {
			if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
				t.Errorf("with microVMs %v, the directory %s: %v", microVMs, name, err)
			}
		}
		if (c.Disks != nil) != microVMs || len(c.References()) != 0 {
			t.Errorf("with microVMs %v, the disks are %v, and the images %v", microVMs, c.Disks, c.References())
		}
		if _, err := c.Collect(t.Context(), true); err != nil {
			t.Errorf("Collect() = %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := Open(Config{StateDir: "relative", Logger: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("Open() accepted a relative path")
	}
}
