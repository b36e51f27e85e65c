package disk

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"rik.dev/rik/internal/riklet/progress"
)

// tarOf packs files by name.
func tarOf(tb testing.TB, files map[string]string) []byte {
	tb.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for name, content := range files {
		err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(content)), Uid: os.Geteuid(), Gid: os.Getegid()})
		if err == nil {
			_, err = tw.Write([]byte(content))
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

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// ext4Of creates an ext4 image as a user would.
func ext4Of(tb testing.TB, files map[string]string) []byte {
	tb.Helper()
	images := newTrees(tb)
	for name, content := range files {
		write(tb, filepath.Join(images.dir, name), content)
	}
	d := newDir(tb, nil)
	path := filepath.Join(tb.TempDir(), "image")
	if err := d.fromTree(tb.Context(), images.dir, path, "test"); err != nil {
		tb.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// site is a web server with one file, which can be changed.
type site struct {
	*httptest.Server
	gets, sent atomic.Int32

	mu   sync.Mutex
	data []byte
	tags bool
}

func newSite(tb testing.TB, data []byte) *site {
	tb.Helper()
	s := &site{data: data, tags: true}
	s.Server = httptest.NewServer(s)
	tb.Cleanup(s.Close)
	return s
}

func (s *site) set(data []byte, tags bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data, s.tags = data, tags
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.gets.Add(1)
	if r.URL.Path == "/redirect" {
		http.Redirect(w, r, "/file", http.StatusFound)
		return
	}
	s.mu.Lock()
	data, tags := s.data, s.tags
	s.mu.Unlock()
	if tag := `"` + sumOf(data) + `"`; tags {
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	s.sent.Add(1)
	_, _ = w.Write(data)
}

// local allows a store to fetch from this machine.
func local(c *Config) {
	c.AllowHTTP = true
	c.AllowNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
}

func TestFromURLDetectsFormats(t *testing.T) {
	t.Parallel()
	files := map[string]string{"etc/motd": "hello\n"}
	plain, disk := tarOf(t, files), ext4Of(t, files)
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"tar": plain, "tar.gz": gzipped(t, plain), "tar.zst": z.EncodeAll(plain, nil),
		"ext4": disk, "ext4.gz": gzipped(t, disk), "ext4.zst": z.EncodeAll(disk, nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, data)
			d := newDir(t, local)
			got, err := d.FromURL(t.Context(), "vm-1", URLRequest{URL: s.URL + "/file", SHA256: sumOf(data)})
			if err != nil {
				t.Fatal(err)
			}
			if got.Digest != "sha256:"+sumOf(data) {
				t.Errorf("the digest is %s, want the download's", got.Digest)
			}
			if out := ask(t, got.Path, "cat /etc/motd"); out != "hello\n" {
				t.Errorf("/etc/motd is %q", out)
			}
			requireSound(t, got.Path)
			if info, err := os.Stat(got.Path); err != nil || info.Mode().Perm() != 0o444 {
				t.Errorf("the file is %v, %v; want 0444", info.Mode(), err)
			}
			requireClean(t, d, 1)
		})
	}
}

// The published RIK read a whole root into memory, kept it forever under the workload's name in
// /tmp, and let all instances write to one file. Here it is streamed, stored by its content,
// revalidated, checked and read-only. Each instance writes to its own disk.
func TestFunctionRootFault15(t *testing.T) {
	first, second := gzipped(t, tarOf(t, map[string]string{"v": "1"})), gzipped(t, tarOf(t, map[string]string{"v": "2"}))
	s := newSite(t, first)
	d := newDir(t, local)
	get := func(user, url, sum, want string) *Image {
		t.Helper()
		got, err := d.FromURL(t.Context(), user, URLRequest{URL: s.URL + url, SHA256: sum})
		if err != nil {
			t.Fatal(err)
		}
		if out := ask(t, got.Path, "cat /v"); out != want {
			t.Errorf("%s has %q, want %q", url, out, want)
		}
		return got
	}
	a := get("vm-1", "/file", "", "1")
	b := get("vm-2", "/file", "", "1")
	if a.Path != b.Path || s.sent.Load() != 1 {
		t.Errorf("an unchanged file was sent %d times, to %s and %s", s.sent.Load(), a.Path, b.Path)
	}
	s.set(second, true)
	if c := get("vm-3", "/file", "", "2"); c.Path == a.Path {
		t.Error("another content replaced a file that is in use")
	}
	if out := ask(t, a.Path, "cat /v"); out != "1" {
		t.Errorf("what vm-1 has is %q now", out)
	}
	get("vm-4", "/redirect", "", "2") // the first answer is not 200
	// With a checksum, stored content is not requested again.
	gets := s.gets.Load()
	get("vm-5", "/file", sumOf(first), "1")
	if s.gets.Load() != gets {
		t.Error("the server received a request for content that is stored")
	}
	if _, err := d.FromURL(t.Context(), "vm-6", URLRequest{URL: s.URL + "/file", SHA256: strings.Repeat("0", 64)}); !errors.Is(err, ErrDigest) {
		t.Errorf("another checksum: %v, want %v", err, ErrDigest)
	}
	// Names are not paths.
	for _, user := range []string{"../../etc", "a/b", ""} {
		if _, err := d.FromURL(t.Context(), user, URLRequest{URL: s.URL + "/file"}); err == nil {
			t.Errorf("the user %q is accepted", user)
		}
	}
	if f, err := os.Stat(a.Path); err != nil || f.Mode().Perm()&0o222 != 0 {
		t.Errorf("instances could write to %v, %v", f.Mode(), err)
	}
}

// A large root is streamed and not held in memory.
func TestFunctionRootIsStreamedFault15(t *testing.T) {
	const size = 96 << 20
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		tw := tar.NewWriter(w)
		_ = tw.WriteHeader(&tar.Header{Name: "big", Mode: 0o644, Typeflag: tar.TypeReg, Size: size})
		piece := bytes.Repeat([]byte("rik "), 16<<10)
		for range size / len(piece) {
			if _, err := tw.Write(piece); err != nil {
				return
			}
		}
		_ = tw.Close()
	}))
	t.Cleanup(s.Close)
	d := newDir(t, local)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := d.FromURL(t.Context(), "vm-1", URLRequest{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > size/4 {
		t.Errorf("%d bytes were allocated for a root of %d", grown, int64(size))
	}
	if out := ask(t, got.Path, "stat /big"); !strings.Contains(out, fmt.Sprintf("Size: %d", size)) {
		t.Errorf("the file is not whole:\n%s", out)
	}
}

func TestFromURLWithoutTags(t *testing.T) {
	t.Parallel()
	s := newSite(t, gzipped(t, tarOf(t, map[string]string{"v": "1"})))
	s.set(s.data, false)
	d := newDir(t, local)
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			if _, err := d.FromURL(t.Context(), fmt.Sprintf("vm-%d", i), URLRequest{URL: s.URL}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	requireClean(t, d, 1)
	s.set(gzipped(t, tarOf(t, map[string]string{"v": "2"})), false)
	got, err := d.FromURL(t.Context(), "vm-9", URLRequest{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	if out := ask(t, got.Path, "cat /v"); out != "2" {
		t.Errorf("a changed file still has %q", out)
	}
	requireClean(t, d, 2)
}

// TestFromURLKeepsPinnedImages checks that a machine is created again from the same image, even
// if the server has another file now, or none.
func TestFromURLKeepsPinnedImages(t *testing.T) {
	t.Parallel()
	s := newSite(t, gzipped(t, tarOf(t, map[string]string{"v": "1"})))
	d := newDir(t, local)
	r := URLRequest{URL: s.URL}
	first, err := d.FromURL(t.Context(), "vm-1", r)
	if err != nil {
		t.Fatal(err)
	}
	s.set(gzipped(t, tarOf(t, map[string]string{"v": "2"})), true)
	again, err := d.FromURL(t.Context(), "vm-1", r)
	if err != nil || again.Path != first.Path {
		t.Errorf("the machine changed its root from %v to %v: %v", first, again, err)
	}
	s.Close()
	if again, err = d.FromURL(t.Context(), "vm-1", r); err != nil || again.Path != first.Path {
		t.Errorf("without the server the machine has no root: %v, %v", again, err)
	}
	if err := d.Release("vm-1"); err != nil {
		t.Fatal(err)
	}
	if got, err := d.FromURL(t.Context(), "vm-1", r); err == nil {
		t.Errorf("another machine got %v of a server that is gone", got)
	}
}

// reseal sets a field of the superblock, and updates its checksum.
func reseal(disk []byte, at int, value ...byte) []byte {
	disk = bytes.Clone(disk)
	copy(disk[1024+at:], value)
	sb := disk[1024:2048]
	binary.LittleEndian.PutUint32(sb[0x3fc:], ^crc32.Checksum(sb[:0x3fc], crc32.MakeTable(crc32.Castagnoli)))
	return disk
}

func TestFromURLRefusesHostileRoots(t *testing.T) {
	t.Parallel()
	disk := ext4Of(t, map[string]string{"v": "1"})
	damaged := bytes.Clone(disk)
	damaged[1024+0x78] ^= 1 // the label, without a new checksum
	evil := func(name string, kind byte, link string) []byte {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		if err := errors.Join(tw.WriteHeader(&tar.Header{Name: name, Typeflag: kind, Linkname: link, Mode: 0o644}), tw.Close()); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	for _, tc := range []struct {
		name   string
		data   []byte
		change func(*Config)
		want   error
		says   string
	}{
		{"lying size", reseal(disk, 0x4, 0xff, 0xff, 0xff, 0x7f), nil, ErrRefused, "is too short for its superblock"},
		{"lying size in 64 bits", reseal(disk, 0x150, 1), nil, ErrRefused, "is too short for its superblock"},
		{"cut short", disk[:len(disk)/2], nil, ErrRefused, "is too short for its superblock"},
		{"only a superblock", disk[:1200], nil, ErrRefused, "less than its superblock needs"},
		{"journal to replay", reseal(disk, 0x60, disk[1024+0x60]|4), nil, ErrRefused, "e2fsck"},
		{"not unmounted", reseal(disk, 0x3a, 0, 0), nil, ErrRefused, "e2fsck"},
		{"unknown features", reseal(disk, 0x63, 0x80), nil, ErrRefused, "features"},
		{"huge blocks", reseal(disk, 0x18, 6), nil, ErrRefused, "blocks of a size"},
		{"absurd blocks", reseal(disk, 0x18, 0xff, 0xff, 0xff, 0xff), nil, ErrRefused, "blocks of a size"},
		{"no groups", reseal(disk, 0x20, 0, 0, 0, 0), nil, ErrRefused, "groups"},
		{"more inodes", reseal(disk, 0x0, 0xff, 0xff), nil, ErrRefused, "inodes"},
		{"inode size", reseal(disk, 0x58, 0xff, 0xff), nil, ErrRefused, "inodes"},
		{"damaged", damaged, nil, ErrRefused, "checksum"},
		{"image bomb", gzipped(t, append(bytes.Clone(disk), make([]byte, 32<<20)...)), func(c *Config) { c.Limits.Bytes = 16 << 20 }, ErrTooLarge, "16777216"},
		{"traversal", evil("../../evil", tar.TypeReg, ""), nil, ErrRefused, "../../evil"},
		{"hard link out", evil("x", tar.TypeLink, "/../etc/passwd"), nil, ErrRefused, `"x"`},
		{"tar bomb", gzipped(t, tarOf(t, map[string]string{"f": strings.Repeat("x", 8<<20)})), func(c *Config) { c.Limits.Bytes = 1 << 20 }, ErrTooLarge, "1048576"},
		{"too large a file", make([]byte, 2<<20), func(c *Config) { c.Limits.DownloadBytes = 1 << 20 }, ErrTooLarge, "1048576"},
		{"a web page", []byte(strings.Repeat("<html>", 1000)), nil, ErrRefused, "archive"},
		{"no space", tarOf(t, map[string]string{"f": "x"}), func(c *Config) { c.Limits.ReserveBytes = 1 << 60 }, ErrNoSpace, "free"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, tc.data)
			d := newDir(t, func(c *Config) {
				local(c)
				if tc.change != nil {
					tc.change(c)
				}
			})
			_, err := d.FromURL(t.Context(), "vm-1", URLRequest{URL: s.URL + "/file"})
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("FromURL = %v, want %v with the text %q", err, tc.want, tc.says)
			}
			requireClean(t, d, 0)
			if users, _ := d.Users(); len(users) != 0 {
				t.Errorf("pinned after a failure: %v", users)
			}
		})
	}
}

// Package fetch tests the dangers of downloads. This test checks that the errors arrive.
func TestFromURLRefusesHostileServers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		want    error
		says    string
	}{
		{"redirect to metadata", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		}, ErrRefused, "metadata service"},
		{"redirect to loopback", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://[::1]/", http.StatusFound) }, ErrRefused, "loopback"},
		{"500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, nil, "500"},
		{"never ends", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 4096)); err != nil {
					return
				}
			}
		}, ErrTooLarge, "the server sent more than"},
		{"sends nothing more", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, nil, "the server sent no data"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(tc.handler)
			t.Cleanup(s.Close)
			d := newDir(t, func(c *Config) {
				local(c)
				c.Limits.DownloadBytes, c.Limits.Stall = 1<<20, 300*time.Millisecond
			})
			_, err := d.FromURL(t.Context(), "vm-1", URLRequest{URL: s.URL + "/?token=secret"})
			if err == nil || (tc.want != nil && !errors.Is(err, tc.want)) || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "secret") {
				t.Errorf("FromURL = %v, want %v with the text %q", err, tc.want, tc.says)
			}
			requireClean(t, d, 0)
		})
	}
	d := newDir(t, nil)
	for _, bad := range []string{"http://example.com/x", "https://127.0.0.1/x", "/etc/passwd", "file:///etc/passwd", ""} {
		if _, err := d.FromURL(t.Context(), "vm-1", URLRequest{URL: bad}); !errors.Is(err, ErrRefused) {
			t.Errorf("FromURL(%q) = %v, want %v", bad, err, ErrRefused)
		}
	}
}

func TestFromURLOfAPath(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "root.tar")
	for _, content := range []string{"1", "2", "2"} {
		if err := os.WriteFile(path, tarOf(t, map[string]string{"v": content}), 0o600); err != nil {
			t.Fatal(err)
		}
		d := newDir(t, func(c *Config) { c.AllowPath = true })
		for range 2 {
			got, err := d.FromURL(t.Context(), "vm-1", URLRequest{URL: path})
			if err != nil {
				t.Fatal(err)
			}
			if out := ask(t, got.Path, "cat /v"); out != content {
				t.Errorf("/v is %q, want %q", out, content)
			}
		}
		if _, err := d.FromURL(t.Context(), "vm-2", URLRequest{URL: filepath.Join(d.cfg.Root, "lock")}); !errors.Is(err, ErrRefused) {
			t.Errorf("a path in the store: %v, want %v", err, ErrRefused)
		}
	}
}

// TestBuildReportsProgress checks the progress of a download, of its unpacking and of creating a
// disk image.
func TestBuildReportsProgress(t *testing.T) {
	t.Parallel()
	data := gzipped(t, tarOf(t, map[string]string{"f": strings.Repeat("rik", 1<<20)}))
	s := newSite(t, data)
	images := newTrees(t)
	write(t, filepath.Join(images.dir, "f"), "x")
	d := newDir(t, func(c *Config) { local(c); c.Images = images })
	w := &progress.Work{}
	images.onMount = func() {
		if got := w.Progress().String(); got != "creating the disk image of "+sampleImage("app").Reference {
			t.Errorf("the progress is %q", got)
		}
	}
	ctx := progress.With(t.Context(), w)
	if _, err := d.FromURL(ctx, "vm-1", URLRequest{URL: s.URL + "/file?token=secret"}); err != nil {
		t.Fatal(err)
	}
	if got, want := w.Progress().String(), "creating the disk image of "+s.URL+"/file: finishing"; got != want {
		t.Errorf("the progress is %q, want %q", got, want)
	}
	if _, err := d.FromImage(ctx, "vm-2", sampleImage("app")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "sparse")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<30); err != nil {
		t.Fatal(err)
	}
	if n := written(path); n > 2<<20 {
		t.Errorf("written() = %d of a sparse file", n)
	}
}
