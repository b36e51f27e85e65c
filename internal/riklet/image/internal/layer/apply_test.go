package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// entry is a tar header and its content.
type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, content}
}

func dir(name string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
}

func link(kind byte, name, target string) entry {
	return entry{Header: tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777}}
}

func device(kind byte, name string, major, minor int64) entry {
	return entry{Header: tar.Header{Typeflag: kind, Name: name, Devmajor: major, Devminor: minor, Mode: 0o666}}
}

// attribute returns a file with extended attributes, given as names and values.
func attribute(pairs ...string) entry {
	e := file("with-attributes", "x")
	e.Format, e.PAXRecords = tar.FormatPAX, map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		e.PAXRecords["SCHILY.xattr."+pairs[i]] = pairs[i+1]
	}
	return e
}

func archive(tb testing.TB, entries ...entry) []byte {
	tb.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		e.Size = int64(len(e.content))
		if err := tw.WriteHeader(&e.Header); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(tw, e.content); err != nil {
			tb.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

// apply unpacks into <temp>/outer/root, so that the test can check that nothing was written
// around it.
func apply(tb testing.TB, limits wire.Limits, data []byte) (root string, res Result, err error) {
	tb.Helper()
	root = filepath.Join(tb.TempDir(), "outer", "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		tb.Fatal(err)
	}
	limits.ReserveBytes = 1
	budget, err := NewBudget(limits, root)
	if err != nil {
		tb.Fatal(err)
	}
	res, err = Apply(tb.Context(), root, bytes.NewReader(data), budget)
	return root, res, err
}

func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		entries []entry
		want    error
		names   string // the error contains this
	}{
		{"traversal", []entry{file("../../evil", "x")}, wire.ErrRefused, "../../evil"},
		{"traversal inside a path", []entry{file("a/../../evil", "x")}, wire.ErrRefused, "a/../../evil"},
		{"absolute traversal", []entry{file("/../evil", "x")}, wire.ErrRefused, "/../evil"},
		{"write through an absolute symlink", []entry{link(tar.TypeSymlink, "out", "/etc"), file("out/evil", "x")}, wire.ErrRefused, `through the symbolic link "out"`},
		{"write through a relative symlink", []entry{link(tar.TypeSymlink, "out", "../.."), file("out/evil", "x")}, wire.ErrRefused, `through the symbolic link "out"`},
		{"write deep below a symlink", []entry{dir("a"), link(tar.TypeSymlink, "a/out", "/"), file("a/out/tmp/evil", "x")}, wire.ErrRefused, `"a/out"`},
		{"directory below a symlink", []entry{link(tar.TypeSymlink, "out", "/"), dir("out/evil")}, wire.ErrRefused, "out/evil"},
		{"whiteout through a symlink", []entry{link(tar.TypeSymlink, "out", "/etc"), file("out/.wh.passwd", "")}, wire.ErrRefused, "out/.wh.passwd"},
		{"opaque through a symlink", []entry{link(tar.TypeSymlink, "out", ".."), file("out/.wh..wh..opq", "")}, wire.ErrRefused, "out/.wh..wh..opq"},
		{"whiteout of the parent", []entry{file(".wh...", "")}, wire.ErrRefused, ".wh..."},
		{"whiteout of the directory itself", []entry{file("a/.wh..", "")}, wire.ErrRefused, "a/.wh.."},
		{"whiteout of nothing", []entry{file("a/.wh.", "")}, wire.ErrRefused, "a/.wh."},
		{"hard link by traversal", []entry{link(tar.TypeLink, "passwd", "../../../../etc/passwd")}, wire.ErrRefused, "etc/passwd"},
		{"hard link to an absolute path", []entry{link(tar.TypeLink, "passwd", "/etc/passwd")}, wire.ErrRefused, "/etc/passwd"},
		{"hard link through a symlink", []entry{link(tar.TypeSymlink, "out", "/etc"), link(tar.TypeLink, "passwd", "out/passwd")}, wire.ErrRefused, `"out"`},
		{"hard link to a directory", []entry{dir("d"), link(tar.TypeLink, "e", "d")}, wire.ErrRefused, "not a file"},
		{"character device 0:0", []entry{device(tar.TypeChar, "etc", 0, 0)}, wire.ErrRefused, "whiteout"},
		{"block device 0:0", []entry{device(tar.TypeBlock, "etc", 0, 0)}, wire.ErrRefused, "whiteout"},
		{"root as a symlink", []entry{link(tar.TypeSymlink, ".", "/etc")}, wire.ErrRefused, "root of the layer"},
		{"root as a file", []entry{file(".", "")}, wire.ErrRefused, "root of the layer"},
		{"unknown type", []entry{{Header: tar.Header{Typeflag: '7', Name: "x"}}}, wire.ErrRefused, "type"},
		{"owner out of range", []entry{{Header: tar.Header{Typeflag: tar.TypeReg, Name: "x", Uid: 1<<32 - 1}}}, wire.ErrRefused, "user"},
		{"whiteout below a file", []entry{file("a/f", ""), file("a/f/.wh.x", "")}, wire.ErrRefused, "a/f/.wh.x"},
		{"capabilities that are none", []entry{attribute("user.ok", "x", "security.capability", "zz")}, wire.ErrRefused, `the extended attribute "security.capability"`},
		{"attribute too large for Linux", []entry{attribute("user.big", strings.Repeat("x", 70<<10))}, wire.ErrRefused, `the extended attribute "user.big"`},
		{"attribute without a name", []entry{attribute("user.", "x")}, wire.ErrRefused, `the extended attribute "user."`},
		{"attribute with a long name", []entry{attribute("user."+strings.Repeat("n", 300), "x")}, wire.ErrRefused, `the extended attribute "user.nnn`},
		{"name too long for the file system", []entry{file(strings.Repeat("n", 300), "")}, wire.ErrRefused, "nnn"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			root, _, err := apply(t, wire.Limits{}, archive(t, append([]entry{file("first", "1")}, tc.entries...)...))
			if !errors.Is(err, tc.want) {
				t.Fatalf("Apply = %v, want %v", err, tc.want)
			}
			if !strings.Contains(err.Error(), tc.names) {
				t.Errorf("the error %q does not contain %q", err, tc.names)
			}
			around, err := os.ReadDir(filepath.Dir(root))
			if err != nil || len(around) != 1 {
				t.Errorf("outside the root: %v (%v), want nothing", around, err)
			}
		})
	}
}

func TestApplyRefusesDamagedArchives(t *testing.T) {
	t.Parallel()
	whole := archive(t, file("a", strings.Repeat("x", 4096)))
	for name, data := range map[string][]byte{
		"cut in a file":   whole[:2048],
		"cut in a header": whole[:300],
		"noise":           bytes.Repeat([]byte("noise"), 1000),
		"endless header":  rawEntry("PaxHeaders/a", tar.TypeXHeader, "4194304 comment="+strings.Repeat("x", 4<<20)),
		"endless name":    rawEntry("././@LongLink", tar.TypeGNULongName, strings.Repeat("x", 4<<20)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, _, err := apply(t, wire.Limits{}, data); !errors.Is(err, wire.ErrRefused) {
				t.Errorf("Apply = %v, want %v", err, wire.ErrRefused)
			}
		})
	}
}

func TestApplyKeepsTheLimits(t *testing.T) {
	t.Parallel()
	many := make([]entry, 100)
	for i := range many {
		many[i] = dir("d" + strings.Repeat("i", i))
	}
	for _, tc := range []struct {
		name   string
		limits wire.Limits
		data   []byte
	}{
		{"one large file", wire.Limits{Bytes: 1000}, archive(t, file("a", strings.Repeat("x", 1001)))},
		{"many small files", wire.Limits{Bytes: 1000}, archive(t, file("a", strings.Repeat("x", 600)), file("b", strings.Repeat("x", 600)))},
		{"one file written twice", wire.Limits{Bytes: 1000}, archive(t, file("a", strings.Repeat("x", 600)), file("a", strings.Repeat("x", 600)))},
		{"entries", wire.Limits{Entries: 99}, archive(t, many...)},
		{"padding after the end", wire.Limits{Bytes: 1000, Entries: 10}, append(archive(t), make([]byte, 20<<10)...)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if _, _, err := apply(t, tc.limits, tc.data); !errors.Is(err, wire.ErrTooLarge) {
				t.Errorf("Apply = %v, want %v", err, wire.ErrTooLarge)
			}
		})
	}
}

// rawEntry returns an entry that archive/tar refuses to write, with any type and any records.
func rawEntry(name string, kind byte, body string) []byte {
	hdr := make([]byte, 512)
	copy(hdr, name)
	copy(hdr[100:], "0000644\x000000000\x000000000\x00")
	copy(hdr[124:], fmt.Sprintf("%011o\x00", len(body)))
	copy(hdr[136:], "00000000000\x00")
	hdr[156] = kind
	copy(hdr[257:], "ustar\x0000")
	sum := 8 * int(' ') // the checksum field counts as blanks
	for i, b := range hdr {
		if i < 148 || i >= 156 {
			sum += int(b)
		}
	}
	copy(hdr[148:], fmt.Sprintf("%06o\x00 ", sum))
	padding := (512 - len(body)%512) % 512
	return append(append(hdr, body...), make([]byte, padding)...)
}

// ext4 has one block for the attributes of a file, and other file systems have more. If it is
// full, the disk may still have space.
func TestApplyDistinguishesALargeAttributeFromAFullDisk(t *testing.T) {
	t.Parallel()
	_, _, err := apply(t, wire.Limits{}, archive(t, attribute("user.large", strings.Repeat("x", 60<<10))))
	if err != nil && !errors.Is(err, wire.ErrRefused) {
		t.Errorf("Apply = %v, want %v, or no error where such a file can be", err, wire.ErrRefused)
	}
}

// A sparse file can be a bomb of two kilobytes. Its size on the disk counts.
func TestApplyCountsTheHolesOfSparseFiles(t *testing.T) {
	t.Parallel()
	var records strings.Builder
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=bomb", "GNU.sparse.realsize=8589934592"} {
		fmt.Fprintf(&records, "%d %s\n", len(r)+4, r) // two digits, blank, newline
	}
	data := rawEntry("PaxHeaders/bomb", tar.TypeXHeader, records.String())
	data = append(data, rawEntry("GNUSparseFile/bomb", tar.TypeReg, "0\n"+strings.Repeat("\x00", 510))...)
	data = append(data, make([]byte, 1024)...)
	if got, err := tar.NewReader(bytes.NewReader(data)).Next(); err != nil || got.Size != 8<<30 {
		t.Fatalf("the test's archive is not the bomb it should be: %+v, %v", got, err)
	}
	if _, _, err := apply(t, wire.Limits{Bytes: 1 << 30}, data); !errors.Is(err, wire.ErrTooLarge) {
		t.Errorf("Apply = %v, want %v", err, wire.ErrTooLarge)
	}
}

func TestApplyStopsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	root := t.TempDir()
	budget, err := NewBudget(wire.Limits{}, root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Apply(ctx, root, bytes.NewReader(archive(t, file("a", ""))), budget); !errors.Is(err, why) {
		t.Errorf("Apply = %v, want %v", err, why)
	}
}

func TestApplyKeepsTheReserve(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	budget, err := NewBudget(wire.Limits{ReserveBytes: 1 << 60}, root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Apply(t.Context(), root, bytes.NewReader(archive(t, file("a", "x"))), budget); !errors.Is(err, wire.ErrNoSpace) {
		t.Errorf("Apply = %v, want %v", err, wire.ErrNoSpace)
	}
}

func TestApplyUnpacks(t *testing.T) {
	t.Parallel()
	root, res, err := apply(t, wire.Limits{}, append(archive(t,
		entry{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "x"}}},
		dir("./"),
		file("/usr/bin/tool", "#!"),
		link(tar.TypeSymlink, "bin", "/usr/bin"),
		link(tar.TypeSymlink, "escape", "../../../../etc/passwd"), // a link may point anywhere
		link(tar.TypeLink, "usr/bin/alias", "/usr/bin/tool"),
		dir("etc"),
		file("etc/.wh.gone", ""),
		file("var/.wh..wh..opq", ""),
		file("replaced/deep/.wh.gone", ""),
		link(tar.TypeSymlink, "replaced", "etc"),
		file(".wh..wh.plnk", "what aufs left"),
		device(tar.TypeChar, "dev/null", 1, 3),
		link(tar.TypeLink, "dev/zero", "dev/null"),
		entry{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "run/pipe", Mode: 0o600}},
		link(tar.TypeSymlink, "later", "/tmp"),
		dir("later"), // no longer a link
		file("later/file", "fine"),
	), make([]byte, 4096)...))
	if err != nil {
		t.Fatal(err)
	}
	want := Result{
		Bytes: int64(len("#!") + len("fine")), Entries: 18,
		Skipped:  []string{"dev/null"},
		Implicit: []string{"replaced", "replaced/deep", "run", "usr", "usr/bin", "var"},
		// The whiteouts of a directory that became a link are gone.
		Whiteouts: map[string]string{"etc": "etc/.wh.gone", "var": "var/.wh..wh..opq"},
	}
	if diff := cmp.Diff(want, res); diff != "" {
		t.Errorf("Result (-want +got):\n%s", diff)
	}
	modes := map[string]fs.FileMode{
		"usr/bin/tool": 0, "usr/bin/alias": 0, "bin": fs.ModeSymlink, "escape": fs.ModeSymlink, "etc": fs.ModeDir,
		"etc/gone": fs.ModeDevice | fs.ModeCharDevice, "var": fs.ModeDir, "run/pipe": fs.ModeNamedPipe, "later/file": 0,
	}
	for name, mode := range modes {
		fi, err := os.Lstat(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := fi.Mode().Type(); got != mode {
			t.Errorf("type of %s = %v, want %v", name, got, mode)
		}
	}
	for _, name := range []string{"dev/null", "dev/zero", ".wh..wh.plnk", "plnk", "etc/.wh.gone"} {
		if _, err := os.Lstat(filepath.Join(root, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s exists (%v)", name, err)
		}
	}
	if got := opaque(t, filepath.Join(root, "var")); got != "y" {
		t.Errorf("var is marked %q, want opaque", got)
	}
}

// Files that a layer hides stay hidden if the layer has a directory with the same name.
func TestApplyKeepsHiddenWhatADirectoryReplaces(t *testing.T) {
	t.Parallel()
	for name, entries := range map[string][]entry{
		"listed":  {file(".wh.d", ""), dir("d"), file("d/new", "")},
		"implied": {file(".wh.d", ""), file("d/new", "")},
		"both":    {file(".wh.d", ""), file("d/new", ""), dir("d")},
	} {
		root, _, err := apply(t, wire.Limits{}, archive(t, entries...))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := opaque(t, filepath.Join(root, "d")); got != "y" {
			t.Errorf("%s: d is marked %q, want opaque", name, got)
		}
	}
}

// opaque returns overlayfs's mark of a directory that hides the lower layers.
func opaque(tb testing.TB, dir string) string {
	tb.Helper()
	attr := wire.OpaqueAttribute()
	value := make([]byte, 16)
	n, err := syscall.Getxattr(dir, attr, value)
	if err != nil {
		tb.Fatalf("%s of %s: %v", attr, dir, err)
	}
	return string(value[:n])
}

// An image must not be able to write overlayfs's own attributes. A redirect would show another
// directory of the host's layers.
func TestApplyMasksOverlayAttributes(t *testing.T) {
	t.Parallel()
	for _, attr := range []string{"trusted.overlay.redirect", "trusted.overlay.opaque", "trusted.overlay.metacopy"} {
		e := dir("d")
		e.PAXRecords = map[string]string{"SCHILY.xattr." + attr: "y"}
		e.Format = tar.FormatPAX
		root, _, err := apply(t, wire.Limits{}, archive(t, e))
		if err != nil {
			t.Fatalf("%s: %v", attr, err)
		}
		if n, err := syscall.Getxattr(filepath.Join(root, "d"), attr, nil); err == nil {
			t.Errorf("%s was set (%d bytes)", attr, n)
		}
	}
}

func FuzzApply(f *testing.F) {
	f.Add(archive(f, file("a/b", "x"), link(tar.TypeSymlink, "s", "/etc"), file("c/.wh.d", "")))
	f.Add(archive(f, link(tar.TypeLink, "l", "../x"), device(tar.TypeChar, "n", 0, 0)))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, _, err := apply(t, wire.Limits{Bytes: 1 << 20, Entries: 1000}, data)
		if around, dirErr := os.ReadDir(filepath.Dir(root)); dirErr != nil || len(around) != 1 {
			t.Errorf("outside the root: %v (%v); Apply = %v", around, dirErr, err)
		}
	})
}
