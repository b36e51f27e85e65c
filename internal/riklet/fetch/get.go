package fetch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"

	"rik.dev/rik/internal/riklet/progress"
)

// Request requests one file.
type Request struct {
	URL string
	// Path is where to write the file. It must not exist, and does not exist after an error.
	Path string
	// SHA256 of the file in hex; empty means that it is not verified.
	SHA256 string
	// Known are the validators of a stored file. If the server still has that version,
	// Result.NotModified is set and no file is written.
	Known Validators
}

// Validators identify a version of a file on the server.
type Validators struct{ ETag, LastModified string }

// Empty reports that the server sent none.
func (v Validators) Empty() bool { return v.ETag == "" && v.LastModified == "" }

// Result is a fetched file.
type Result struct {
	NotModified bool
	SHA256      string // in hex
	Bytes       int64
	Validators  Validators
}

// CheckSHA256 returns a SHA-256 in hex in lower case, and refuses any other text.
func CheckSHA256(sum string) (string, error) {
	if raw, err := hex.DecodeString(sum); err != nil || len(raw) != sha256.Size {
		return "", fmt.Errorf("%w: the checksum %q is not a SHA-256 of 64 hexadecimal digits", ErrRefused, shorten(sum))
	}
	return strings.ToLower(sum), nil
}

// Get downloads a file. Its errors do not contain the parts of the URL that may be secret.
func (f *Fetcher) Get(ctx context.Context, r Request) (*Result, error) {
	res, err := f.get(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("downloading %s: %w", Redact(r.URL), err)
	}
	return res, nil
}

func (f *Fetcher) get(ctx context.Context, r Request) (*Result, error) {
	if r.SHA256 != "" {
		sum, err := CheckSHA256(r.SHA256)
		if err != nil {
			return nil, err
		}
		r.SHA256 = sum
	}
	ctx, stop := context.WithTimeoutCause(ctx, f.cfg.Time, fmt.Errorf("%w: the limit is %s", ErrTimeout, f.cfg.Time))
	defer stop()
	t := &transfer{f: f, r: r, work: progress.Of(ctx)}
	t.work.Begin(progress.Progress{What: "downloading " + Redact(r.URL), From: "the server", Stall: f.cfg.Stall})
	ctx, done := t.watched(ctx)
	defer done()
	out, err := t.run(ctx)
	if err != nil {
		return nil, because(ctx, err)
	}
	return out, nil
}

// header returns a validator if it is short enough to store.
func header(res *http.Response, name string) string {
	if v := res.Header.Get(name); len(v) <= 1024 {
		return v
	}
	return ""
}

// ask requests the file. from is the first byte to request, of the version in Known.
func (f *Fetcher) ask(ctx context.Context, r Request, from int64) (*http.Response, error) {
	u, err := f.parse(r.URL)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, scrub(err)
	}
	req.Header.Set("User-Agent", "rik")
	switch {
	case from > 0:
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
		req.Header.Set("If-Range", cmp.Or(r.Known.ETag, r.Known.LastModified))
	default:
		setHeader(req, "If-None-Match", r.Known.ETag)
		setHeader(req, "If-Modified-Since", r.Known.LastModified)
	}
	res, err := f.client.Do(req)
	if err != nil {
		return nil, scrub(err)
	}
	return res, nil
}

func setHeader(req *http.Request, name, value string) {
	if value != "" {
		req.Header.Set(name, value)
	}
}

// because replaces the error by the cause of the context's end.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// save writes the body to a file as it arrives.
func (f *Fetcher) save(body io.Reader, announced int64, r Request) (_ *Result, err error) {
	file, err := os.OpenFile(r.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("writing the download: %w", err)
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			err = errors.Join(err, os.Remove(r.Path))
		}
	}()
	hash := sha256.New()
	out := &writer{file: file, limit: f.cfg.Bytes, reserve: f.cfg.ReserveBytes, sinceChecked: checkInterval}
	n, err := io.Copy(io.MultiWriter(out, hash), body)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("%w: it ended after %d of %d bytes: %w", ErrLength, n, announced, scrub(err))
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return nil, fmt.Errorf("%w: %w", ErrNoSpace, err)
	case err != nil:
		return nil, scrub(err)
	case announced >= 0 && n != announced:
		return nil, fmt.Errorf("%w: the server sent %d bytes and announced %d", ErrLength, n, announced)
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	if r.SHA256 != "" && sum != r.SHA256 {
		return nil, fmt.Errorf("%w: it is sha256:%s instead of sha256:%s; the file was changed, or the checksum is of another file", ErrDigest, sum, r.SHA256)
	}
	return &Result{SHA256: sum, Bytes: n}, nil
}

// checkInterval is the number of bytes written between two checks of the free space.
const checkInterval = 8 << 20

// writer enforces the limit of a file and the reserve of the file system.
type writer struct {
	file            *os.File
	limit, reserve  int64
	n, sinceChecked int64
}

func (w *writer) Write(p []byte) (int, error) {
	if w.n += int64(len(p)); w.n > w.limit {
		return 0, fmt.Errorf("%w: the server sent more than %d bytes", ErrTooLarge, w.limit)
	}
	if w.sinceChecked += int64(len(p)); w.sinceChecked >= checkInterval && w.reserve > 0 {
		w.sinceChecked = 0
		var st syscall.Statfs_t
		if err := syscall.Fstatfs(int(w.file.Fd()), &st); err != nil {
			return 0, fmt.Errorf("reading the free space: %w", err)
		}
		if free := int64(st.Bavail) * st.Bsize; free < w.reserve {
			return 0, fmt.Errorf("%w: %d bytes are free, and %d must stay free", ErrNoSpace, free, w.reserve)
		}
	}
	return w.file.Write(p)
}
