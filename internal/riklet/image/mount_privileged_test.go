package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/testkit/privileged"
)

// mountStore opens a store whose mounts are removed at the end of the test.
func mountStore(t *testing.T) *Store {
	t.Helper()
	s := open(t, nil)
	t.Cleanup(func() { unmountAll(t, s) })
	return s
}

func unmountAll(t *testing.T, s *Store) {
	t.Helper()
	names, err := s.Mounted()
	if err != nil {
		t.Error(err)
	}
	for _, id := range names {
		// t.Context has ended during the cleanup.
		if err := s.Unmount(context.WithoutCancel(t.Context()), id, false); err != nil {
			t.Error(err)
		}
	}
}

func pull(t *testing.T, s *Store, spec ociimage.Spec) *Image {
	t.Helper()
	_, ref, _ := layout(t, spec)
	img, err := s.Pull(t.Context(), PullRequest{Reference: ref})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func mount(t *testing.T, s *Store, id string, img *Image) string {
	t.Helper()
	root, err := s.Mount(t.Context(), id, img)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func read(t *testing.T, root, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func write(t *testing.T, root, name, data string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(root, name), []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Fault 13: all instances of an image shared one root and wrote into each other's files.
func TestPrivilegedFault13InstancesDoNotShareWhatTheyWrite(t *testing.T) {
	privileged.Require(t)
	s := mountStore(t)
	img := pull(t, s, small())
	one, two := mount(t, s, "one", img), mount(t, s, "two", img)
	write(t, one, "etc/motd", "one's\n")
	write(t, one, "new", "one's\n")
	if err := os.Remove(filepath.Join(one, "bin/app")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, two, "etc/motd"); got != "hello again\n" {
		t.Errorf("two reads %q", got)
	}
	if got := read(t, two, "bin/app"); got != "#!" {
		t.Errorf("two's bin/app = %q", got)
	}
	if _, err := os.Stat(filepath.Join(two, "new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("two sees one's new file (%v)", err)
	}
	for i, want := range []string{"hello\n", "hello again\n"} {
		if got := read(t, img.Layers[i], "etc/motd"); got != want {
			t.Errorf("layer %d has %q, want %q", i, got, want)
		}
	}
}

// names lists a directory like ls. A ghost is listed but cannot be opened.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if _, err := os.Lstat(filepath.Join(dir, e.Name())); err != nil {
			t.Errorf("%s lists a file that does not exist: %v", dir, err)
		}
		names = append(names, e.Name())
	}
	return names
}

// Image builders do write whiteouts for files that no lower layer has.
func TestPrivilegedWhiteoutsOfMissingFilesLeaveNothing(t *testing.T) {
	privileged.Require(t)
	entries := func(names ...string) ociimage.Layer {
		var headers []tar.Header
		for _, n := range names {
			h := tar.Header{Name: n, Typeflag: tar.TypeReg}
			if strings.HasSuffix(n, "/") {
				h.Typeflag = tar.TypeDir
			}
			headers = append(headers, h)
		}
		return ociimage.Layer{Tar: rawTar(t, headers...)}
	}
	empty := ociimage.File{}
	s := mountStore(t)
	img := pull(t, s, ociimage.Spec{Layers: []ociimage.Layer{
		entries("base/", "base/.wh.ghost", ".wh.ghost"),
		{Files: map[string]ociimage.File{
			"etc/gone": empty, "etc/stays": empty, "opaque/gone": empty, "removed/gone": empty, "file": empty, "usr/lib/x": empty,
			"lib": {Link: "usr/lib"},
		}},
		entries("new/", "new/.wh.ghost", "new/deep/.wh.ghost", "new/real"),
		entries("etc/.wh.gone", "etc/.wh.ghost", "opaque/.wh..wh..opq", "opaque/.wh.ghost", "opaque/new", ".wh.removed", ".wh.nothing"),
		// New directories in place of a directory, a file and a link.
		entries("removed/", "removed/.wh.ghost", "file/", "file/.wh.ghost", "lib/", "lib/.wh.ghost", "opaque/sub/.wh.ghost"),
	}})
	root := mount(t, s, "ghosts", img)
	for dir, want := range map[string][]string{
		".": {"base", "etc", "file", "lib", "new", "opaque", "removed", "usr"}, "base": nil,
		"new": {"deep", "real"}, "new/deep": nil, "etc": {"stays"}, "opaque": {"new", "sub"}, "opaque/sub": nil, "removed": nil, "file": nil, "lib": nil,
	} {
		if diff := cmp.Diff(want, names(t, filepath.Join(root, dir))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", dir, diff)
		}
	}
}

// overlayfs itself ignores the opaque mark of a root.
func TestPrivilegedOpaqueRoot(t *testing.T) {
	privileged.Require(t)
	s := mountStore(t)
	file := func(names ...string) ociimage.Layer {
		l := ociimage.Layer{Files: map[string]ociimage.File{}}
		for _, n := range names {
			l.Files[n] = ociimage.File{}
		}
		return l
	}
	root := mount(t, s, "root", pull(t, s, ociimage.Spec{Layers: []ociimage.Layer{
		file("old", "etc/old"), file(".wh..wh..opq", "new", "etc/new"), file("top", ".wh.new", "etc/.wh.old"),
	}}))
	for dir, want := range map[string][]string{".": {"etc", "top"}, "etc": {"new"}} {
		if diff := cmp.Diff(want, names(t, filepath.Join(root, dir))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", dir, diff)
		}
	}
}

func TestPrivilegedMountAndUnmountAreIdempotent(t *testing.T) {
	privileged.Require(t)
	s := mountStore(t)
	img := pull(t, s, small())
	root := mount(t, s, "pod-1.app", img)
	write(t, root, "kept", "yes")
	if again := mount(t, s, "pod-1.app", img); again != root || read(t, again, "kept") != "yes" {
		t.Errorf("the second Mount gives %s, want %s as it was", again, root)
	}
	if n := mountsOf(t, root); n != 1 {
		t.Errorf("%d mounts at %s, want 1", n, root)
	}
	for range 2 {
		if err := s.Unmount(t.Context(), "pod-1.app", true); err != nil {
			t.Fatal(err)
		}
	}
	if n := mountsOf(t, root); n != 0 {
		t.Errorf("%d mounts at %s after Unmount, want none", n, root)
	}
	if got := read(t, mount(t, s, "pod-1.app", img), "kept"); got != "yes" {
		t.Errorf("the kept file contains %q", got)
	}
	for range 2 {
		if err := s.Unmount(t.Context(), "pod-1.app", false); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := s.Mounted(); err != nil || len(names) != 0 {
		t.Errorf("Mounted = %v, %v; want none", names, err)
	}
	if _, err := os.Stat(filepath.Join(mount(t, s, "pod-1.app", img), "kept")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that was not kept exists (%v)", err)
	}
}

func TestPrivilegedMountRefuses(t *testing.T) {
	privileged.Require(t)
	s := mountStore(t)
	img, other := pull(t, s, small()), pull(t, s, ociimage.Spec{Files: map[string]ociimage.File{"other": {}}})
	for _, id := range []string{"", ".", "..", "../x", "a/b", "-o", "a b", strings.Repeat("x", 129)} {
		if _, err := s.Mount(t.Context(), id, img); !errors.Is(err, ErrInvalidID) {
			t.Errorf("Mount(%q) = %v, want %v", id, err, ErrInvalidID)
		}
		if err := s.Unmount(t.Context(), id, false); !errors.Is(err, ErrInvalidID) {
			t.Errorf("Unmount(%q) = %v, want %v", id, err, ErrInvalidID)
		}
	}
	for name, layers := range map[string][]string{
		"none":             nil,
		"the host":         {"/"},
		"outside":          {"/etc/sha256-" + strings.Repeat("0", 64) + "/fs"},
		"gone":             {s.path(layersDir, "sha256-"+strings.Repeat("0", 64), "fs")},
		"more options":     {img.Layers[0] + ":/etc"},
		"not a layer's fs": {filepath.Dir(img.Layers[0])},
	} {
		if _, err := s.Mount(t.Context(), "x", &Image{Layers: layers}); !errors.Is(err, ErrNotPresent) {
			t.Errorf("layers of %s: %v, want %v", name, err, ErrNotPresent)
		}
	}
	root := mount(t, s, "x", img)
	if _, err := s.Mount(t.Context(), "x", other); !errors.Is(err, ErrMounted) {
		t.Errorf("another image over it: %v, want %v", err, ErrMounted)
	}
	write(t, root, "old", "")
	if err := s.Unmount(t.Context(), "x", true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(mount(t, s, "x", other), "old")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file written over one image is visible over another (%v)", err)
	}
}

func TestPrivilegedMountShowsLayersAsOne(t *testing.T) {
	privileged.Require(t)
	s := mountStore(t)
	root := mount(t, s, "x", pull(t, s, ociimage.Spec{
		Files: map[string]ociimage.File{
			"etc/gone": {}, "etc/stays": {}, "opt/a": {}, "opt/b": {},
			"srv":            {Dir: true, Mode: 0o710, UID: 7, GID: 8},
			"srv/data/deep":  {Dir: true, Mode: 0o777},
			"bin/su":         {Mode: 0o755 | fs.ModeSetuid},
			"bin/substitute": {HardLink: "bin/su"},
		},
		Layers: []ociimage.Layer{
			{Files: map[string]ociimage.File{"etc/.wh.gone": {}, "opt/.wh..wh..opq": {}, "opt/c": {}}},
			// Only the file has an entry. Its directories come from the lower layer.
			{Tar: rawTar(t, tar.Header{Name: "srv/data/deep/file", Typeflag: tar.TypeReg}, tar.Header{Name: "only/here", Typeflag: tar.TypeReg})},
		},
	}))
	for name, want := range map[string]bool{
		"etc/gone": false, "etc/stays": true, "opt/a": false, "opt/b": false, "opt/c": true, "srv/data/deep/file": true, "only/here": true,
	} {
		if _, err := os.Lstat(filepath.Join(root, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", name, err, want)
		}
	}
	type owned struct {
		Mode     fs.FileMode
		UID, GID uint32
	}
	got := map[string]owned{}
	for _, name := range []string{".", "srv", "srv/data/deep", "only", "bin/su"} {
		fi, err := os.Lstat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		st := fi.Sys().(*syscall.Stat_t)
		got[name] = owned{fi.Mode(), st.Uid, st.Gid}
	}
	want := map[string]owned{
		".": {fs.ModeDir | 0o755, 0, 0}, "srv": {fs.ModeDir | 0o710, 7, 8}, "srv/data/deep": {fs.ModeDir | 0o777, 0, 0},
		"only": {fs.ModeDir | 0o755, 0, 0}, "bin/su": {fs.ModeSetuid | 0o755, 0, 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("modes and owners (-want +got):\n%s", diff)
	}
}

// A device node created in a container cannot be opened.
func TestPrivilegedMountHasNoDevices(t *testing.T) {
	privileged.Require(t)
	s := mountStore(t)
	node := filepath.Join(mount(t, s, "x", pull(t, s, small())), "null")
	if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	if f, err := os.Open(node); !errors.Is(err, syscall.EACCES) {
		t.Errorf("opening a device: %v, want %v", err, syscall.EACCES)
		_ = f.Close()
	}
}

// The names of 128 layers do not fit into the page that mount(2) accepts.
func TestPrivilegedMountStacksManyLayers(t *testing.T) {
	privileged.Require(t)
	s := mountStore(t)
	var spec ociimage.Spec
	for i := range 128 {
		spec.Layers = append(spec.Layers, ociimage.Layer{Compression: ociimage.Uncompressed, Files: map[string]ociimage.File{
			fmt.Sprintf("layer-%d", i): {}, "top": {Content: fmt.Append(nil, i)},
		}})
	}
	root := mount(t, s, "x", pull(t, s, spec))
	if got := read(t, root, "top"); got != "127" {
		t.Errorf("top is of layer %s, want 127", got)
	}
	if _, err := os.Stat(filepath.Join(root, "layer-0")); err != nil {
		t.Error(err)
	}
	spec.Layers = append(spec.Layers, spec.Layers[0])
	_, ref, _ := layout(t, spec)
	if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); !errors.Is(err, ErrRefused) {
		t.Errorf("129 layers: %v, want %v", err, ErrRefused)
	}
}

func TestPrivilegedMountsSurviveARestartAndPinTheirLayers(t *testing.T) {
	privileged.Require(t)
	storeRoot := filepath.Join(t.TempDir(), "store")
	s := openAt(t, storeRoot, nil)
	img := pull(t, s, small())
	live := mount(t, s, "live", img)
	write(t, live, "kept", "yes")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, storeRoot, nil)
	t.Cleanup(func() { unmountAll(t, s) })
	if names, err := s.Mounted(); err != nil || !cmp.Equal(names, []string{"live"}) {
		t.Errorf("Mounted after a restart = %v, %v; want live", names, err)
	}
	// Disk pressure that cannot be relieved, long after the last use.
	policy := CollectPolicy{HighPercent: 1, LowPercent: 1, Now: time.Now().Add(1000 * time.Hour)}
	if _, err := s.Collect(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	requireNothingLeft(t, s, 2)
	if again := mount(t, s, "live", img); again != live || read(t, live, "kept") != "yes" || read(t, live, "etc/motd") != "hello again\n" {
		t.Errorf("the mount after a restart and a collection is %s, want %s as it was", again, live)
	}
	if err := s.Unmount(t.Context(), "live", false); err != nil {
		t.Fatal(err)
	}
	policy.HighPercent = 0
	if _, err := s.Collect(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	requireNothingLeft(t, s, 0)
	if _, err := s.Mount(t.Context(), "live", img); !errors.Is(err, ErrNotPresent) {
		t.Errorf("Mount of a collected image: %v, want %v", err, ErrNotPresent)
	}
}

// The state after a power failure: directories, and a record that was not synced.
func TestPrivilegedMountAfterAPowerCut(t *testing.T) {
	privileged.Require(t)
	storeRoot := filepath.Join(t.TempDir(), "store")
	s := openAt(t, storeRoot, nil)
	img := pull(t, s, small())
	write(t, mount(t, s, "x", img), "old", "")
	if err := s.Unmount(t.Context(), "x", true); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(s.path(mountsDir, "x", mountFile), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, storeRoot, nil)
	t.Cleanup(func() { unmountAll(t, s) })
	if names, err := s.Mounted(); err != nil || !cmp.Equal(names, []string{"x"}) {
		t.Errorf("Mounted = %v, %v; want x, to be taken away", names, err)
	}
	if _, err := os.Stat(filepath.Join(mount(t, s, "x", img), "old")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that was written over an unknown image exists (%v)", err)
	}
}

// Inside a container the node's directories are on an overlay. Without this check, its instances
// failed one after the other with "invalid argument".
func TestPrivilegedOverlayOnAnOverlayIsRefused(t *testing.T) {
	privileged.Require(t)
	if err := mountStore(t).CanMount(); err != nil {
		t.Errorf("on an ordinary file system: %v", err)
	}
	dir := t.TempDir()
	for _, sub := range []string{"lower", "upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(dir, "root")
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	})
	s := openAt(t, filepath.Join(root, "store"), func(*Config) {})
	err := s.CanMount()
	if !errors.Is(err, ErrUnfitFileSystem) || !strings.Contains(err.Error(), root+"/store/tmp is on overlay") {
		t.Errorf("on an overlay: %v", err)
	}
	if left, err := os.ReadDir(s.path(tmpDir)); err != nil || len(left) > 0 {
		t.Errorf("left in the store: %v, %v", left, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestPrivilegedUnmountOfABusyRoot(t *testing.T) {
	privileged.Require(t)
	s := mountStore(t)
	root := mount(t, s, "x", pull(t, s, small()))
	f, err := os.Open(filepath.Join(root, "etc/motd"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := s.Unmount(t.Context(), "x", false); err != nil {
		t.Fatal(err)
	}
	if n := mountsOf(t, root); n != 0 {
		t.Errorf("%d mounts are left", n)
	}
}

func TestPrivilegedConcurrentMounts(t *testing.T) {
	privileged.Require(t)
	s := mountStore(t)
	img := pull(t, s, small())
	var wg sync.WaitGroup
	errs := make([]error, 12)
	for i := range errs {
		wg.Go(func() {
			id := fmt.Sprintf("id-%d", i%3)
			if _, err := s.Mount(t.Context(), id, img); err != nil {
				errs[i] = err
				return
			}
			if i%2 == 0 {
				errs[i] = s.Unmount(t.Context(), id, i%4 == 0)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// On a full disk only the pull fails. The node's state does not change.
func TestPrivilegedFullDiskFailsThePull(t *testing.T) {
	privileged.Require(t)
	for name, reserve := range map[string]int64{"to the last byte": 1, "with a reserve": 4 << 20} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(dir, 0); err != nil {
					t.Error(err)
				}
			})
			s := openAt(t, filepath.Join(dir, "store"), func(c *Config) { c.Limits.ReserveBytes = reserve })
			before := free(t, dir)
			_, ref, _ := layout(t, ociimage.Spec{Layers: []ociimage.Layer{
				{Files: map[string]ociimage.File{"fits": {Content: make([]byte, 8<<20)}}},
				{Files: map[string]ociimage.File{"too-much": {Content: make([]byte, 8<<20)}, "more": {Content: make([]byte, 4<<20)}}},
			}})
			if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); !errors.Is(err, ErrNoSpace) {
				t.Errorf("Pull = %v, want %v", err, ErrNoSpace)
			}
			requireNothingLeft(t, s, 0)
			if after := free(t, dir); after < before-(64<<10) {
				t.Errorf("%d bytes were free before the pull, %d are after it", before, after)
			}
			pull(t, s, small()) // a small image still fits
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func free(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// mountsOf counts the kernel's mounts, not the store's.
func mountsOf(t *testing.T, dir string) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(data), " "+dir+" ")
}
