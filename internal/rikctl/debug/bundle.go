package debug

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"rik.dev/rik/internal/rikctl/debug/redact"
	"rik.dev/rik/internal/version"
)

// maxFileBytes bounds each file of text. The last lines of a longer one are cut off.
const maxFileBytes = 16 << 20

var errLong = fmt.Errorf("only the first %d MiB", maxFileBytes>>20)

// entry is one file of a bundle, or the reason why it is missing.
type entry struct {
	name    string
	content string
	// problem is why the file is missing or incomplete, or empty.
	problem string
}

// bundle is what was collected. It is kept in memory until all of it is known: the last file may show
// a secret that the first one repeats.
type bundle struct {
	at       time.Time
	redactor *redact.Redactor
	files    []entry
	failures []entry
}

func newBundle(at time.Time) *bundle { return &bundle{at: at, redactor: redact.New()} }

// text adds a file of text, such as a log.
func (b *bundle) text(name string, content []byte, err error) {
	if len(content) > maxFileBytes {
		err = errors.Join(err, errLong)
		// A secret at the end would be cut, and not be recognized.
		content = append(content[:bytes.LastIndexByte(content[:maxFileBytes], '\n')+1], "[cut off here]\n"...)
	}
	b.add(name, b.redactor.Text(string(content)), err)
}

// add adds a file from which the secrets were removed already, and records why it is incomplete.
func (b *bundle) add(name, content string, err error) {
	e := entry{name: name, content: content}
	if err != nil {
		e.problem = b.redactor.Text(err.Error())
	}
	if e.problem != "" && content == "" {
		b.failures = append(b.failures, e)
		return
	}
	b.files = append(b.files, e)
}

// failed returns the files that are missing or incomplete.
func (b *bundle) failed() []entry {
	all := b.failures
	for _, e := range b.files {
		if e.problem != "" {
			all = append(all, e)
		}
	}
	return all
}

// index describes the content.
func (b *bundle) index() string {
	var s strings.Builder
	fmt.Fprintf(&s, "Written by rikctl %s at %s.\nSecrets were replaced by %s.\n\n", version.Version, b.at.UTC().Format(time.RFC3339), redact.Mark)
	for _, e := range b.files {
		fmt.Fprintf(&s, "%-60s %9d bytes", e.name, len(e.content))
		if e.problem != "" {
			fmt.Fprintf(&s, "  incomplete: %s", oneLine(e.problem))
		}
		s.WriteString("\n")
	}
	for _, e := range b.failures {
		fmt.Fprintf(&s, "%-60s missing: %s\n", e.name, oneLine(e.problem))
	}
	return s.String()
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// write writes the bundle as a compressed archive. All files are in one directory.
func (b *bundle) write(w io.Writer) error {
	dir := b.at.Format("rik-debug-20060102-150405/")
	packed := gzip.NewWriter(w)
	archive := tar.NewWriter(packed)
	all := append([]entry{{name: "index.txt", content: b.index()}}, b.files...)
	scrubber := b.redactor.Scrubber()
	for _, e := range all {
		content := scrubber.Replace(e.content)
		header := &tar.Header{Name: dir + scrubber.Replace(e.name), Mode: 0o600, Size: int64(len(content)), ModTime: b.at, Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.WriteString(archive, content); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return packed.Close()
}
