package backup

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
)

// Writer writes a backup: files first, then entries, then Close. It is not safe for concurrent
// use. After an error the output is not a backup.
type Writer struct {
	encrypted io.WriteCloser // nil without encryption
	zstd      *zstd.Encoder
	tar       *tar.Writer
	part      bytes.Buffer
	parts     int
	manifest  Manifest
}

// NewWriter writes the header. It sets the format and the ID of the header, and its time if that is
// zero.
func NewWriter(w io.Writer, to Recipients, header Header) (*Writer, error) {
	if err := to.Validate(); err != nil {
		return nil, err
	}
	header.Format, header.ID = Format, rand.Text()
	if header.Created.IsZero() {
		header.Created = time.Now()
	}
	header.Created = header.Created.UTC().Truncate(time.Second)
	if err := header.validate(); err != nil {
		return nil, fmt.Errorf("programmer error: %w", err)
	}
	out := &Writer{manifest: Manifest{Header: header, Resources: map[string]int64{}}}
	if len(to.recipients) > 0 {
		encrypted, err := age.Encrypt(w, to.recipients...)
		if err != nil {
			return nil, fmt.Errorf("encrypting the backup: %w", err)
		}
		out.encrypted, w = encrypted, encrypted
	}
	// One encoder at a time: backups run next to the API server.
	compressed, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(4<<20))
	if err != nil {
		return nil, fmt.Errorf("compressing the backup: %w", err)
	}
	out.zstd, out.tar = compressed, tar.NewWriter(compressed)
	text, err := json.MarshalIndent(header, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the header: %w", err)
	}
	return out, out.add(HeaderName, text)
}

// add writes one entry of the archive.
func (w *Writer) add(name string, content []byte) error {
	sum := sha256.Sum256(content)
	w.manifest.Parts = append(w.manifest.Parts, Part{Name: name, Bytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:])})
	return w.put(name, content)
}

func (w *Writer) put(name string, content []byte) error {
	err := w.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content)), ModTime: w.manifest.Created, Format: tar.FormatPAX})
	if err == nil {
		_, err = w.tar.Write(content)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

// AddFile adds a file of the data directory. Its name is relative and uses slashes.
func (w *Writer) AddFile(name string, content []byte) error {
	switch {
	case w.parts > 0 || w.part.Len() > 0:
		return errors.New("programmer error: files come before objects")
	case !validFile(name):
		return fmt.Errorf("programmer error: %q is not the name of a file", name)
	case len(content) > maxFile:
		return fmt.Errorf("the file %s has %d bytes, and a backup takes at most %d", name, len(content), maxFile)
	}
	return w.add(filePrefix+name, content)
}

// AddEntry adds a key.
func (w *Writer) AddEntry(e Entry) error {
	if len(e.Key) == 0 || len(e.Key) > maxKey || len(e.Key)+len(e.Value) > maxPart/2 {
		return fmt.Errorf("the key %.100q has %d bytes and a value of %d bytes, which is more than a backup takes", e.Key, len(e.Key), len(e.Value))
	}
	if w.part.Len() >= partTarget {
		if err := w.flush(); err != nil {
			return err
		}
	}
	var number [binary.MaxVarintLen64]byte
	field := func(content []byte) {
		w.part.Write(binary.AppendUvarint(number[:0], uint64(len(content))))
		w.part.Write(content)
	}
	field(e.Key)
	field(e.Value)
	w.part.Write(binary.AppendUvarint(number[:0], uint64(max(e.TTL/time.Second, 0))))
	w.manifest.Objects++
	w.manifest.Resources[Resource(string(e.Key))]++
	return nil
}

// flush writes the current part.
func (w *Writer) flush() error {
	if w.part.Len() == 0 {
		return nil
	}
	w.parts++
	defer w.part.Reset()
	return w.add(fmt.Sprintf("%s%07d", partPrefix, w.parts), w.part.Bytes())
}

// Close writes the manifest and ends the backup. It does not close the underlying writer.
func (w *Writer) Close() (*Manifest, error) {
	if err := w.flush(); err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(w.manifest, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encoding the manifest: %w", err)
	}
	if err := w.put(ManifestName, text); err != nil {
		return nil, err
	}
	closers := []func() error{w.tar.Close, w.zstd.Close}
	if w.encrypted != nil {
		closers = append(closers, w.encrypted.Close)
	}
	for _, c := range closers {
		if err := c(); err != nil {
			return nil, fmt.Errorf("ending the backup: %w", err)
		}
	}
	out := w.manifest
	out.Resources = maps.Clone(out.Resources)
	return &out, nil
}
