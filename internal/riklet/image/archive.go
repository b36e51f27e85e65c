package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"rik.dev/rik/internal/riklet/image/internal/wire"
	"rik.dev/rik/internal/riklet/progress"
)

// ArchiveForm is what UnpackArchive makes of an archive.
type ArchiveForm = wire.Form

// The forms.
const (
	// ArchiveRoot makes the root of a machine: owners, modes and attributes are kept. An ext4
	// image, compressed or not, is accepted too.
	ArchiveRoot = wire.FormRoot
	// ArchiveShared makes files of the node that all its users may read. They are owned by root,
	// without set-user-ID bits and attributes. Zip archives are accepted too.
	ArchiveShared = wire.FormShared
)

// ArchiveRequest is a request to unpack an archive that is not an image: tar, either plain or
// compressed with gzip or zstd. The content decides, not the name.
type ArchiveRequest struct {
	// Unpacker is the command line of the child process, as in Config.
	Unpacker []string
	File     string
	// Name is the name of the archive in messages.
	Name string
	// Dir is an empty directory. The caller owns it and removes it after an error.
	Dir    string
	Form   ArchiveForm
	Limits Limits
}

// Archive is the result of unpacking: a tree, or an ext4 image file that has not been validated.
type Archive struct {
	Tree, Image string // one of them, below ArchiveRequest.Dir
	Bytes       int64
	Entries     int64
	Skipped     []string // names of the first few entries left out, such as devices
}

// UnpackArchive unpacks an archive in a child process, with the limits and checks that apply to
// images. Its errors are those of Pull.
func UnpackArchive(ctx context.Context, r ArchiveRequest) (*Archive, error) {
	if len(r.Unpacker) == 0 {
		return nil, fmt.Errorf("%w: unpacker is empty", ErrInvalidConfig)
	}
	req := wire.Request{
		Limits:  r.Limits.WithDefaults(),
		Archive: &wire.Archive{File: r.File, Dir: r.Dir, Form: r.Form},
	}
	if r.Name != "" {
		progress.Of(ctx).Begin(progress.Progress{What: "unpacking " + r.Name})
	}
	result, err := runUnpacker(ctx, r.Unpacker, r.Dir, req.Limits.Time, func(stdin io.Writer, stdout io.Reader) (*wire.Result, error) {
		return ask(progress.Of(ctx), req, stdin, stdout)
	})
	if err != nil {
		return nil, err
	}
	if result.Archive == nil {
		return nil, errOtherAnswer
	}
	out := &Archive{Bytes: result.Archive.Bytes, Entries: result.Archive.Entries, Skipped: result.Archive.Skipped}
	if result.Archive.Image {
		out.Image = filepath.Join(r.Dir, wire.ImageFile)
	} else {
		out.Tree = filepath.Join(r.Dir, wire.ContentDir)
	}
	return out, nil
}

// errOtherAnswer means that the child answered another request.
var errOtherAnswer = fmt.Errorf("%w: %w", errNoResult, errors.New("it answers another request"))

// ask sends a request that is not a pull, and returns its result.
func ask(work *progress.Work, req wire.Request, stdin io.Writer, stdout io.Reader) (*wire.Result, error) {
	if err := json.NewEncoder(stdin).Encode(req); err != nil {
		return nil, fmt.Errorf("%w: sending the request: %w", errNoResult, err)
	}
	in := json.NewDecoder(stdout)
	for {
		var e wire.Event
		if err := in.Decode(&e); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoResult, err)
		}
		switch {
		case e.Progress != nil:
			now := work.Progress()
			now.Step, now.Bytes, now.Total = e.Progress.Step, e.Progress.Bytes, e.Progress.Total
			work.Begin(now)
		case e.Failure != nil:
			return nil, e.Failure.Err()
		case e.Result != nil:
			return e.Result, nil
		default:
			return nil, errOtherAnswer
		}
	}
}
