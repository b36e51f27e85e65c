package disk

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/testkit/privileged"
)

// imageStore returns a real image store. The end of the test removes its mounts.
func imageStore(t *testing.T) *image.Store {
	t.Helper()
	s, err := image.Open(image.Config{
		Root: filepath.Join(t.TempDir(), "images"), Unpacker: []string{"/proc/self/exe", "unpack"},
		Limits: image.Limits{ReserveBytes: 1}, RegistriesConf: os.DevNull,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ids, err := s.Mounted()
		for _, id := range ids {
			err = errors.Join(err, s.Unmount(context.Background(), id, false))
		}
		if err = errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func pull(t *testing.T, s *image.Store, spec ociimage.Spec) *image.Image {
	t.Helper()
	dir := t.TempDir()
	if _, err := ociimage.Write(dir, "v1", spec); err != nil {
		t.Fatal(err)
	}
	img, err := s.Pull(t.Context(), image.PullRequest{Reference: "oci:" + dir + ":v1"})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// mountLoop mounts an image read-only. The end of the test removes the mount and its loop
// device.
func mountLoop(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "mount", "-t", "ext4", "-o", "ro,loop,noload", path, dir).CombinedOutput()
	if err != nil {
		t.Fatalf("mounting %s: %v: %s", path, err, out)
	}
	t.Cleanup(func() {
		// umount(8) removes the loop device that mount(8) created.
		if out, err := exec.CommandContext(context.Background(), "umount", dir).CombinedOutput(); err != nil {
			t.Errorf("unmounting: %v: %s", err, out)
		}
	})
	return dir
}

// The kernel reads from the block image the same files that a container of the image would have.
func TestPrivilegedFromImageMounts(t *testing.T) {
	privileged.Require(t)
	images := imageStore(t)
	img := pull(t, images, ociimage.Spec{
		Layers: []ociimage.Layer{
			{Files: map[string]ociimage.File{
				"etc/motd": {Content: []byte("first\n")}, "etc/gone": {Content: []byte("x")},
				"bin/app": {Content: []byte("#!"), Mode: 0o755},
			}},
			{Files: map[string]ociimage.File{"etc/motd": {Content: []byte("second\n")}, "etc/.wh.gone": {}}},
		},
		Entrypoint: []string{"/bin/app"},
	})
	d := newDir(t, func(c *Config) { c.Images = images })
	got, err := d.FromImage(t.Context(), "vm-1", img)
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := images.Mounted(); err != nil || len(ids) != 0 {
		t.Errorf("mounts stay: %v, %v", ids, err)
	}
	root := mountLoop(t, got.Path)
	if data, err := os.ReadFile(filepath.Join(root, "etc/motd")); err != nil || string(data) != "second\n" {
		t.Errorf("etc/motd is %q, %v", data, err)
	}
	if _, err := os.Lstat(filepath.Join(root, "etc/gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that the image hides exists: %v", err)
	}
	if info, err := os.Stat(filepath.Join(root, "bin/app")); err != nil || info.Mode() != 0o755 {
		t.Errorf("bin/app is %v, %v", info, err)
	}
}

// Owners, capabilities and hard links are kept too.
func TestPrivilegedTreeKeepsOwners(t *testing.T) {
	privileged.Require(t)
	images := newTrees(t)
	file := filepath.Join(images.dir, "app")
	write(t, file, "x")
	// Version 2 of the attribute: cap_net_bind_service, permitted and effective.
	capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if err := errors.Join(
		os.Chown(images.dir, 5, 6), os.Chown(file, 1234, 70000), unix.Setxattr(file, "security.capability", capability, 0),
		os.Link(file, filepath.Join(images.dir, "link")), unix.Mknod(filepath.Join(images.dir, "null"), syscall.S_IFCHR|0o666, 1<<8|3),
	); err != nil {
		t.Fatal(err)
	}
	d := newDir(t, func(c *Config) { c.Images = images })
	got, err := d.FromImage(t.Context(), "vm-1", sampleImage("owners"))
	if err != nil {
		t.Fatal(err)
	}
	root := mountLoop(t, got.Path)
	var st, link, top unix.Stat_t
	if err := errors.Join(unix.Stat(filepath.Join(root, "app"), &st), unix.Stat(filepath.Join(root, "link"), &link), unix.Stat(root, &top)); err != nil {
		t.Fatal(err)
	}
	if st.Uid != 1234 || st.Gid != 70000 || st.Ino != link.Ino || top.Uid != 5 || top.Gid != 6 {
		t.Errorf("app is %d:%d, inode %d, link %d, the root %d:%d", st.Uid, st.Gid, st.Ino, link.Ino, top.Uid, top.Gid)
	}
	value := make([]byte, 64)
	if n, err := unix.Getxattr(filepath.Join(root, "app"), "security.capability", value); err != nil || string(value[:n]) != string(capability) {
		t.Errorf("the capability is % x, %v", value[:max(n, 0)], err)
	}
}

// Times are kept completely: with nanoseconds, after 2038 and before 1970, and for all file
// names.
func TestPrivilegedTreeKeepsTimes(t *testing.T) {
	privileged.Require(t)
	images := newTrees(t)
	at := map[string]time.Time{
		".": time.Unix(2_500_000_000, 999_999_999), "plain": time.Unix(1_700_000_000, 0), "exact": time.Unix(1_700_000_000, 123_456_789),
		"late": time.Date(2040, 1, 2, 3, 4, 5, 6, time.UTC), "very late": time.Date(2300, 1, 1, 0, 0, 0, 1, time.UTC), "early": time.Date(1960, 1, 1, 0, 0, 0, 999, time.UTC),
		`qu"ote`: time.Unix(1, 2), `back\slash`: time.Unix(3, 4), "<5>": time.Unix(5, 6), "-x": time.Unix(7, 8), "#c": time.Unix(7, 9), "\xff": time.Unix(9, 10),
		"dir": time.Unix(11, 12), "dir/in it": time.Unix(13, 14), "link": time.Unix(15, 16),
	}
	if err := errors.Join(os.Mkdir(filepath.Join(images.dir, "dir"), 0o755), os.Symlink("plain", filepath.Join(images.dir, "link"))); err != nil {
		t.Fatal(err)
	}
	for name := range at {
		if name != "." && name != "dir" && name != "link" {
			write(t, filepath.Join(images.dir, name), "x")
		}
	}
	set := func(name string) {
		spec, err := unix.TimeToTimespec(at[name])
		if err == nil {
			err = unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(images.dir, name), []unix.Timespec{spec, spec}, unix.AT_SYMLINK_NOFOLLOW)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range at {
		set(name)
	}
	got, err := newDir(t, func(c *Config) { c.Images = images }).FromImage(t.Context(), "vm-1", sampleImage("times"))
	if err != nil {
		t.Fatal(err)
	}
	root := mountLoop(t, got.Path)
	for name, want := range at {
		if info, err := os.Lstat(filepath.Join(root, name)); err != nil || !info.ModTime().Equal(want) {
			t.Errorf("%q is of %v, %v, want %v", name, info.ModTime().UTC(), err, want.UTC())
		}
	}
}

// A full file system causes a clear error, and incomplete files are removed.
func TestPrivilegedFullFileSystem(t *testing.T) {
	privileged.Require(t)
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=6m,mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	images := newTrees(t)
	write(t, filepath.Join(images.dir, "f"), strings.Repeat("content!", 1<<20))
	d := newDirAt(t, filepath.Join(small, "disks"), func(c *Config) { c.Images = images })
	if _, err := d.FromImage(t.Context(), "vm-1", sampleImage("large")); !errors.Is(err, ErrNoSpace) {
		t.Errorf("FromImage = %v, want %v", err, ErrNoSpace)
	}
	requireClean(t, d, 0)
	// Without the check of the free space, mke2fs itself fails.
	path := filepath.Join(small, "disk")
	err := d.populate(t.Context(), populateRequest{tree: images.dir, path: path, id: "x", inodes: 64, bytes: 32 << 20})
	if !errors.Is(err, ErrNoSpace) {
		t.Errorf("mke2fs on a full file system: %v, want %v", err, ErrNoSpace)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	s := newSite(t, tarOf(t, map[string]string{"f": strings.Repeat("content!", 1<<20)}))
	web := newDirAt(t, filepath.Join(small, "web"), local)
	if _, err := web.FromURL(t.Context(), "vm-1", URLRequest{URL: s.URL}); !errors.Is(err, ErrNoSpace) {
		t.Errorf("FromURL = %v, want %v", err, ErrNoSpace)
	}
	requireClean(t, web, 0)
}
