package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/testkit/output"
)

func TestFromImageKeepsTheTree(t *testing.T) {
	t.Parallel()
	images := newTrees(t)
	write(t, filepath.Join(images.dir, "bin/app"), "#!/bin/true\n")
	write(t, filepath.Join(images.dir, "etc/motd"), "hello\n")
	for _, err := range []error{
		os.Chmod(filepath.Join(images.dir, "bin/app"), 0o755|os.ModeSetuid),
		os.Link(filepath.Join(images.dir, "bin/app"), filepath.Join(images.dir, "bin/also")),
		os.Symlink("../bin/app", filepath.Join(images.dir, "etc/link")),
		os.Symlink(strings.Repeat("x", 200), filepath.Join(images.dir, "etc/long")),
		unix.Setxattr(filepath.Join(images.dir, "etc/motd"), "user.note", []byte("kept"), 0),
		unix.Mkfifo(filepath.Join(images.dir, "fifo"), 0o600),
		os.Mkdir(filepath.Join(images.dir, "empty"), 0o711),
		os.Chmod(images.dir, 0o750),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	hole, err := os.Create(filepath.Join(images.dir, "hole"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(hole.Truncate(1<<30), hole.Close()); err != nil {
		t.Fatal(err)
	}
	d := newDir(t, func(c *Config) { c.Images = images })
	img := sampleImage("app")
	img.Config.Entrypoint, img.Config.Env, img.Config.User = []string{"/bin/app"}, []string{"A=1"}, "7:8"
	got, err := d.FromImage(t.Context(), "vm-1", img)
	if err != nil {
		t.Fatal(err)
	}
	want := ImageConfig{Entrypoint: []string{"/bin/app"}, Env: []string{"A=1"}, User: "7:8"}
	if diff := cmp.Diff(want, got.Config); diff != "" || got.Digest != img.Digest {
		t.Errorf("FromImage of %s: (-want +got):\n%s", got.Digest, diff)
	}
	requireSound(t, got.Path)
	for question, says := range map[string]string{
		"cat /etc/motd":       "hello",
		"stat /bin/app":       "Links: 2",
		"stat /bin/also":      "Mode:  04755",
		"stat /etc/link":      `Fast link dest: "../bin/app"`,
		"stat /etc/long":      "Size: 200",
		"ea_list /etc/motd":   `user.note (4) = "kept"`,
		"stat /fifo":          "Type: FIFO",
		"stat /empty":         "Mode:  0711",
		"stat /hole":          "Blockcount: 0",
		"stat /":              "Mode:  0750",
		"show_super_stats -h": "metadata_csum",
	} {
		if out := ask(t, got.Path, question); !strings.Contains(out, says) {
			t.Errorf("%s does not contain %q:\n%s", question, says, out)
		}
	}
	if out := ask(t, got.Path, "ls /"); strings.Contains(out, "lost+found") {
		t.Errorf("there is a directory that the image did not have:\n%s", out)
	}
	info, err := os.Stat(got.Path)
	if err != nil || info.Mode().Perm() != 0o444 || got.Bytes != info.Size() {
		t.Errorf("the file is %v, %v; want 0444 and %d bytes", info.Mode(), err, got.Bytes)
	}
	if ids, _ := images.Mounted(); len(ids) != 0 {
		t.Errorf("mounts stay: %v", ids)
	}
	requireClean(t, d, 1)
}

// Directories need more space than their files here, both one with many files and many
// directories. mke2fs searches a directory for space from its beginning each time, so one
// directory with all files would take long.
func TestFromImageOfManyFiles(t *testing.T) {
	t.Parallel()
	images := newTrees(t)
	for i := range 1000 {
		name := fmt.Sprintf("%0200d", i)
		write(t, filepath.Join(images.dir, "many", name), "")
		write(t, filepath.Join(images.dir, fmt.Sprint("dir", i), name), "")
	}
	log := &output.Buffer{}
	d := newDir(t, func(c *Config) { c.Images, c.Logger = images, slog.New(slog.NewTextHandler(log, nil)) })
	got, err := d.FromImage(t.Context(), "vm-1", sampleImage("many"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log.String(), "needs more space") {
		t.Errorf("the directories were not measured:\n%s", log)
	}
	requireSound(t, got.Path)
}

func TestFromImageBuildsOnce(t *testing.T) {
	t.Parallel()
	images := newTrees(t)
	write(t, filepath.Join(images.dir, "f"), "x")
	d := newDir(t, func(c *Config) { c.Images = images })
	var wait sync.WaitGroup
	paths := make([]string, 16)
	for i := range paths {
		wait.Go(func() {
			got, err := d.FromImage(t.Context(), "vm-"+string(rune('a'+i)), sampleImage("app"))
			if err != nil {
				t.Error(err)
				return
			}
			paths[i] = got.Path
		})
	}
	wait.Wait()
	for _, p := range paths {
		if p != paths[0] {
			t.Errorf("two images: %s and %s", p, paths[0])
		}
	}
	if images.count() != 1 {
		t.Errorf("made %d times, want once", images.count())
	}
	users, err := d.Users()
	if err != nil || len(users) != 16 {
		t.Errorf("Users = %v, %v; want 16", users, err)
	}
}

func TestFromImageFailsClean(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   error
	}{
		{"bytes", func(c *Config) { c.Limits.Bytes = 1 << 20 }, ErrTooLarge},
		{"entries", func(c *Config) { c.Limits.Entries = 3 }, ErrTooLarge},
		{"space", func(c *Config) { c.Limits.ReserveBytes = 1 << 60 }, ErrNoSpace},
		{"no tool", func(c *Config) { c.MkfsPath = "/nonexistent/mke2fs" }, os.ErrNotExist},
		{"a tool that fails", func(c *Config) { c.MkfsPath = "/bin/false" }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			images := newTrees(t)
			for _, f := range []string{"a", "b", "c", "d"} {
				write(t, filepath.Join(images.dir, f), strings.Repeat("content", 100_000))
			}
			d := newDir(t, func(c *Config) { c.Images = images; tc.change(c) })
			_, err := d.FromImage(t.Context(), "vm-1", sampleImage("app"))
			if err == nil || (tc.want != nil && !errors.Is(err, tc.want)) {
				t.Errorf("FromImage = %v, want %v", err, tc.want)
			}
			requireClean(t, d, 0)
			if users, _ := d.Users(); len(users) != 0 {
				t.Errorf("pinned after a failure: %v", users)
			}
			if ids, _ := images.Mounted(); len(ids) != 0 {
				t.Errorf("mounts stay: %v", ids)
			}
		})
	}
}

// A canceled call kills the program that it runs, and leaves no files.
func TestFromImageIsCanceled(t *testing.T) {
	t.Parallel()
	images := newTrees(t)
	slow := filepath.Join(t.TempDir(), "mke2fs")
	ctx, cancel := context.WithCancel(t.Context())
	started := filepath.Join(t.TempDir(), "started")
	if err := unix.Mkfifo(started, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(slow, []byte("#!/bin/sh\necho > "+started+"\nexec sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	d := newDir(t, func(c *Config) { c.Images, c.MkfsPath = images, slow })
	done := make(chan error, 1)
	go func() {
		_, err := d.FromImage(ctx, "vm-1", sampleImage("app"))
		done <- err
	}()
	if _, err := os.ReadFile(started); err != nil { // blocks until the program runs
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("FromImage = %v, want %v", err, context.Canceled)
	}
	if err := d.Close(); err != nil { // waits for the cleanup
		t.Fatal(err)
	}
	requireClean(t, d, 0)
	if ids, _ := images.Mounted(); len(ids) != 0 {
		t.Errorf("mounts stay: %v", ids)
	}
}

func TestNewRemovesIncompleteImages(t *testing.T) {
	t.Parallel()
	images := newTrees(t)
	write(t, filepath.Join(images.dir, "f"), "x")
	root := filepath.Join(t.TempDir(), "disks")
	write(t, filepath.Join(root, "tmp/new-1/item/root.ext4"), "half")
	images.mounted[mountPrefix+"x"], images.mounted["other.main"] = true, true
	d := newDirAt(t, root, func(c *Config) { c.Images = images })
	requireClean(t, d, 0)
	if ids, _ := images.Mounted(); !cmp.Equal(ids, []string{"other.main"}) {
		t.Errorf("mounted: %v, want only another's", ids)
	}
}

// An instance keeps its image after a restart of the riklet.
func TestCollectKeepsWhatIsPinnedAcrossARestart(t *testing.T) {
	t.Parallel()
	images := newTrees(t)
	write(t, filepath.Join(images.dir, "f"), "x")
	root := filepath.Join(t.TempDir(), "disks")
	d := newDirAt(t, root, func(c *Config) { c.Images = images })
	got, err := d.FromImage(t.Context(), "vm-1", sampleImage("app"))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = newDirAt(t, root, func(c *Config) { c.Images = images })
	if err := d.Collect(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	requireClean(t, d, 1)
	link := filepath.Join(t.TempDir(), "root")
	if err := got.Link(link); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Release("vm-1"), d.Release("vm-1"), d.Collect(t.Context(), 0)); err != nil {
		t.Fatal(err)
	}
	requireClean(t, d, 0)
	requireSound(t, link)
}

func TestWritable(t *testing.T) {
	t.Parallel()
	d := newDir(t, nil)
	path := filepath.Join(t.TempDir(), "scratch")
	for range 2 { // the second replaces the first
		if err := d.Writable(t.Context(), path, 10<<30); err != nil {
			t.Fatal(err)
		}
		requireSound(t, path)
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || st.Size != 10<<30 || st.Blocks*512 > 8<<20 {
			t.Errorf("size %d, %d on the disk, %v; want 10 GiB and next to nothing", st.Size, st.Blocks*512, err)
		}
	}
	if out := ask(t, path, "show_super_stats -h"); !strings.Contains(out, "has_journal") || !strings.Contains(out, "rik-scratch") {
		t.Errorf("the disk has no journal or no label:\n%s", out)
	}
	for _, size := range []int64{MinWritable, MinWritable + 4096, 32 << 20, 511 << 20, 512 << 20} {
		if err := d.Writable(t.Context(), path, size); err != nil {
			t.Errorf("Writable of %d = %v", size, err)
			continue
		}
		requireSound(t, path)
		if out := ask(t, path, "show_super_stats -h"); !strings.Contains(out, "has_journal") {
			t.Errorf("the disk of %d bytes has no journal:\n%s", size, out)
		}
	}
	for _, size := range []int64{-1, 0, MinWritable - 1, 1 << 62} {
		if err := d.Writable(t.Context(), path, size); !errors.Is(err, ErrTooLarge) {
			t.Errorf("Writable of %d = %v, want %v", size, err, ErrTooLarge)
		}
	}
	if err := d.Writable(t.Context(), "relative", 1<<30); err == nil {
		t.Error("a relative path is accepted")
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("other files than the disk: %v, %v", entries, err)
	}
}
