package microvm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
)

// The writable disk of a microVM contains its volumes. It outlives the VMM: a machine that
// replaces another one mounts the same disk, and the guest's kernel replays the journal. A disk
// is replaced only if it cannot be used. Each disk has an ID, and the instance's record contains
// the ID of the disk that its init containers have seen. If the machine runs with a disk of
// another ID, the volumes are lost. This also holds if the riklet restarted meanwhile.

// diskNote identifies a writable disk. It is written when the disk is created, and removed before
// the disk is replaced. A disk without a note is not used.
type diskNote struct {
	ID    string // random
	Bytes int64  // size of the file
}

func (p paths) diskNoteFile(uid string) string {
	return filepath.Join(p.RootDir(uid), "scratch.json")
}

// keptDisk returns the note of the instance's writable disk. The error is the reason why a
// guest cannot try to mount it.
func (p paths) keptDisk(uid string) (diskNote, error) {
	var note diskNote
	info, err := os.Stat(p.scratch(uid))
	if err == nil {
		err = engine.ReadJSON(p.diskNoteFile(uid), &note)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return note, errors.New("the file of its disk is missing")
	case err != nil:
		return note, fmt.Errorf("the file of its disk cannot be read: %w", err)
	case info.Size() != note.Bytes || note.ID == "":
		return note, fmt.Errorf("the file of its disk has %d bytes instead of %d", info.Size(), note.Bytes)
	}
	return note, nil
}

// useDisk uses the existing disk, or creates one. A snapshot already has its disk.
func (v *sandbox) useDisk(ctx context.Context) error {
	note, why := v.dirs.keptDisk(v.Instance.UID)
	if why != nil && !v.Restore {
		return v.newDisk(ctx, why)
	}
	v.note.DiskID = note.ID
	return nil
}

// newDisk replaces the writable disk by an empty one.
func (v *sandbox) newDisk(ctx context.Context, why error) error {
	d, uid := v.dirs, v.Instance.UID
	if err := removeFiles(d.diskNoteFile(uid)); err != nil {
		return err
	}
	if err := v.e.vm.Disks.Writable(ctx, d.scratch(uid), sizeOf(v.Instance.Template).disk); err != nil {
		return err
	}
	info, err := os.Stat(d.scratch(uid))
	if err != nil {
		return err
	}
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return err
	}
	note := diskNote{ID: hex.EncodeToString(id), Bytes: info.Size()}
	if err := engine.WriteJSON(d.diskNoteFile(uid), note); err != nil {
		return err
	}
	v.note.DiskID, v.note.DiskWhy = note.ID, why.Error()
	return nil
}

// mayBootAgain reports whether another boot may help after err. If a guest cannot use an empty
// disk either, the disk is not the problem.
func (v *sandbox) mayBootAgain(err error) bool {
	return errors.Is(err, errVMMEnded) || errors.Is(err, guest.ErrDisk) && !v.replaced
}

// bootAgain boots the machine again after err. If the guest could not use its disk, the machine
// gets an empty one.
func (v *sandbox) bootAgain(ctx context.Context, err error) error {
	log := v.node.Logger.With("instance", v.Instance.UID, "err", err)
	if clearErr := v.clear(ctx); clearErr != nil {
		return clearErr
	}
	if errors.Is(err, guest.ErrDisk) {
		log.Warn("a guest cannot use its writable disk; the microVM boots again with an empty one")
		v.replaced = true
		if err := v.newDisk(ctx, err); err != nil {
			return err
		}
	} else {
		log.Warn("a microVM ended before its guest was ready; it boots again")
	}
	return v.launch(ctx)
}

// Written returns the writable disk. It contains everything that the instance writes.
func (e *machines) Written(in instance.Instance) []string {
	return []string{e.paths().scratch(in.UID)}
}

// RemoveWritten removes the writable disk with its note.
func (e *machines) RemoveWritten(uid string) error {
	return errors.Join(removeFiles(e.paths().scratch(uid)), removeFiles(e.paths().diskNoteFile(uid)))
}

// removeFiles removes files. A missing file is no error.
func removeFiles(files ...string) error {
	for _, file := range files {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
