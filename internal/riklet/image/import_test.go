package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/riklet/image/internal/wire"
	"rik.dev/rik/internal/riklet/progress"
)

// other returns an image that differs from small.
func other() ociimage.Spec {
	spec := small()
	spec.Env = append(spec.Env, "OTHER=1")
	return spec
}

// bundle writes an OCI archive with small and other images under two reference names.
func bundle(tb testing.TB, names ...string) string {
	tb.Helper()
	dir := tb.TempDir()
	for i, name := range names {
		if _, err := ociimage.Write(dir, name, []ociimage.Spec{small(), other()}[i%2]); err != nil {
			tb.Fatal(err)
		}
	}
	file := filepath.Join(tb.TempDir(), "bundle.tar")
	if out, err := exec.CommandContext(tb.Context(), "tar", "-C", dir, "-cf", file, ".").CombinedOutput(); err != nil {
		tb.Fatalf("tar: %v: %s", err, out)
	}
	return file
}

func content(tb testing.TB, file string) io.ReadCloser {
	tb.Helper()
	f, err := os.Open(file)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

func references(results []ImportResult) (names []string) {
	for _, r := range results {
		names = append(names, Name(r.Image.Reference))
	}
	return names
}

func TestImport(t *testing.T) {
	t.Parallel()
	docker := filepath.Join(t.TempDir(), "with:colon.tar")
	if _, err := ociimage.WriteDockerArchive(docker, "example.com/app:1", small()); err != nil {
		t.Fatal(err)
	}
	packed := docker + ".gz"
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := io.Copy(w, content(t, docker)); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(packed, z.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		file, name string
		want       []string
		err        error // of the last image
	}{
		"full names":                 {bundle(t, "hello:v1", "example.com/app:2"), "", []string{"docker.io/library/hello:v1", "example.com/app:2"}, nil},
		"tags with a repository":     {bundle(t, "v1", "v2"), "example.com/app", []string{"example.com/app:v1", "example.com/app:v2"}, nil},
		"tags without one":           {bundle(t, "v1"), "", []string{""}, ErrUnnamed},
		"the only image":             {bundle(t, "v1"), "other:3", []string{"docker.io/library/other:3"}, nil},
		"a name that is none":        {bundle(t, "v1"), "oci:/var/lib/x", []string{""}, ErrInvalidReference},
		"a digest that is another's": {bundle(t, "v1"), "app@sha256:" + strings.Repeat("0", 64), []string{"docker.io/library/app@sha256:" + strings.Repeat("0", 64)}, ErrDigest},
		"docker":                     {docker, "", []string{"example.com/app:1"}, nil},
		"docker compressed":          {packed, "", []string{"example.com/app:1"}, nil},
		"docker under another name":  {docker, "app:2", []string{"docker.io/library/app:2"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, req := range []ImportRequest{{File: tc.file, Name: tc.name}, {Stream: content(t, tc.file), Name: tc.name}} {
				s := open(t, nil)
				results, err := s.Import(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, references(results)); diff != "" {
					t.Errorf("Import() (-want +got)\n%s", diff)
				}
				if last := results[len(results)-1].Err; !errors.Is(last, tc.err) {
					t.Errorf("Import() = %v, want %v", last, tc.err)
				}
				layers := 2
				if tc.err != nil {
					layers = len(mustList(t, s.path(layersDir)))
				}
				requireNothingLeft(t, s, layers)
				if tc.err != nil {
					if got := s.Images(); len(got) != 0 {
						t.Errorf("the store has %v after an error", got)
					}
					continue
				}
				img, err := s.Pull(t.Context(), PullRequest{Reference: tc.want[0], Policy: v1alpha1.PullNever})
				if err != nil || !slices.Equal(img.Config.Entrypoint, small().Entrypoint) {
					t.Errorf("Pull(%s) = %+v, %v, want the imported image", tc.want[0], img, err)
				}
			}
		})
	}
}

func mustList(tb testing.TB, dir string) []os.DirEntry {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return entries
}

// A workload may name the digest of an image that was imported under its tag. The digest does not
// find images of another repository.
func TestImportedImagesAreFoundByDigest(t *testing.T) {
	t.Parallel()
	s := open(t, nil)
	results, err := s.Import(t.Context(), ImportRequest{File: bundle(t, "example.com/app:1")})
	if err != nil || results[0].Err != nil {
		t.Fatal(err, results)
	}
	digest := results[0].Image.Digest
	img, err := s.Pull(t.Context(), PullRequest{Reference: "example.com/app@" + digest, Policy: v1alpha1.PullNever})
	if err != nil || img.Digest != digest {
		t.Errorf("Pull() by digest = %+v, %v", img, err)
	}
	if _, err := s.Pull(t.Context(), PullRequest{Reference: "example.com/other@" + digest, Policy: v1alpha1.PullNever}); !errors.Is(err, ErrNotPresent) {
		t.Errorf("Pull() of another repository = %v, want %v", err, ErrNotPresent)
	}
	if got, err := s.Canonical("example.com/app@" + digest); err != nil || got != "docker://example.com/app:1" {
		t.Errorf("Canonical() = %s, %v, want the record", got, err)
	}
}

func TestImportRefuses(t *testing.T) {
	t.Parallel()
	whole := bundle(t, "app:1", "app:2")
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		content []byte
		limits  Limits
		want    error
	}{
		"nothing":              {nil, Limits{}, ErrRefused},
		"text":                 {[]byte("hello"), Limits{}, ErrRefused},
		"another archive":      {textTar(t, map[string]string{"etc/passwd": "x"}), Limits{}, ErrRefused},
		"xz":                   {[]byte("\xfd7zXZ\x00......"), Limits{}, ErrRefused},
		"half of it":           {data[:len(data)/2], Limits{}, ErrRefused},
		"an index that is not": {textTar(t, map[string]string{"index.json": "{"}), Limits{}, ErrRefused},
		"an empty index":       {textTar(t, map[string]string{"index.json": "{}"}), Limits{}, ErrRefused},
		"no docker manifest":   {textTar(t, map[string]string{"manifest.json": "7"}), Limits{}, ErrRefused},
		"too much":             {data, Limits{Bytes: 1000}, ErrTooLarge},
		"a full disk":          {data, Limits{ReserveBytes: 1 << 60}, ErrNoSpace},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, func(c *Config) {
				if tc.limits != (Limits{}) {
					c.Limits = tc.limits
				}
			})
			if _, err := s.Import(t.Context(), ImportRequest{Stream: io.NopCloser(bytes.NewReader(tc.content))}); !errors.Is(err, tc.want) {
				t.Errorf("Import() = %v, want %v", err, tc.want)
			}
			requireNothingLeft(t, s, 0)
		})
	}
}

// An image that is refused does not affect the others of its archive.
func TestImportReportsEachImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, spec := range map[string]ociimage.Spec{"app:good": small(), "app:foreign": {Files: small().Files, Architecture: "s390x"}} {
		if _, err := ociimage.Write(dir, name, spec); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "a.tar")
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-cf", file, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	results, err := open(t, nil).Import(t.Context(), ImportRequest{File: file})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		foreign := strings.HasSuffix(r.Image.Reference, ":foreign")
		if foreign != errors.Is(r.Err, ErrPlatform) || !foreign && r.Err != nil {
			t.Errorf("%s = %v", r.Image.Reference, r.Err)
		}
	}
	if len(results) != 2 {
		t.Errorf("%d results, want 2", len(results))
	}
}

// A sender that fails, or stops while the child has already refused, does not block the import.
func TestImportEndsWithItsStream(t *testing.T) {
	t.Parallel()
	s := open(t, nil)
	broken := errors.New("the user has gone")
	half := io.MultiReader(io.LimitReader(content(t, bundle(t, "app:1")), 1000), iotest.ErrReader(broken))
	if _, err := s.Import(t.Context(), ImportRequest{Stream: io.NopCloser(half)}); !errors.Is(err, broken) {
		t.Errorf("Import() of a stream that breaks = %v, want %v", err, broken)
	}
	requireNothingLeft(t, s, 0)
	// Nothing is sent until the import closes its end, which it does when its context ends.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	silent, w := io.Pipe()
	defer func() { _ = w.Close() }()
	if _, err := s.Import(ctx, ImportRequest{Stream: silent}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Import() of a silent stream = %v, want %v", err, context.DeadlineExceeded)
	}
	requireNothingLeft(t, s, 0)
}

// The progress of an import has its step and the bytes that have arrived.
func TestImportSaysHowFarItIs(t *testing.T) {
	t.Parallel()
	s := open(t, nil)
	in, out := io.Pipe()
	work := &progress.Work{}
	done := make(chan error, 1)
	go func() {
		_, err := s.Import(progress.With(t.Context(), work), ImportRequest{Stream: in})
		done <- err
	}()
	if _, err := out.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	want := progress.Progress{What: "importing", Step: "receiving the archive", Bytes: 1000}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		now := work.Progress()
		if now.Idle = 0; now == want {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the progress is %+v, want %+v", now, want)
		}
	}
	_ = out.Close()
	if err := <-done; !errors.Is(err, ErrRefused) {
		t.Errorf("Import() of zeros = %v, want %v", err, ErrRefused)
	}
}

func textTar(tb testing.TB, files map[string]string) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// An exported image is an OCI layout whose digests are right. Another store gets the same files and
// settings from it, with whiteouts and hard links.
func TestExportIsImportable(t *testing.T) {
	t.Parallel()
	spec := small()
	spec.Layers = append(spec.Layers, ociimage.Layer{Files: map[string]ociimage.File{
		"etc/.wh.motd": {}, "var/.wh..wh..opq": {}, "var/new": {Content: []byte("x")}, "bin/link": {Link: "app"}, "bin/old": {Content: []byte("1")}, "bin/older": {HardLink: "bin/old"},
	}})
	s := open(t, nil)
	_, ref, _ := layout(t, spec)
	if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, to := range []*bytes.Buffer{&first, &second} {
		if err := s.Export(t.Context(), ref, to); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two exports of one image differ")
	}
	checkLayout(t, first.Bytes())
	requireNothingLeft(t, s, len(spec.Layers)+1)
	copied := open(t, nil)
	results, err := copied.Import(t.Context(), ImportRequest{Stream: io.NopCloser(&first), Name: "copy:1"})
	if err != nil || len(results) != 1 || results[0].Err != nil {
		t.Fatalf("Import() of the export = %v, %v", results, err)
	}
	was, err := s.Pull(t.Context(), PullRequest{Reference: ref, Policy: v1alpha1.PullNever})
	if err != nil {
		t.Fatal(err)
	}
	is, err := copied.Pull(t.Context(), PullRequest{Reference: "copy:1", Policy: v1alpha1.PullNever})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(was.Config, is.Config); diff != "" {
		t.Errorf("the settings differ (-was +is)\n%s", diff)
	}
	for i := range was.Layers {
		if diff := cmp.Diff(tree(t, was.Layers[i]), tree(t, is.Layers[i])); diff != "" {
			t.Errorf("layer %d differs (-was +is)\n%s", i+1, diff)
		}
	}
}

// tree describes the files of a directory.
func tree(tb testing.TB, dir string) (lines []string) {
	tb.Helper()
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(at string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(at)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%s %s %d:%d %d", strings.TrimPrefix(at, dir), info.Mode(), st.Uid, st.Gid, st.Rdev)
		switch {
		case info.IsDir():
			line += fmt.Sprintf(" opaque=%t", wire.Opaque(at))
		case info.Mode().IsRegular():
			data, err := os.ReadFile(at)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %s %q", info.ModTime().UTC(), data)
			if first, again := inodes[st.Ino]; again {
				line += " = " + first
			}
			inodes[st.Ino] = strings.TrimPrefix(at, dir)
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(at)
			if err != nil {
				return err
			}
			line += " -> " + to
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return lines
}

// checkLayout checks the digests and sizes of an OCI layout.
func checkLayout(tb testing.TB, archive []byte) {
	tb.Helper()
	files := map[string][]byte{}
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		hdr, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			tb.Fatal(err)
		}
		if files[hdr.Name], err = io.ReadAll(r); err != nil {
			tb.Fatal(err)
		}
	}
	var index v1.Index
	decode := func(name string, into any) {
		if err := json.Unmarshal(files[name], into); err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
	}
	blob := func(d v1.Descriptor) string {
		name := "blobs/sha256/" + d.Digest.Encoded()
		if got := files[name]; digest.FromBytes(got) != d.Digest || int64(len(got)) != d.Size {
			tb.Errorf("%s has %d bytes and the digest %s, want %+v", name, len(got), digest.FromBytes(got), d)
		}
		return name
	}
	decode("index.json", &index)
	var manifest v1.Manifest
	decode(blob(index.Manifests[0]), &manifest)
	var config v1.Image
	decode(blob(manifest.Config), &config)
	for i, l := range manifest.Layers {
		z, err := gzip.NewReader(bytes.NewReader(files[blob(l)]))
		if err != nil {
			tb.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if err != nil || digest.FromBytes(plain) != config.RootFS.DiffIDs[i] {
			tb.Errorf("layer %d is %s, want %s (%v)", i+1, digest.FromBytes(plain), config.RootFS.DiffIDs[i], err)
		}
	}
}

func TestExportEndsWithItsReader(t *testing.T) {
	t.Parallel()
	s := open(t, nil)
	_, ref, _ := layout(t, small())
	if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("the user has gone")
	if err := s.Export(t.Context(), ref, writerFunc(func([]byte) (int, error) { return 0, gone })); !errors.Is(err, gone) {
		t.Errorf("Export() = %v, want %v", err, gone)
	}
	requireNothingLeft(t, s, 2)
	if err := s.Export(t.Context(), "none:1", io.Discard); !errors.Is(err, ErrNotPresent) {
		t.Errorf("Export() of an image that is not there = %v, want %v", err, ErrNotPresent)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestRemove(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "store")
	s := openAt(t, root, nil)
	results, err := s.Import(t.Context(), ImportRequest{File: bundle(t, "app:1", "app:2")})
	if err != nil || len(results) != 2 {
		t.Fatal(results, err)
	}
	// Both have the same layers, which stay until the last image is removed. A collection leaves imported
	// images alone.
	if _, err := s.Collect(t.Context(), CollectPolicy{Now: time.Now().Add(time.Hour)}); err != nil || len(s.Images()) != 2 {
		t.Errorf("Collect() left %v, %v, want both imported images", s.Images(), err)
	}
	if _, err := s.Remove(t.Context(), "app:1"); err != nil {
		t.Errorf("Remove() = %v", err)
	}
	requireNothingLeft(t, s, 2)
	freed, err := s.Remove(t.Context(), "docker.io/library/app:2")
	if err != nil || freed == 0 {
		t.Errorf("Remove() of the last = %d, %v, want free space", freed, err)
	}
	requireNothingLeft(t, s, 0)
	if _, err := s.Remove(t.Context(), "app:2"); !errors.Is(err, ErrNotPresent) {
		t.Errorf("Remove() again = %v, want %v", err, ErrNotPresent)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := openAt(t, root, nil).Images(); len(got) != 0 {
		t.Errorf("after a restart the store has %v", got)
	}
}

func TestLoadArchives(t *testing.T) {
	t.Parallel()
	dir, root := t.TempDir(), filepath.Join(t.TempDir(), "store")
	put := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good, err := os.ReadFile(bundle(t, "app:1", "app:2"))
	if err != nil {
		t.Fatal(err)
	}
	put("a.tar", good)
	put("b.tar", good)
	put("c.tar", good[:len(good)/2])
	put(".hidden", nil)
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	// start opens the store, loads, and counts the imports.
	start := func(t *testing.T) (s *Store, problems map[string]error, imports int) {
		t.Helper()
		log := &lines{}
		s = openAt(t, root, func(c *Config) { c.Logger = log.logger() })
		problems = s.LoadArchives(dir)(t.Context())
		return s, problems, strings.Count(log.String(), "image archive loaded")
	}
	s, problems, imports := start(t)
	if imports != 1 || len(problems) != 1 || !errors.Is(problems["c.tar"], ErrRefused) {
		t.Errorf("the first start imported %d archives with the problems %v, want one of the copies, and c.tar refused", imports, problems)
	}
	if got := s.Images(); len(got) != 2 || !got[0].Imported {
		t.Errorf("the store has %v", got)
	}
	_ = s.Close()
	if s, problems, imports = start(t); imports != 0 || len(problems) != 1 {
		t.Errorf("the second start imported %d archives with the problems %v, want none and c.tar refused", imports, problems)
	}
	// A removed image comes back with the next start.
	if _, err := s.Remove(t.Context(), "app:1"); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	put("c.tar", good)
	if s, problems, imports = start(t); imports != 1 || len(problems) != 0 || len(s.Images()) != 2 {
		t.Errorf("the third start imported %d archives with the problems %v, and has %v", imports, problems, s.Images())
	}
	_ = s.Close()
	if problems := openAt(t, root, nil).LoadArchives(filepath.Join(dir, "none"))(t.Context()); len(problems) != 0 {
		t.Errorf("a directory that does not exist has the problems %v", problems)
	}
}

// A pull of an image that the node is about to load waits for that.
func TestPullAwaitsArchives(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Rename(bundle(t, "app:1"), filepath.Join(dir, "a.tar")); err != nil {
		t.Fatal(err)
	}
	s := open(t, nil)
	load := s.LoadArchives(dir)
	done := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), PullRequest{Reference: "app:1"})
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("Pull() returned %v before the archives were loaded", err)
	case <-time.After(50 * time.Millisecond):
	}
	if problems := load(t.Context()); len(problems) != 0 {
		t.Fatal(problems)
	}
	if err := <-done; err != nil {
		t.Errorf("Pull() = %v, want the image from the archive", err)
	}
}
