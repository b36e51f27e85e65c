package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"rik.dev/rik/internal/ociimage"
)

// rawTar returns an archive of headers without content.
func rawTar(tb testing.TB, headers ...tar.Header) []byte {
	tb.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range headers {
		if h.Mode = 0o644; h.Typeflag == tar.TypeDir {
			h.Mode = 0o755
		}
		if err := tw.WriteHeader(&h); err != nil {
			tb.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

// brokenGzip returns a gzip stream with damage in the middle that only the format can reveal.
func brokenGzip(tb testing.TB) []byte {
	tb.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(rawTar(tb, tar.Header{Name: "a", Typeflag: tar.TypeReg})); err != nil {
		tb.Fatal(err)
	}
	if err := z.Close(); err != nil {
		tb.Fatal(err)
	}
	data := buf.Bytes()
	copy(data[20:], bytes.Repeat([]byte{0xff}, 10))
	return data
}

// sparse returns an archive with more holes than a reader accepts.
func sparse(tb testing.TB) []byte {
	tb.Helper()
	content := []byte("1000000\n" + strings.Repeat("0\n0\n", 1<<20))
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	err := tw.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content)), PAXRecords: map[string]string{"RIK.sparse.major": "1", "RIK.sparse.minor": "0", "RIK.sparse.name": "f"}})
	if err == nil {
		_, err = tw.Write(content)
	}
	if err := errors.Join(err, tw.Close()); err != nil {
		tb.Fatal(err)
	}
	// The writer does not write these records under their real names.
	return bytes.ReplaceAll(buf.Bytes(), []byte("RIK.sparse."), []byte("GNU.sparse."))
}

// The package layer tests each kind of hostile entry. This test checks that a refusal reaches
// the caller with its reason and place, and leaves no files behind.
func TestPullRefusesHostileLayers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		layer ociimage.Layer
		want  error
		says  string
	}{
		{"traversal", ociimage.Layer{Tar: rawTar(t, tar.Header{Name: "../../evil", Typeflag: tar.TypeReg})}, ErrRefused, `"../../evil"`},
		{"write through a symlink", ociimage.Layer{Tar: rawTar(t, tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, tar.Header{Name: "out/x", Typeflag: tar.TypeReg})}, ErrRefused, `"out/x"`},
		{"whiteout through a symlink", ociimage.Layer{Tar: rawTar(t, tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, tar.Header{Name: "out/.wh.passwd", Typeflag: tar.TypeReg})}, ErrRefused, `"out/.wh.passwd"`},
		{"whiteout through a symlink below", ociimage.Layer{Tar: rawTar(t, tar.Header{Name: "esc/.wh.keep", Typeflag: tar.TypeReg})}, ErrRefused, `entry "esc/.wh.keep": image refused: the whiteout leads through the symbolic link "esc" of a layer below`},
		{"whiteout deep below a symlink below", ociimage.Layer{Tar: rawTar(t, tar.Header{Name: "esc/a/b/.wh.keep", Typeflag: tar.TypeReg})}, ErrRefused, `"esc/a/b/.wh.keep"`},
		{"opaque through a symlink below", ociimage.Layer{Tar: rawTar(t, tar.Header{Name: "esc/.wh..wh..opq", Typeflag: tar.TypeReg})}, ErrRefused, `"esc/.wh..wh..opq"`},
		{"hard link out", ociimage.Layer{Tar: rawTar(t, tar.Header{Name: "x", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"})}, ErrRefused, `"x"`},
		{"forged whiteout", ociimage.Layer{Tar: rawTar(t, tar.Header{Name: "etc", Typeflag: tar.TypeChar})}, ErrRefused, `"etc"`},
		{"no archive at all", ociimage.Layer{Tar: []byte(strings.Repeat("noise", 1000))}, ErrRefused, "reading the archive"},
		{"unknown compression", ociimage.Layer{Tar: []byte("BZh91AY&SY noise"), Compression: ociimage.Uncompressed}, ErrRefused, "reading the archive"},
		{"broken zstd", ociimage.Layer{Tar: []byte("\x28\xb5\x2f\xfd" + strings.Repeat("noise", 1000)), Compression: ociimage.Uncompressed}, ErrRefused, "refused"},
		{"broken gzip", ociimage.Layer{Tar: brokenGzip(t), Compression: ociimage.Uncompressed}, ErrRefused, "refused"},
		{"sparse file of too many holes", ociimage.Layer{Tar: sparse(t)}, ErrRefused, "sparse map too long"},
		{"capabilities that are none", ociimage.Layer{Tar: rawTar(t, tar.Header{Name: "bin/cap", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "zz"}})}, ErrRefused, `entry "bin/cap": image refused: the extended attribute "security.capability"`},
		{"foreign layer", ociimage.Layer{MediaType: "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"}, ErrUnsupported, "foreign"},
		{"unknown media type", ociimage.Layer{MediaType: "application/x-tar-of-tomorrow"}, ErrUnsupported, "application/x-tar-of-tomorrow"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			spec := small()
			spec.Layers[0].Files["esc"] = ociimage.File{Link: "/etc"}
			spec.Layers = append(spec.Layers, tc.layer)
			_, ref, _ := layout(t, spec)
			s := open(t, nil)
			_, err := s.Pull(t.Context(), PullRequest{Reference: ref})
			if !errors.Is(err, tc.want) {
				t.Fatalf("Pull = %v, want %v", err, tc.want)
			}
			for _, want := range []string{tc.says, "layer 3"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not contain %q", err, want)
				}
			}
			requireNothingLeft(t, s, 0)
		})
	}
}

// If the path of an entry leads through a link of a lower layer, a directory replaces the link
// in the new layer, like in umoci. A whiteout in it then hides nothing.
func TestPullReplacesLinksWithDirectories(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string][]tar.Header{
		"implied": {{Name: "esc/file", Typeflag: tar.TypeReg}},
		"listed":  {{Name: "esc/", Typeflag: tar.TypeDir}, {Name: "esc/file", Typeflag: tar.TypeReg}, {Name: "esc/.wh.passwd", Typeflag: tar.TypeReg}},
	} {
		outside := t.TempDir()
		spec := small()
		spec.Layers[0].Files["esc"] = ociimage.File{Link: outside}
		spec.Layers = append(spec.Layers, ociimage.Layer{Tar: rawTar(t, headers...)})
		_, ref, _ := layout(t, spec)
		img, err := open(t, nil).Pull(t.Context(), PullRequest{Reference: ref})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := os.ReadDir(filepath.Join(img.Layers[2], "esc")); err != nil || len(got) != 1 || got[0].Name() != "file" {
			t.Errorf("%s: esc has %v, %v; want the file", name, got, err)
		}
		if got, err := os.ReadDir(outside); err != nil || len(got) != 0 {
			t.Errorf("%s: outside is %v, %v", name, got, err)
		}
	}
}

func TestPullReportsSkippedDevices(t *testing.T) {
	t.Parallel()
	spec := small()
	spec.Layers = append(spec.Layers, ociimage.Layer{Tar: rawTar(t, tar.Header{Name: "dev/sda", Typeflag: tar.TypeBlock, Devmajor: 8})})
	_, ref, _ := layout(t, spec)
	log := &lines{}
	s := open(t, func(c *Config) { c.Logger = log.logger() })
	img, err := s.Pull(t.Context(), PullRequest{Reference: ref})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(img.Layers[2], "dev/sda")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the device exists (%v)", err)
	}
	if !strings.Contains(log.String(), "device nodes left out") || !strings.Contains(log.String(), "dev/sda") {
		t.Errorf("the log does not name it:\n%s", log)
	}
}

func TestPullKeepsTheLimits(t *testing.T) {
	t.Parallel()
	zeros := func(n int) ociimage.Layer {
		return ociimage.Layer{Files: map[string]ociimage.File{"zeros": {Content: make([]byte, n)}}}
	}
	twenty := map[string]ociimage.File{}
	for i := range 20 {
		twenty[strings.Repeat("f", i+1)] = ociimage.File{}
	}
	for _, tc := range []struct {
		name   string
		layers []ociimage.Layer
		limits Limits
	}{
		{"gzip bomb", []ociimage.Layer{zeros(8 << 20)}, Limits{Bytes: 1 << 20}},
		{"zstd bomb", []ociimage.Layer{{Compression: ociimage.Zstd, Files: zeros(8 << 20).Files}}, Limits{Bytes: 1 << 20}},
		{"several layers", []ociimage.Layer{zeros(600 << 10), zeros(601 << 10)}, Limits{Bytes: 1 << 20}},
		{"bomb behind the archive", []ociimage.Layer{{Tar: append(rawTar(t), make([]byte, 8<<20)...)}}, Limits{Bytes: 1 << 20, Entries: 100}},
		{"entries", []ociimage.Layer{{Files: twenty}}, Limits{Entries: 19}},
		{"transferred", []ociimage.Layer{{Compression: ociimage.Uncompressed, Files: zeros(1 << 20).Files}}, Limits{CompressedBytes: 1 << 19}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, ref, _ := layout(t, ociimage.Spec{Layers: tc.layers})
			s := open(t, func(c *Config) { tc.limits.ReserveBytes = 1; c.Limits = tc.limits })
			if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); !errors.Is(err, ErrTooLarge) {
				t.Errorf("Pull = %v, want %v", err, ErrTooLarge)
			}
			requireNothingLeft(t, s, 0)
		})
	}
}

// Layers that are in the store already count toward the limit, so that an image cannot exceed it
// in steps.
func TestPullCountsPresentLayers(t *testing.T) {
	t.Parallel()
	base := ociimage.Layer{Files: map[string]ociimage.File{"a": {Content: make([]byte, 700<<10)}}}
	top := ociimage.Layer{Files: map[string]ociimage.File{"b": {Content: make([]byte, 700<<10)}}}
	s := open(t, func(c *Config) { c.Limits.Bytes = 1 << 20 })
	_, ref, _ := layout(t, ociimage.Spec{Layers: []ociimage.Layer{base}})
	if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); err != nil {
		t.Fatal(err)
	}
	_, ref, _ = layout(t, ociimage.Spec{Layers: []ociimage.Layer{base, top}})
	if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Pull = %v, want %v", err, ErrTooLarge)
	}
	requireNothingLeft(t, s, 1)
}

// blobOf returns the path of the blob of the last layer, or of the configuration.
func blobOf(tb testing.TB, dir, digest string, pick func(v1.Manifest) v1.Descriptor) string {
	tb.Helper()
	path := func(d string) string { return filepath.Join(dir, "blobs", strings.ReplaceAll(d, ":", "/")) }
	data, err := os.ReadFile(path(digest))
	if err != nil {
		tb.Fatal(err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		tb.Fatal(err)
	}
	return path(pick(m).Digest.String())
}

func lastLayer(m v1.Manifest) v1.Descriptor { return m.Layers[len(m.Layers)-1] }

func TestPullRefusesDamagedContent(t *testing.T) {
	t.Parallel()
	otherArchive := func(data []byte) []byte {
		var buf bytes.Buffer
		z := gzip.NewWriter(&buf)
		_, _ = z.Write(rawTar(t, tar.Header{Name: "other", Typeflag: tar.TypeReg}))
		_ = z.Close()
		return buf.Bytes()
	}
	for _, tc := range []struct {
		name   string
		pick   func(v1.Manifest) v1.Descriptor
		damage func([]byte) []byte
		want   error
		says   string
	}{
		{"truncated layer", lastLayer, func(b []byte) []byte { return b[:len(b)-20] }, ErrDigest, "truncated"},
		{"empty layer", lastLayer, func([]byte) []byte { return nil }, ErrDigest, "truncated"},
		{"longer layer", lastLayer, func(b []byte) []byte { return append(b, 0) }, ErrDigest, "longer"},
		{"flipped bit", lastLayer, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, ErrDigest, "layer 2"},
		{"other bytes", lastLayer, func(b []byte) []byte { return make([]byte, len(b)) }, ErrDigest, "instead of sha256:"},
		{"another archive", lastLayer, otherArchive, ErrDigest, "layer 2"},
		{"another configuration", func(m v1.Manifest) v1.Descriptor { return m.Config }, func(b []byte) []byte { return bytes.Replace(b, []byte("/bin/app"), []byte("/bin/bpp"), 1) }, ErrDigest, "configuration"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir, ref, digest := layout(t, small())
			blob := blobOf(t, dir, digest, tc.pick)
			data, err := os.ReadFile(blob)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(blob, tc.damage(data), 0o644); err != nil {
				t.Fatal(err)
			}
			s := open(t, nil)
			_, err = s.Pull(t.Context(), PullRequest{Reference: ref})
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Pull = %v, want %v with the text %q", err, tc.want, tc.says)
			}
			requireNothingLeft(t, s, 0)
		})
	}
}

func TestPullRefusesOtherFormats(t *testing.T) {
	t.Parallel()
	for name, manifest := range map[string]string{
		"artifact":           `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":"` + someDigest + `","size":0},"layers":[]}`,
		"schema 1":           `{"schemaVersion":1,"name":"x","tag":"y","architecture":"amd64","fsLayers":[],"history":[],"signatures":[]}`,
		"unknown media type": `{"schemaVersion":2,"mediaType":"application/vnd.example.thing+json"}`,
		"no JSON":            `hello`,
	} {
		dir := t.TempDir()
		for file, data := range map[string]string{"manifest.json": manifest, "version": "Directory Transport Version: 1.1\n"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(data), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s := open(t, nil)
		if _, err := s.Pull(t.Context(), PullRequest{Reference: "dir:" + dir}); !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want %v or %v", name, err, ErrUnsupported, ErrRefused)
		}
		requireNothingLeft(t, s, 0)
	}
}

// Archives are unpacked in order to read them. That has its own limits.
func TestPullRefusesArchiveBombs(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	pack := func(name string, entries ...tar.Header) string {
		path := filepath.Join(tmp, name)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		z := gzip.NewWriter(f)
		tw := tar.NewWriter(z)
		for _, h := range entries {
			h.Mode, h.Typeflag = 0o644, tar.TypeReg
			if err := tw.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if _, err := tw.Write(make([]byte, h.Size)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(tw.Close(), z.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	blob := "blobs/sha256/" + strings.TrimPrefix(someDigest, "sha256:")
	s := open(t, func(c *Config) { c.Limits.CompressedBytes = 1 << 20 })
	for _, ref := range []string{
		"oci-archive:" + pack("oci.tar.gz", tar.Header{Name: blob, Size: 4 << 20}),
		"docker-archive:" + pack("docker.tar.gz", tar.Header{Name: "layer.tar", Size: 4 << 20}),
	} {
		if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v, want %v", ref, err, ErrTooLarge)
		}
	}
	evil := pack("evil.tar.gz", tar.Header{Name: "../../../evil"}, tar.Header{Name: "blobs/../../evil"})
	if _, err := s.Pull(t.Context(), PullRequest{Reference: "oci-archive:" + evil}); !errors.Is(err, ErrNotPresent) {
		t.Errorf("an archive without a layout: %v, want %v", err, ErrNotPresent)
	}
	requireNothingLeft(t, s, 0)
}
