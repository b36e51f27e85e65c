package image

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

// entry is an entry of a test archive.
type entry struct {
	tar.Header
	content string
}

func tarOf(tb testing.TB, entries ...entry) []byte {
	tb.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		e.Size = int64(len(e.content))
		if e.Mode == 0 {
			e.Mode = 0o644
		}
		if err := tw.WriteHeader(&e.Header); err != nil {
			tb.Fatal(err)
		}
		if _, err := tw.Write([]byte(e.content)); err != nil {
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

func zipOf(tb testing.TB, files map[string]string, change func(*zip.FileHeader)) []byte {
	tb.Helper()
	var buf bytes.Buffer
	zw := zip.NewWriter(&buf)
	for name, content := range files {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate}
		h.SetMode(0o644)
		if change != nil {
			change(h)
		}
		w, err := zw.CreateHeader(h)
		if err == nil {
			_, err = w.Write([]byte(content))
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

func unpackBytes(tb testing.TB, data []byte, form ArchiveForm, limits Limits) (*Archive, error) {
	tb.Helper()
	tmp := tb.TempDir()
	r := ArchiveRequest{Unpacker: []string{"/proc/self/exe", "unpack"}, File: filepath.Join(tmp, "file"), Dir: filepath.Join(tmp, "dir"), Form: form, Limits: limits}
	r.Limits.ReserveBytes = 1
	if err := errors.Join(os.WriteFile(r.File, data, 0o600), os.Mkdir(r.Dir, 0o700)); err != nil {
		tb.Fatal(err)
	}
	return UnpackArchive(tb.Context(), r)
}

// modes returns the modes of all files in a tree.
func modes(tb testing.TB, root string) map[string]fs.FileMode {
	tb.Helper()
	got := map[string]fs.FileMode{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		got[rel] = info.Mode()
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return got
}

var sample = []entry{
	{tar.Header{Name: "bin/app", Mode: 0o6750, Typeflag: tar.TypeReg, PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y"}}, "#!"},
	{tar.Header{Name: "secret", Mode: 0o600, Typeflag: tar.TypeReg}, "s"},
	{tar.Header{Name: "open", Mode: 0o666, Typeflag: tar.TypeReg}, "s"},
	{tar.Header{Name: "dir/", Mode: 0o1777, Typeflag: tar.TypeDir}, ""},
	{tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "bin/app"}, ""},
	{tar.Header{Name: "fifo", Typeflag: tar.TypeFifo}, ""},
	{tar.Header{Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8}, ""},
}

func TestArchiveForms(t *testing.T) {
	t.Parallel()
	plain := tarOf(t, sample...)
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"tar": plain, "gzip": gzipped(t, plain), "zstd": z.EncodeAll(plain, nil)} {
		got, err := unpackBytes(t, data, ArchiveShared, Limits{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := map[string]fs.FileMode{
			".": fs.ModeDir | 0o755, "bin": fs.ModeDir | 0o755, "bin/app": 0o755, "secret": 0o644, "open": 0o644,
			"dir": fs.ModeDir | 0o755, "link": fs.ModeSymlink | 0o777,
		}
		if diff := cmp.Diff(want, modes(t, got.Tree)); diff != "" {
			t.Errorf("%s, shared (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff([]string{"fifo", "sda"}, got.Skipped); diff != "" {
			t.Errorf("%s: skipped (-want +got):\n%s", name, diff)
		}
	}
	got, err := unpackBytes(t, plain, ArchiveRoot, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]fs.FileMode{
		".": fs.ModeDir | 0o755, "bin": fs.ModeDir | 0o755, "bin/app": fs.ModeSetuid | fs.ModeSetgid | 0o750, "secret": 0o600, "open": 0o666,
		"dir": fs.ModeDir | fs.ModeSticky | 0o777, "link": fs.ModeSymlink | 0o777, "fifo": fs.ModeNamedPipe | 0o644,
	}
	if diff := cmp.Diff(want, modes(t, got.Tree)); diff != "" {
		t.Errorf("root (-want +got):\n%s", diff)
	}
}

func TestArchiveZip(t *testing.T) {
	t.Parallel()
	data := zipOf(t, map[string]string{"app-1.0/run": "#!", "app-1.0/link": "run"}, func(h *zip.FileHeader) {
		switch filepath.Base(h.Name) {
		case "run":
			h.SetMode(0o4700)
		case "link":
			h.SetMode(fs.ModeSymlink | 0o777)
		}
	})
	got, err := unpackBytes(t, data, ArchiveShared, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]fs.FileMode{".": fs.ModeDir | 0o755, "app-1.0": fs.ModeDir | 0o755, "app-1.0/run": 0o755, "app-1.0/link": fs.ModeSymlink | 0o777}
	if diff := cmp.Diff(want, modes(t, got.Tree)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if to, err := os.Readlink(filepath.Join(got.Tree, "app-1.0/link")); err != nil || to != "run" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if _, err := unpackBytes(t, data, ArchiveRoot, Limits{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "zip") {
		t.Errorf("a zip archive as a root: %v, want %v", err, ErrRefused)
	}
}

// lieAboutSize returns a zip archive whose only entry declares a smaller size than it has.
func lieAboutSize(tb testing.TB, size uint32) []byte {
	tb.Helper()
	data := zipOf(tb, map[string]string{"f": strings.Repeat("x", 100_000)}, nil)
	at := bytes.Index(data, []byte("PK\x01\x02"))
	binary.LittleEndian.PutUint32(data[at+24:], size)
	return data
}

func TestArchiveRefusesHostileContent(t *testing.T) {
	t.Parallel()
	zeros := strings.Repeat("\x00", 8<<20)
	reg := func(name string) entry { return entry{tar.Header{Name: name, Typeflag: tar.TypeReg}, "x"} }
	good := gzipped(t, tarOf(t, reg("f")))
	flipped := bytes.Clone(good)
	flipped[len(flipped)-6] ^= 1 // the checksum
	for _, tc := range []struct {
		name   string
		data   []byte
		limits Limits
		want   error
		says   string
	}{
		{"traversal", tarOf(t, reg("../../evil")), Limits{}, ErrRefused, `"../../evil"`},
		{"through a link", tarOf(t, entry{tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, ""}, reg("out/x")), Limits{}, ErrRefused, `"out/x"`},
		{"hard link out", tarOf(t, entry{tar.Header{Name: "x", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"}, ""}), Limits{}, ErrRefused, `"x"`},
		{"whiteout", tarOf(t, reg("f"), reg(".wh.f")), Limits{}, ErrRefused, ".wh."},
		{"gzip bomb", gzipped(t, tarOf(t, entry{tar.Header{Name: "f", Typeflag: tar.TypeReg}, zeros})), Limits{Bytes: 1 << 20}, ErrTooLarge, "1048576"},
		{"bomb behind the archive", gzipped(t, append(tarOf(t, reg("f")), zeros...)), Limits{Bytes: 1 << 20, Entries: 10}, ErrTooLarge, "1048576"},
		{"entries", tarOf(t, reg("a"), reg("b"), reg("c")), Limits{Entries: 2}, ErrTooLarge, "2 entries"},
		{"noise", []byte(strings.Repeat("<html>", 1000)), Limits{}, ErrRefused, "reading the archive"},
		{"nothing", nil, Limits{}, ErrRefused, "empty"},
		{"no entries", tarOf(t), Limits{}, ErrRefused, "empty"},
		{"xz", []byte("\xfd7zXZ\x00..."), Limits{}, ErrRefused, "xz is not supported"},
		{"cut short", good[:len(good)-12], Limits{}, ErrRefused, ""},
		{"damaged", flipped, Limits{}, ErrRefused, "checksum"},
		{"zip traversal", zipOf(t, map[string]string{"../evil": "x"}, nil), Limits{}, ErrRefused, `"../evil"`},
		{"zip bomb", zipOf(t, map[string]string{"f": zeros}, nil), Limits{Bytes: 1 << 20}, ErrTooLarge, "1048576"},
		{"zip that lies", lieAboutSize(t, 10), Limits{}, ErrRefused, ""},
		{"zip that lies more", lieAboutSize(t, 1<<31), Limits{Bytes: 1 << 20}, ErrTooLarge, ""},
		{"zip that is noise", []byte("PK\x03\x04" + strings.Repeat("x", 100)), Limits{}, ErrRefused, "zip"},
		{"encrypted zip", zipOf(t, map[string]string{"f": "x"}, func(h *zip.FileHeader) { h.Flags |= 1 }), Limits{}, ErrRefused, "encrypted"},
		{"zip link without a target", zipOf(t, map[string]string{"l": ""}, func(h *zip.FileHeader) { h.SetMode(fs.ModeSymlink) }), Limits{}, ErrRefused, "target"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := unpackBytes(t, tc.data, ArchiveShared, tc.limits)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("UnpackArchive = %v, want %v with the text %q", err, tc.want, tc.says)
			}
		})
	}
}

// An ext4 image is written unchanged, with holes. It is not validated here.
func TestArchiveImage(t *testing.T) {
	t.Parallel()
	image := make([]byte, 3<<20+100)
	image[1024+0x38], image[1024+0x39] = 0x53, 0xef
	image[len(image)-1] = 7
	for name, data := range map[string][]byte{"plain": image, "gzip": gzipped(t, image)} {
		got, err := unpackBytes(t, data, ArchiveRoot, Limits{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if back, err := os.ReadFile(got.Image); err != nil || !bytes.Equal(back, image) || got.Bytes != int64(len(image)) {
			t.Errorf("%s: %d bytes, %v; want the image", name, len(back), err)
		}
		if _, err := unpackBytes(t, data, ArchiveRoot, Limits{Bytes: 1 << 20}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s over the limit: %v, want %v", name, err, ErrTooLarge)
		}
		if _, err := unpackBytes(t, data, ArchiveShared, Limits{}); !errors.Is(err, ErrRefused) {
			t.Errorf("%s for an App: %v, want %v", name, err, ErrRefused)
		}
	}
	short := gzipped(t, image)
	if _, err := unpackBytes(t, short[:len(short)-9], ArchiveRoot, Limits{}); !errors.Is(err, ErrRefused) {
		t.Errorf("cut short: %v, want %v", err, ErrRefused)
	}
}
