package backup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"filippo.io/age"
	"golang.org/x/sync/errgroup"
)

// Path is the path of the API server that streams a backup of the cluster, without encryption, to an
// administrator, in response to POST.
const Path = "/rik/backup"

// Extension is the extension of the file names of backups.
const Extension = ".rikbackup"

// Name returns a file name for a backup that is created now. Names sort by time.
func Name(now time.Time) string {
	return "rik-" + now.UTC().Format("20060102T150405Z") + "-" + strings.ToLower(rand.Text()[:6]) + Extension
}

// Seal encrypts a backup that is not encrypted, verifies it at the same time, and passes the result
// to put. If the backup cannot be verified, the reader of put fails, so put must store nothing then.
func Seal(ctx context.Context, to Recipients, plain io.Reader, put func(context.Context, io.Reader) error) (*Manifest, error) {
	if err := to.Validate(); err != nil {
		return nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	checkedOut, checkedIn := io.Pipe()
	sealedOut, sealedIn := io.Pipe()
	verified := make(chan *Manifest, 1)
	group.Go(func() error {
		m, err := Read(ctx, checkedOut, Identities{}, nil, Visitor{})
		if err != nil {
			checkedOut.CloseWithError(err)
			return err
		}
		verified <- m
		_, err = io.Copy(io.Discard, checkedOut)
		return err
	})
	group.Go(func() error {
		err := put(ctx, sealedOut)
		sealedOut.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		return err
	})
	var manifest *Manifest
	group.Go(func() error {
		err := seal(to, io.TeeReader(plain, checkedIn), sealedIn, func() error {
			if err := checkedIn.Close(); err != nil {
				return err
			}
			select {
			case manifest = <-verified:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		checkedIn.CloseWithError(err)
		sealedIn.CloseWithError(err) // nil is the end of the file
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return manifest, nil
}

// seal copies a backup and encrypts it. It calls verified before it writes the end.
func seal(to Recipients, plain io.Reader, out io.Writer, verified func() error) error {
	var encrypted io.WriteCloser
	if len(to.recipients) > 0 {
		var err error
		if encrypted, err = age.Encrypt(out, to.recipients...); err != nil {
			return fmt.Errorf("encrypting the backup: %w", err)
		}
		out = encrypted
	}
	if _, err := io.Copy(out, plain); err != nil {
		return err
	}
	if err := verified(); err != nil {
		return err
	}
	if encrypted == nil {
		return nil
	}
	return encrypted.Close()
}
