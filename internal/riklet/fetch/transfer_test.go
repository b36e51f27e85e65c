package fetch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/progress"
)

// noise returns a file in which no two parts are the same.
func noise(n int) []byte {
	data := make([]byte, n)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

// breaking serves a file and ends each connection after some bytes of it.
type breaking struct {
	data  []byte
	room  int
	etag  string
	gets  atomic.Int32
	other http.HandlerFunc // answers all requests but the first; nil: the same as the first
}

func (b *breaking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if b.gets.Add(1) > 1 && b.other != nil {
		b.other(w, r)
		return
	}
	if b.etag != "" {
		w.Header().Set("ETag", b.etag)
	}
	http.ServeContent(&short{w, b.room}, r, "", time.Time{}, bytes.NewReader(b.data))
}

type short struct {
	http.ResponseWriter
	room int
}

func (s *short) Write(p []byte) (int, error) {
	if len(p) <= s.room {
		s.room -= len(p)
		return s.ResponseWriter.Write(p)
	}
	_, _ = s.ResponseWriter.Write(p[:s.room])
	_ = http.NewResponseController(s.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}

// TestBrokenConnections checks that a download continues where its connection ended, if
// the server still has the same file. Otherwise it fails with the last error.
func TestBrokenConnections(t *testing.T) {
	t.Parallel()
	data := noise(900 << 10)
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	lying := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(data)-1, len(data)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(data)
	}
	for name, tc := range map[string]struct {
		server *breaking
		gets   int32
		fails  string
	}{
		"three times":          {&breaking{room: 250 << 10, etag: `"v1"`}, 4, ""},
		"without a version":    {&breaking{room: 250 << 10}, 1, "it ended after"},
		"with a weak one":      {&breaking{room: 250 << 10, etag: `W/"v1"`}, 1, "it ended after"},
		"again and again":      {&breaking{room: 10 << 10, etag: `"v1"`}, 6, "it was resumed 5 times"},
		"another version":      {&breaking{room: 250 << 10, etag: `"v1"`, other: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) }}, 2, "does not support resuming: it answered 200"},
		"the wrong part":       {&breaking{room: 250 << 10, etag: `"v1"`, other: lying}, 2, "does not support resuming: it answered 206"},
		"gone":                 {&breaking{room: 250 << 10, etag: `"v1"`, other: status(http.StatusNotFound)}, 2, "it answered 404"},
		"unavailable for long": {&breaking{room: 250 << 10, etag: `"v1"`, other: status(http.StatusServiceUnavailable)}, 6, "503"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := tc.server
			server.data = data
			s := serve(t, server.ServeHTTP)
			f := New(config(nil))
			f.pause = time.Millisecond
			path := filepath.Join(t.TempDir(), "f")
			w := &progress.Work{}
			res, err := f.Get(progress.With(t.Context(), w), Request{URL: s.URL + "/x?token=secret", Path: path})
			if got := server.gets.Load(); got != tc.gets {
				t.Errorf("%d requests were made, want %d", got, tc.gets)
			}
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) || strings.Contains(err.Error(), "secret") {
					t.Errorf("Get = %v, want an error with the text %q", err, tc.fails)
				}
				if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("a file stays: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(data)
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) || res.SHA256 != hex.EncodeToString(sum[:]) || res.Validators.ETag != `"v1"` {
				t.Errorf("got %d bytes, %v, %+v", len(got), err, res)
			}
			if said := w.Progress().String(); !strings.Contains(said, "downloading "+s.URL+"/x: 0.9 MiB of 0.9 MiB; the connection broke after ") {
				t.Errorf("the progress is %q", said)
			}
		})
	}
}

// TestStalledDownload checks that a stalled download fails at any point, and that its
// progress shows the wait before.
func TestStalledDownload(t *testing.T) {
	t.Parallel()
	stops := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, tc := range map[string]struct {
		server *breaking
		said   string
		fails  string
	}{
		"at once":        {&breaking{}, ": waiting for the server", "the server sent no data for 2s"},
		"after an error": {&breaking{room: 250 << 10, etag: `"v1"`, other: stops}, ": 0.2 MiB of 0.9 MiB; the connection broke after 256000 of 921600 bytes", "the server sent no data for 2s; the connection broke after 256000 of 921600 bytes, and the download is resumed; the last error was: unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := tc.server
			server.data = noise(900 << 10)
			handler := server.ServeHTTP
			if server.other == nil {
				handler = stops
			}
			s := serve(t, handler)
			f := New(config(func(c *Config) { c.Stall = 2 * time.Second }))
			f.pause = time.Millisecond
			w := &progress.Work{}
			_, err := f.Get(progress.With(t.Context(), w), Request{URL: s.URL + "/x", Path: filepath.Join(t.TempDir(), "f")})
			if !errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("Get = %v, want %v with the text %q", err, ErrStalled, tc.fails)
			}
			if said := w.Progress(); !strings.Contains(said.String(), "downloading "+s.URL+"/x"+tc.said) || said.Stall != 2*time.Second {
				t.Errorf("the progress is %q", said)
			}
		})
	}
}

// TestCopyReportsProgress checks that a copy of a file of the node also reports progress.
func TestCopyReportsProgress(t *testing.T) {
	t.Parallel()
	from := filepath.Join(t.TempDir(), "from")
	if err := os.WriteFile(from, noise(1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &progress.Work{}
	if _, err := New(config(nil)).Copy(progress.With(t.Context(), w), from, from+"2", ""); err != nil {
		t.Fatal(err)
	}
	if said := w.Progress().String(); said != "copying "+from+": 1.0 MiB of 1.0 MiB" {
		t.Errorf("the progress is %q", said)
	}
}
