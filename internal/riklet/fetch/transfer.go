package fetch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/progress"
)

const (
	// resumes is the maximum number of successive resumptions of a transfer that breaks off,
	// unless at least resumeBytes arrived in between.
	resumes     = 5
	resumeBytes = 1 << 20
	// resumePause is the pause before the first resumption. It doubles.
	resumePause = time.Second
)

// transfer is one download. It resumes a connection that breaks off if the server supports that.
// It fails if no data arrived for the stall timeout.
type transfer struct {
	f    *Fetcher
	r    Request
	work *progress.Work

	alarm *time.Timer
	last  atomic.Pointer[string] // why the last connection ended; nil: none has

	body     *http.Response
	total    int64 // as announced; -1: not announced
	came     int64
	attempts int   // successive resumptions
	since    int64 // the value of came at the first of them
}

// watched starts the stall timer. The context ends when it expires.
func (t *transfer) watched(ctx context.Context) (_ context.Context, done func()) {
	ctx, give := context.WithCancelCause(ctx)
	t.alarm = time.AfterFunc(t.f.cfg.Stall, func() {
		err := fmt.Errorf("%w: the server sent no data for %s", ErrStalled, t.f.cfg.Stall)
		if why := t.last.Load(); why != nil {
			err = fmt.Errorf("%w; %s", err, *why)
		}
		give(err)
	})
	return ctx, func() {
		t.alarm.Stop()
		give(nil)
	}
}

func (t *transfer) run(ctx context.Context) (*Result, error) {
	res, err := t.f.ask(ctx, t.r, 0) //nolint:bodyclose // t.body is closed below; a resumed transfer replaces it
	if err != nil {
		return nil, err
	}
	t.body, t.total = res, res.ContentLength
	defer func() { _ = t.body.Body.Close() }()
	t.alarm.Reset(t.f.cfg.Stall)
	switch {
	case res.StatusCode == http.StatusNotModified && !t.r.Known.Empty():
		return &Result{NotModified: true, Validators: t.r.Known}, nil
	case res.StatusCode != http.StatusOK:
		return nil, &StatusError{Code: res.StatusCode}
	case res.ContentLength > t.f.cfg.Bytes:
		return nil, fmt.Errorf("%w: it has %d bytes, and the limit is %d", ErrTooLarge, res.ContentLength, t.f.cfg.Bytes)
	}
	t.work.Set(0, max(t.total, 0))
	t.r.Known = Validators{ETag: header(res, "ETag"), LastModified: header(res, "Last-Modified")}
	body := readerFunc(func(p []byte) (int, error) { return t.read(ctx, p) })
	out, err := t.f.save(body, t.total, t.r)
	if err != nil {
		return nil, err
	}
	out.Validators = t.r.Known
	return out, nil
}

// read reads from the connection, or from the next one if that breaks off.
func (t *transfer) read(ctx context.Context, p []byte) (int, error) {
	for {
		n, err := t.body.Body.Read(p)
		if n > 0 {
			t.alarm.Reset(t.f.cfg.Stall)
			t.came += int64(n)
			t.work.Add(int64(n))
			return n, nil // the next read returns the error again
		}
		if err == nil || !t.resumable(err) {
			return 0, err
		}
		if again := t.resume(ctx, err); again != nil {
			return 0, again
		}
	}
}

// resumable reports whether an error is the end of a connection before the end of the file, and
// the server can identify the file's version.
func (t *transfer) resumable(err error) bool {
	_, ended := errors.AsType[*http.MaxBytesError](err)
	return !ended && t.came < t.total && t.came > 0 && strong(t.r.Known)
}

// strong reports whether the validators identify one version of a file byte by byte.
// https://www.rfc-editor.org/rfc/rfc9110#section-13.1.5
func strong(v Validators) bool {
	if v.ETag != "" {
		return v.ETag[0] == '"'
	}
	return v.LastModified != ""
}

// resume opens a new connection for the rest of the file. If that is not possible, it returns
// the error that ended the connection.
func (t *transfer) resume(ctx context.Context, broken error) error {
	if t.came-t.since >= resumeBytes {
		t.attempts = 0
	}
	if t.attempts == 0 {
		t.since = t.came
	}
	_ = t.body.Body.Close()
	for ; t.attempts < resumes; t.attempts++ {
		why := fmt.Sprintf("the connection broke after %d of %d bytes, and the download is resumed; the last error was: %v", t.came, t.total, scrub(broken))
		t.last.Store(&why)
		t.work.Trouble(why)
		if !pause.For(ctx, t.f.pause<<t.attempts) {
			return context.Cause(ctx)
		}
		res, err := t.f.ask(ctx, t.r, t.came)
		if err != nil {
			broken = err
			continue
		}
		if res.StatusCode == http.StatusPartialContent && continues(res, t.came, t.total) {
			t.body, t.attempts = res, t.attempts+1
			t.alarm.Reset(t.f.cfg.Stall)
			return nil
		}
		_ = res.Body.Close()
		if failure := (&StatusError{Code: res.StatusCode}); failure.Temporary() {
			broken = failure
			continue
		}
		return fmt.Errorf("%w (the server does not support resuming: it answered %d)", broken, res.StatusCode)
	}
	return fmt.Errorf("%w (it was resumed %d times)", broken, resumes)
}

// continues reports whether an answer is the rest of a file from a byte on.
func continues(res *http.Response, from, total int64) bool {
	want := fmt.Sprintf("bytes %d-%d/%d", from, total-1, total)
	return res.Header.Get("Content-Range") == want
}
