package backup

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Visitor gets the content of a backup, in its order. Each function is optional. An error of a
// function ends the reading and is returned unchanged. Arguments are valid during the call only.
type Visitor struct {
	Header func(Header) error
	File   func(name string, content []byte) error
	Entry  func(Entry) error
}

// Read reads a backup to its end and checks every checksum and number. want is the manifest
// of an earlier reading of the same file, or nil: with it, each part is compared before the visitor
// gets it. Without it the visitor gets content that is verified only when Read returns.
func Read(ctx context.Context, r io.Reader, keys Identities, want *Manifest, visit Visitor) (*Manifest, error) {
	archive, _, err := decrypt(r, keys)
	if err != nil {
		return nil, err
	}
	decoder, err := zstd.NewReader(archive, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20), zstd.WithDecoderMaxMemory(64<<20))
	if err != nil {
		return nil, fmt.Errorf("reading the backup: %w", err)
	}
	defer decoder.Close()
	in := &reader{ctx: ctx, tar: tar.NewReader(decoder), want: want, visit: visit, found: Manifest{Resources: map[string]int64{}}}
	m, err := in.run()
	if err != nil {
		return nil, err
	}
	// The last block of the encryption and of the compression are checked at their end.
	if n, err := io.Copy(io.Discard, io.LimitReader(decoder, 1)); err != nil {
		return nil, describe(err)
	} else if n > 0 {
		return nil, damaged("it continues after its end")
	}
	return m, nil
}

// ReadHeader reads only the header. Nothing else is verified.
func ReadHeader(ctx context.Context, r io.Reader, keys Identities) (Header, error) {
	var out Header
	_, err := Read(ctx, r, keys, nil, Visitor{Header: func(h Header) error { out = h; return errEnough }})
	if errors.Is(err, errEnough) {
		return out, nil
	}
	return out, err
}

// errEnough ends a reading that has what it needs.
var errEnough = errors.New("enough was read")

type reader struct {
	ctx   context.Context //nolint:containedctx // of one call
	tar   *tar.Reader
	want  *Manifest
	visit Visitor
	found Manifest
	parts int
	begun bool
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s: copy it again, or use another backup", ErrDamaged, fmt.Sprintf(format, args...))
}

// describe turns the errors of the layers below into those of this package.
func describe(err error) error {
	text := err.Error()
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Errorf("%w: copy it again, or use another backup", ErrTruncated)
	case strings.Contains(text, "failed to decrypt and authenticate"):
		// age cannot distinguish a changed block from a file that ends with a whole block.
		return damaged("a block of its encryption is missing or was changed")
	default:
		return damaged("%v", err)
	}
}

func (r *reader) run() (*Manifest, error) {
	for {
		if err := r.ctx.Err(); err != nil {
			return nil, fmt.Errorf("reading the backup: %w", context.Cause(r.ctx))
		}
		h, err := r.tar.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: it has no manifest: copy it again, or use another backup", ErrTruncated)
		}
		if err != nil {
			if !r.begun && errors.Is(err, tar.ErrHeader) {
				return nil, fmt.Errorf("%w: its content is not an archive (%w)", ErrNotBackup, err)
			}
			return nil, describe(err)
		}
		if h.Name == ManifestName {
			return r.manifest(h)
		}
		if err := r.part(h); err != nil {
			return nil, err
		}
	}
}

// content reads one entry of the archive, which may have at most the given size.
func (r *reader) content(h *tar.Header, most int64) ([]byte, error) {
	if h.Typeflag != tar.TypeReg || h.Size < 0 || h.Size > most {
		return nil, damaged("the entry %.100q is no file of at most %d bytes", h.Name, most)
	}
	content := make([]byte, h.Size)
	if _, err := io.ReadFull(r.tar, content); err != nil {
		return nil, describe(err)
	}
	return content, nil
}

func (r *reader) part(h *tar.Header) error {
	file, isFile := strings.CutPrefix(h.Name, filePrefix)
	var content []byte
	var err error
	switch {
	case !r.begun && h.Name != HeaderName:
		return fmt.Errorf("%w: its archive begins with %.100q", ErrNotBackup, h.Name)
	case !r.begun:
		content, err = r.content(h, maxHeader)
	case isFile && validFile(file) && r.parts == 0:
		content, err = r.content(h, maxFile)
	case h.Name == fmt.Sprintf("%s%07d", partPrefix, r.parts+1):
		content, err = r.content(h, maxPart)
	default:
		return damaged("it contains the entry %.100q, which does not belong there", h.Name)
	}
	if err != nil {
		return err
	}
	if err := r.sum(h.Name, content); err != nil {
		return err
	}
	switch {
	case !r.begun:
		return r.header(content)
	case isFile:
		if r.visit.File == nil {
			return nil
		}
		return r.visit.File(file, content)
	default:
		r.parts++
		return r.entries(content)
	}
}

// sum records the checksum of a part, and compares it with that of the earlier reading.
func (r *reader) sum(name string, content []byte) error {
	if len(r.found.Parts) >= maxParts {
		return damaged("it has more than %d parts", maxParts)
	}
	hash := sha256.Sum256(content)
	part := Part{Name: name, Bytes: int64(len(content)), SHA256: hex.EncodeToString(hash[:])}
	i := len(r.found.Parts)
	r.found.Parts = append(r.found.Parts, part)
	if r.want != nil && (i >= len(r.want.Parts) || r.want.Parts[i] != part) {
		return damaged("the part %s is another one than before: the file was changed while it was read", name)
	}
	return nil
}

func (r *reader) header(content []byte) error {
	if err := json.Unmarshal(content, &r.found.Header); err != nil {
		return fmt.Errorf("%w: its header is not JSON", ErrNotBackup)
	}
	if err := r.found.validate(); err != nil {
		return err
	}
	r.begun = true
	if r.visit.Header == nil {
		return nil
	}
	return r.visit.Header(r.found.Header)
}

// entries reads the keys of a part.
func (r *reader) entries(content []byte) error {
	field := func(most int) ([]byte, bool) {
		size, n := binary.Uvarint(content)
		if n <= 0 || size > uint64(most) || size > uint64(len(content)-n) {
			return nil, false
		}
		out := content[n : n+int(size)]
		content = content[n+int(size):]
		return out, true
	}
	for len(content) > 0 {
		key, ok := field(maxKey)
		if !ok || len(key) == 0 {
			return damaged("part %d has a key that cannot be read", r.parts)
		}
		value, ok := field(maxPart)
		if !ok {
			return damaged("part %d has a value that cannot be read", r.parts)
		}
		seconds, n := binary.Uvarint(content)
		if n <= 0 || seconds > uint64(1<<40) {
			return damaged("part %d has a lifetime that cannot be read", r.parts)
		}
		content = content[n:]
		r.found.Objects++
		r.found.Resources[Resource(string(key))]++
		if r.visit.Entry == nil {
			continue
		}
		if err := r.visit.Entry(Entry{Key: key, Value: value, TTL: time.Duration(min(seconds, 1<<31)) * time.Second}); err != nil {
			return err
		}
	}
	return nil
}

// manifest compares the manifest with what was read.
func (r *reader) manifest(h *tar.Header) (*Manifest, error) {
	if !r.begun {
		return nil, fmt.Errorf("%w: it has no header", ErrNotBackup)
	}
	content, err := r.content(h, maxManifest)
	if err != nil {
		return nil, err
	}
	var m Manifest
	if err := json.Unmarshal(content, &m); err != nil {
		return nil, damaged("its manifest is not JSON")
	}
	if m.Header != r.found.Header {
		return nil, damaged("its manifest is that of another backup")
	}
	if len(m.Parts) != len(r.found.Parts) {
		return nil, damaged("it has %d parts, and its manifest lists %d", len(r.found.Parts), len(m.Parts))
	}
	for i, part := range m.Parts {
		if part != r.found.Parts[i] {
			return nil, damaged("the part %.100q does not have the checksum in its manifest", part.Name)
		}
	}
	if !m.equal(&r.found) {
		return nil, damaged("it has %d objects, and its manifest counts %d", r.found.Objects, m.Objects)
	}
	if r.want != nil && !m.equal(r.want) {
		return nil, damaged("its manifest is another one than before: the file was changed while it was read")
	}
	if _, err := r.tar.Next(); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, describe(err)
		}
		return nil, damaged("it continues after its manifest")
	}
	return &m, nil
}

// validFile reports whether a name stays below the directory that it is relative to.
func validFile(name string) bool {
	return name != "" && len(name) <= 255 && path.Clean(name) == name && !path.IsAbs(name) && name != ".." && !strings.HasPrefix(name, "../") && name != "." && !strings.ContainsAny(name, "\\\x00")
}
