package fetch

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/types"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// blobReader reads a blob, hashes it, and enforces the size in the manifest and the limits.
type blobReader struct {
	r     io.Reader
	info  types.BlobInfo
	hash  digest.Digester
	total *atomic.Int64 // of all layers of the pull
	limit int64
	read  int64
	err   error // the first, other than io.EOF
}

func (b *blobReader) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.r.Read(p)
	b.read += int64(n)
	_, _ = b.hash.Hash().Write(p[:n]) // a hash never fails
	switch {
	case b.total.Add(int64(n)) > b.limit:
		err = fmt.Errorf("%w: more than %d bytes transferred", wire.ErrTooLarge, b.limit)
	case b.info.Size >= 0 && b.read > b.info.Size:
		err = fmt.Errorf("%w: the blob is longer than the %d bytes that the manifest announces", wire.ErrDigest, b.info.Size)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}

// verify reads the blob to its end and returns the error that describes the problem best. A
// digest mismatch precedes errors of unpacking, because a damaged blob fails to unpack in
// confusing ways. Limits and a stopped reader precede both.
func (b *blobReader) verify(unpackErr error) error {
	for _, final := range []error{wire.ErrTooLarge, wire.ErrNoSpace, wire.ErrTimeout, wire.ErrStalled, errStoreGone} {
		if errors.Is(unpackErr, final) {
			return unpackErr
		}
	}
	if _, err := io.Copy(io.Discard, b); err != nil {
		return fmt.Errorf("reading the blob: %w", err)
	}
	if b.info.Size >= 0 && b.read < b.info.Size {
		return fmt.Errorf("%w: the blob is truncated: %d of %d bytes", wire.ErrDigest, b.read, b.info.Size)
	}
	if got := b.hash.Digest(); got != b.info.Digest {
		return fmt.Errorf("%w: the blob is %[3]s instead of %[2]s", wire.ErrDigest, b.info.Digest, got)
	}
	// The blob matches its digest.
	return refuseDamage(unpackErr)
}
