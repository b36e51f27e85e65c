package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/distribution/reference"

	"rik.dev/rik/internal/riklet/image/internal/wire"
	"rik.dev/rik/internal/riklet/progress"
)

// ImportRequest has an archive with images: an OCI layout or a docker archive in a tar archive,
// plain or compressed with gzip or zstd.
type ImportRequest struct {
	// File is the archive's path on this node. If it is empty, the archive is read from Stream.
	// Import closes the stream when it needs no more of it; that must end a read that blocks.
	File   string
	Stream io.ReadCloser
	// Name completes the names of images that the archive does not name fully. It is the name of
	// the only image, or the repository of several images that have only tags.
	Name string
}

// ImportResult is one image of an archive.
type ImportResult struct {
	Image Info  // only its Reference if Err is set, and that may be empty
	Err   error // why the image was not imported
}

// Import stores the images of an archive under their names, as if they had been pulled from their
// registries. The checks and limits are those of pulls; the archive as a whole may be as large as
// one unpacked image. An image that is refused does not affect the others. The error is that of the
// archive as a whole.
func (s *Store) Import(ctx context.Context, req ImportRequest) ([]ImportResult, error) {
	work := progress.Of(ctx)
	work.Begin(progress.Progress{What: "importing"})
	dir, remove, err := s.tempDir("import-", s.log)
	if err != nil {
		return nil, fmt.Errorf("creating a directory for the archive: %w", err)
	}
	defer remove()
	opened, err := s.openArchive(ctx, dir, req)
	if err != nil {
		return nil, fmt.Errorf("importing an archive: %w", err)
	}
	var results []ImportResult
	for _, p := range opened.Images {
		references, err := namesOf(p, req.Name, len(opened.Images) == 1)
		if err != nil {
			results = append(results, ImportResult{Err: err})
		}
		for _, ref := range references {
			results = append(results, s.importOne(ctx, ref, opened.Transport, p.Target))
			if ctx.Err() != nil {
				return results, context.Cause(ctx)
			}
		}
	}
	return results, nil
}

func (s *Store) importOne(ctx context.Context, ref parsedReference, transport, target string) ImportResult {
	r, err := s.unpack(ctx, unpacking{
		ref: ref, transport: transport, target: target, imported: true,
		begun: progress.Progress{What: "importing " + ref.target},
	})
	if err != nil {
		return ImportResult{Image: Info{Reference: ref.String()}, Err: fmt.Errorf("importing %s: %w", ref.target, err)}
	}
	return ImportResult{Image: r.info()}
}

// openArchive finds the images of an archive, in a child process.
func (s *Store) openArchive(ctx context.Context, dir string, req ImportRequest) (*wire.Opened, error) {
	limits := s.cfg.Limits.WithDefaults()
	limits.CompressedBytes = limits.Bytes // of several images
	question := wire.Request{TempDir: dir, Limits: limits, Open: &wire.Open{File: req.File}}
	var result *wire.Result
	var err error
	if req.File != "" {
		result, err = s.askChild(ctx, question)
	} else {
		result, err = s.askWithInput(ctx, question, req.Stream)
	}
	if err != nil {
		return nil, err
	}
	if result.Opened == nil {
		return nil, errOtherAnswer
	}
	return result.Opened, nil
}

// askChild sends a request that is not a pull to a child process.
func (s *Store) askChild(ctx context.Context, req wire.Request, files ...*os.File) (*wire.Result, error) {
	return runUnpacker(ctx, s.cfg.Unpacker, req.TempDir, req.Limits.Time, func(stdin io.Writer, stdout io.Reader) (*wire.Result, error) {
		return ask(progress.Of(ctx), req, stdin, stdout)
	}, files...)
}

// askWithInput sends a request to a child that reads r through a pipe. An error of r precedes that of
// the child, which then has an incomplete archive.
func (s *Store) askWithInput(ctx context.Context, req wire.Request, r io.ReadCloser) (*wire.Result, error) {
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	var copying sync.WaitGroup
	var unread error
	copying.Go(func() {
		source := &sourceReader{r: r}
		// The child says why it does not read: it has ended.
		_, _ = io.Copy(onlyWriter{out}, source)
		unread = source.err
		_ = out.Close()
	})
	result, err := s.askChild(ctx, req, in)
	_ = r.Close()
	copying.Wait()
	if err != nil && unread != nil && !errors.Is(unread, io.ErrClosedPipe) {
		return nil, fmt.Errorf("receiving the archive: %w", unread)
	}
	return result, err
}

// sourceReader keeps the error of its source, to distinguish it from that of the destination.
type sourceReader struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// onlyWriter hides the other methods of a file, so that io.Copy reads no more than a piece ahead.
type onlyWriter struct{ io.Writer }

// namesOf returns the references of an image of an archive. only says whether the archive has no
// other image.
func namesOf(p wire.Packed, name string, only bool) ([]parsedReference, error) {
	names := p.Names
	switch {
	case name != "" && only:
		names = []string{name}
	case len(names) > 0:
	case strings.ContainsAny(p.Tag, "/:"):
		names = []string{p.Tag} // skopeo and buildah write the full name there
	case name != "" && p.Tag != "":
		named, err := reference.ParseNormalizedNamed(name)
		if err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrInvalidReference, name, err)
		}
		names = []string{reference.TrimNamed(named).Name() + ":" + p.Tag}
	case p.Tag != "":
		return nil, fmt.Errorf("%w: the archive has only the tag %q", ErrUnnamed, p.Tag)
	default:
		return nil, fmt.Errorf("%w: the archive has neither a name nor a tag for it", ErrUnnamed)
	}
	var out []parsedReference
	for _, n := range names {
		ref, err := registryName(n)
		if err != nil {
			return nil, err
		}
		out = append(out, ref)
	}
	return out, nil
}

// registryName parses a name in a registry. References to files of the node are none.
func registryName(name string) (parsedReference, error) {
	ref, err := parseReference(name)
	if err == nil && ref.transport != transportDocker {
		err = fmt.Errorf("%w: %q is not a name in a registry", ErrInvalidReference, name)
	}
	return ref, err
}
