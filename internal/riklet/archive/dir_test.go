package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"rik.dev/rik/internal/riklet/fetch"
	"rik.dev/rik/internal/riklet/image/unpack"
	"rik.dev/rik/internal/riklet/progress"
)

// TestMain makes the test binary its own unpacker, as the image store's tests do.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "unpack" {
		if err := unpack.Unpack(context.Background(), nil, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func newDir(tb testing.TB, change func(*Config)) *Dir {
	tb.Helper()
	return newDirAt(tb, filepath.Join(tb.TempDir(), "apps"), change)
}

func newDirAt(tb testing.TB, root string, change func(*Config)) *Dir {
	tb.Helper()
	cfg := Config{
		Root:          root,
		Unpacker:      []string{"/proc/self/exe", "unpack"},
		Limits:        fetch.Limits{ReserveBytes: 1},
		AllowHTTP:     true,
		AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Logger:        slog.New(slog.NewTextHandler(tb.Output(), nil)),
	}
	if change != nil {
		change(&cfg)
	}
	d, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = d.Close() })
	return d
}

// requireClean fails the test if there are files other than complete trees below the root.
func requireClean(tb testing.TB, d *Dir, items int) {
	tb.Helper()
	for dir, want := range map[string]int{"tmp": 0, "items": items} {
		entries, err := os.ReadDir(filepath.Join(d.cfg.Root, dir))
		if err != nil {
			tb.Fatal(err)
		}
		if len(entries) != want {
			tb.Errorf("%s has %d entries, want %d: %v", dir, len(entries), want, entries)
		}
	}
}

func tarOf(tb testing.TB, headers ...tar.Header) []byte {
	tb.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range headers {
		content := []byte(h.Name)
		if h.Typeflag != tar.TypeReg {
			content = nil
		}
		h.Size = int64(len(content))
		err := tw.WriteHeader(&h)
		if err == nil {
			_, err = tw.Write(content)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

func gzipped(tb testing.TB, data []byte) []byte {
	tb.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(data); err != nil {
		tb.Fatal(err)
	}
	if err := z.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

func zipped(tb testing.TB, names ...string) []byte {
	tb.Helper()
	var buf bytes.Buffer
	zw := zip.NewWriter(&buf)
	for _, name := range names {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate}
		h.SetMode(0o755)
		w, err := zw.CreateHeader(h)
		if err == nil {
			_, err = w.Write([]byte(name))
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	if err := zw.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

func program(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o6750, Uid: os.Geteuid(), Gid: os.Getegid()}
}

// site serves files by path, with tags, and counts what it sends.
type site struct {
	*httptest.Server
	sent  atomic.Int32
	mu    sync.Mutex
	files map[string][]byte
}

func newSite(tb testing.TB, files map[string][]byte) *site {
	tb.Helper()
	s := &site{files: files}
	s.Server = httptest.NewServer(s)
	tb.Cleanup(s.Close)
	return s
}

func (s *site) set(path string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[path] = data
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	data, ok := s.files[r.URL.Path]
	s.mu.Unlock()
	tag := fmt.Sprintf(`"%d-%x"`, len(data), data[:min(len(data), 200)])
	switch {
	case !ok:
		http.NotFound(w, r)
	case r.Header.Get("If-None-Match") == tag:
		w.WriteHeader(http.StatusNotModified)
	default:
		s.sent.Add(1)
		w.Header().Set("ETag", tag)
		_, _ = w.Write(data)
	}
}

func TestGet(t *testing.T) {
	t.Parallel()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	plain := tarOf(t, program("bin/app"))
	for name, data := range map[string][]byte{"gzip": gzipped(t, plain), "zstd": z.EncodeAll(plain, nil), "zip": zipped(t, "bin/app")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, map[string][]byte{"/v1.0+b/app": data})
			d := newDir(t, nil)
			got, err := d.Get(t.Context(), "app-1", Request{Repo: s.URL + "/v{version}/app?v={version}", Version: "1.0+b"})
			if err != nil {
				t.Fatal(err)
			}
			if content, err := os.ReadFile(filepath.Join(got.Dir, "bin/app")); err != nil || string(content) != "bin/app" || !strings.HasPrefix(got.Digest, "sha256:") {
				t.Errorf("the program is %q, %v, of %s", content, err, got.Digest)
			}
			for path, want := range map[string]fs.FileMode{".": 0o755, "bin": 0o755, "bin/app": 0o755} {
				if info, err := os.Stat(filepath.Join(got.Dir, path)); err != nil || info.Mode()&^fs.ModeDir != want {
					t.Errorf("%s is %v, %v; want %v", path, info.Mode(), err, want)
				}
			}
			requireClean(t, d, 1)
		})
	}
}

// All instances share one tree. A version that changes gets a separate tree.
func TestGetSharesAndFollows(t *testing.T) {
	t.Parallel()
	s := newSite(t, map[string][]byte{"/a": gzipped(t, tarOf(t, program("one")))})
	root := filepath.Join(t.TempDir(), "apps")
	d := newDirAt(t, root, nil)
	r := Request{Repo: s.URL + "/a"}
	var wait sync.WaitGroup
	dirs := make([]string, 8)
	for i := range dirs {
		wait.Go(func() {
			got, err := d.Get(t.Context(), fmt.Sprintf("app-%d", i), r)
			if err != nil {
				t.Error(err)
				return
			}
			dirs[i] = got.Dir
		})
	}
	wait.Wait()
	for _, dir := range dirs {
		if dir != dirs[0] {
			t.Errorf("two trees: %s and %s", dir, dirs[0])
		}
	}
	if s.sent.Load() != 1 {
		t.Errorf("sent %d times, want once", s.sent.Load())
	}
	s.set("/a", gzipped(t, tarOf(t, program("two"))))
	got, err := d.Get(t.Context(), "app-9", r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(got.Dir, "two")); err != nil || got.Dir == dirs[0] {
		t.Errorf("the new tree is %s: %v", got.Dir, err)
	}
	// A new store finds the pins of the earlier one.
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = newDirAt(t, root, nil)
	if err := errors.Join(d.Release("app-9"), d.Collect(t.Context(), 0)); err != nil {
		t.Fatal(err)
	}
	requireClean(t, d, 1)
	users, err := d.Users()
	if err != nil || len(users) != 8 {
		t.Errorf("Users = %v, %v; want 8", users, err)
	}
	for _, user := range users {
		if err := d.Release(user); err != nil {
			t.Error(err)
		}
	}
	if err := d.Collect(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	requireClean(t, d, 0)
	// The note of a removed tree has no effect.
	if _, err := d.Get(t.Context(), "app-1", r); err != nil {
		t.Error(err)
	}
}

// TestGetKeepsPinnedItems checks that a restarted instance gets the same tree, even if the
// repository has another archive now, or none.
func TestGetKeepsPinnedItems(t *testing.T) {
	t.Parallel()
	s := newSite(t, map[string][]byte{"/a": gzipped(t, tarOf(t, program("one")))})
	d := newDir(t, nil)
	r := Request{Repo: s.URL + "/a"}
	first, err := d.Get(t.Context(), "app-1", r)
	if err != nil {
		t.Fatal(err)
	}
	s.set("/a", gzipped(t, tarOf(t, program("two"))))
	again, err := d.Get(t.Context(), "app-1", r)
	if err != nil || *again != *first {
		t.Errorf("the App changed its files from %v to %v: %v", first, again, err)
	}
	s.Close()
	if again, err = d.Get(t.Context(), "app-1", r); err != nil || *again != *first {
		t.Errorf("without the repository the App has no files: %v, %v", again, err)
	}
	if got, err := d.Get(t.Context(), "app-2", r); err == nil {
		t.Errorf("another App got %v of a repository that is gone", got)
	}
}

func TestGetRefuses(t *testing.T) {
	t.Parallel()
	many := make([]tar.Header, 50)
	for i := range many {
		many[i] = program(fmt.Sprint(i))
	}
	s := newSite(t, map[string][]byte{
		"/traversal": gzipped(t, tarOf(t, program("../../evil"))),
		"/zip":       zipped(t, "../evil"),
		"/device":    gzipped(t, tarOf(t, tar.Header{Name: "sda", Typeflag: tar.TypeChar})),
		"/page":      []byte(strings.Repeat("<html>", 1000)),
		"/many":      gzipped(t, tarOf(t, many...)),
		"/large":     bytes.Repeat([]byte("x"), 2<<20),
	})
	d := newDir(t, func(c *Config) { c.Limits.Entries, c.Limits.DownloadBytes = 20, 1<<20 })
	for _, tc := range []struct {
		repo, version string
		want          error
		says          string
	}{
		{s.URL + "/traversal", "", ErrRefused, "../../evil"},
		{s.URL + "/zip", "", ErrRefused, "../evil"},
		{s.URL + "/device", "", ErrRefused, "forges"},
		{s.URL + "/page", "", ErrRefused, "archive"},
		{s.URL + "/many", "", ErrTooLarge, "20 entries"},
		{s.URL + "/large", "", ErrTooLarge, "1048576"},
		{s.URL + "/none", "", ErrNotFound, "404"},
		{s.URL + "/{version}", "2", ErrNotFound, "404"},
		{s.URL + "/{version}", "", ErrRefused, "no version"},
		{s.URL + "/{version}", "../x", ErrRefused, "version"},
		{s.URL + "/{version}", "a/b", ErrRefused, "version"},
		{s.URL + "/{version}", "1..2", ErrRefused, "version"},
		{s.URL + "/x", "?x", ErrRefused, "version"},
		{"https://{version}/x", "evil.example", ErrRefused, "path of the repository"},
		{"https://u:{version}@host/x", "1", ErrRefused, "path of the repository"},
		{"http://10.0.0.1/x", "", ErrRefused, "private address"},
		{"git@host:x", "", ErrRefused, ""},
		{"", "", ErrRefused, ""},
		{"relative/path", "", ErrRefused, ""},
		{"/etc", "", ErrRefused, "private to the node"},
		{"/proc/1/root", "", ErrRefused, ""},
		{"/", "", ErrRefused, "root directory of the node"},
		{"/no/such/place", "", ErrNotFound, "/no/such/place"},
		{d.cfg.Root, "", ErrRefused, "private to the node"},
	} {
		_, err := d.Get(t.Context(), "app-1", Request{Repo: tc.repo, Version: tc.version})
		if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("Get(%q, %q) = %v, want %v with the text %q", tc.repo, tc.version, err, tc.want, tc.says)
		}
	}
	if _, err := d.Get(t.Context(), "../x", Request{Repo: s.URL + "/traversal"}); err == nil {
		t.Error("a user that is a path is accepted")
	}
	requireClean(t, d, 0)
	if users, _ := d.Users(); len(users) != 0 {
		t.Errorf("pinned after failures: %v", users)
	}
}

func TestGetLocal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "app-1.0", "private"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("app-1.0", filepath.Join(dir, "app-latest")); err != nil {
		t.Fatal(err)
	}
	d := newDir(t, func(c *Config) { c.Private = []string{filepath.Join(dir, "app-1.0", "private")} })
	if _, err := d.Get(t.Context(), "app-1", Request{Repo: filepath.Join(dir, "app-{version}"), Version: "1.0"}); !errors.Is(err, ErrRefused) {
		t.Errorf("a directory with a private one in it: %v, want %v", err, ErrRefused)
	}
	d.cfg.Private = nil
	for _, version := range []string{"1.0", "latest"} {
		got, err := d.Get(t.Context(), "app-1", Request{Repo: filepath.Join(dir, "app-{version}"), Version: version})
		if err != nil || got.Dir != filepath.Join(dir, "app-1.0") || got.Digest != "" {
			t.Errorf("%s: %+v, %v", version, got, err)
		}
	}
	file := filepath.Join(dir, "app.tar.gz")
	if err := os.WriteFile(file, gzipped(t, tarOf(t, program("bin/app"))), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := d.Get(t.Context(), "app-1", Request{Repo: file})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(got.Dir, "bin/app")); err != nil {
		t.Error(err)
	}
	requireClean(t, d, 1)
}

func TestNewRemovesIncompleteItems(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "apps")
	if err := os.MkdirAll(filepath.Join(root, "tmp/new-1/item/files"), 0o755); err != nil {
		t.Fatal(err)
	}
	requireClean(t, newDirAt(t, root, nil), 0)
	if _, err := New(Config{Root: "relative"}); !errors.Is(err, ErrInvalidConfig) {
		t.Errorf("New = %v, want %v", err, ErrInvalidConfig)
	}
}

// TestGetReportsProgress checks that the download, the copy and the unpacking report their progress
// to all waiting callers.
func TestGetReportsProgress(t *testing.T) {
	t.Parallel()
	random := make([]byte, 1<<20)
	_, _ = rand.Read(random)
	file := tar.Header{Name: "bin", Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(random))}
	var data bytes.Buffer
	tw := tar.NewWriter(&data)
	if err := errors.Join(tw.WriteHeader(&file), func() error { _, err := tw.Write(random); return err }(), tw.Close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "app.tar")
	if err := os.WriteFile(path, data.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(data.Len()))
		_, _ = w.Write(data.Bytes()[:data.Len()/2])
		_ = http.NewResponseController(w).Flush()
		<-release
		_, _ = w.Write(data.Bytes()[data.Len()/2:])
	}))
	t.Cleanup(s.Close)
	d := newDir(t, nil)
	works := []*progress.Work{{}, {}}
	var group errgroup.Group
	for i, w := range works {
		group.Go(func() error {
			_, err := d.Get(progress.With(t.Context(), w), fmt.Sprintf("app-%d", i), Request{Repo: s.URL + "/app.tar?token=secret"})
			return err
		})
	}
	for _, w := range works {
		want := "downloading " + s.URL + "/app.tar: 0.5 MiB of 1.0 MiB"
		for deadline := time.Now().Add(20 * time.Second); w.Progress().String() != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the progress is %q, want %q", w.Progress(), want)
			}
		}
	}
	close(release)
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	copied := &progress.Work{}
	if _, err := d.Get(progress.With(t.Context(), copied), "app-3", Request{Repo: path}); err != nil {
		t.Fatal(err)
	}
	for want, w := range map[string]*progress.Work{
		"unpacking " + s.URL + "/app.tar: 1.0 MiB of 1.0 MiB": works[0],
		"copying " + path + ": 1.0 MiB of 1.0 MiB":            copied, // the content is there already
	} {
		if got := w.Progress().String(); got != want {
			t.Errorf("the progress is %q, want %q", got, want)
		}
	}
}
