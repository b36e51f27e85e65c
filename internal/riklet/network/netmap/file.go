package netmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/rpc/nodev1"
)

// saveInterval bounds how often the file is written. After a crash, the controller sends what the
// file lacks.
const saveInterval = 2 * time.Second

// load fills a new store from the file.
func (t *Store) load() {
	if t.cfg.Path == "" {
		return
	}
	text, err := os.ReadFile(t.cfg.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	kept := &nodev1.NetworkChanges{}
	if err == nil {
		err = proto.Unmarshal(text, kept)
	}
	if err != nil {
		t.cfg.Logger.Warn("reading the saved netmap failed; the controller sends it again", "path", t.cfg.Path, "err", err)
		return
	}
	t.Apply(kept)
	t.unsaved.Clear() // the file already contains all of that
}

// Run saves changes to the file until ctx ends, and once more then.
func (t *Store) Run(ctx context.Context) error {
	if t.cfg.Path == "" {
		<-ctx.Done()
		return nil
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-t.unsaved:
			t.save()
			pause.For(ctx, saveInterval)
		}
	}
	if t.unsaved.Clear() {
		t.save()
	}
	return nil
}

// save writes the file. If that fails, the next change tries again.
func (t *Store) save() {
	if err := t.write(); err != nil {
		t.cfg.Logger.Warn("saving the netmap failed", "path", t.cfg.Path, "err", err)
	}
}

func (t *Store) write() error {
	text, err := proto.Marshal(t.Snapshot().Encode())
	if err != nil {
		return fmt.Errorf("encoding the netmap: %w", err)
	}
	return atomicfile.Write(t.cfg.Path, text)
}
