package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/image/internal/wire"
	"rik.dev/rik/internal/riklet/mounts"
)

// mountRecord is the file mount.json of a mount. It lists the layers that the mount needs.
type mountRecord struct {
	Reference string
	Chain     []digest.Digest
}

// Names inside the directory of a mount.
const (
	mountFile = "mount.json"
	upperDir  = "upper"
	workDir   = "work"
	rootfsDir = "rootfs"
)

// mountID matches one path component that no tool interprets as an option.
var mountID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Mount stacks the layers of img under a writable directory for id and returns the path of the
// result. A repeated call returns the same path. After a reboot, or an Unmount that kept the
// writable directory, the written files are there again. Written files over another image are
// deleted.
func (s *Store) Mount(ctx context.Context, id string, img *Image) (string, error) {
	release, err := s.lockMount(ctx, id)
	if err != nil {
		return "", err
	}
	defer release()
	rec := mountRecord{Reference: img.Reference}
	if rec.Chain, err = s.chainOf(img.Layers); err != nil {
		return "", fmt.Errorf("mounting %s: %w", id, err)
	}
	rootfs := s.path(mountsDir, id, rootfsDir)
	live, err := isMounted(rootfs)
	if err != nil {
		return "", fmt.Errorf("mounting %s: %w", id, err)
	}
	kept, err := s.reconcile(id, rec, live)
	if err != nil {
		return "", err
	}
	if live {
		return rootfs, nil
	}
	if err := s.claim(id, rec, img.Layers); err != nil {
		return "", fmt.Errorf("mounting %s: %w", id, err)
	}
	if err := s.mountOverlay(id, rec, img.Layers); err != nil {
		err = fmt.Errorf("mounting %s: %w", id, classifySpace(err))
		if !kept {
			err = errors.Join(err, s.discard(id))
		}
		return "", err
	}
	return rootfs, nil
}

// reconcile compares the wanted mount with the existing state for the id, and deletes files that
// were kept from another image. kept reports whether the existing directory can be used.
func (s *Store) reconcile(id string, rec mountRecord, live bool) (kept bool, err error) {
	s.mu.Lock()
	old, known := s.mounts[id]
	s.mu.Unlock()
	if known && slices.Equal(old.Chain, rec.Chain) {
		return true, nil
	}
	if live {
		return false, fmt.Errorf("%w: %s contains %q", ErrMounted, id, old.Reference)
	}
	_, err = os.Lstat(s.path(mountsDir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	// Delete it also if the record is unreadable, because the image under the written files is
	// then unknown.
	return false, s.discard(id)
}

// Written returns the directory of the files that were written over the image mounted for id. It
// exists as long as the mount.
func (s *Store) Written(id string) string { return s.path(mountsDir, id, upperDir) }

// CanMount checks whether the store's file system can hold the files that containers write; see
// mounts.ProbeUpper. It mounts nothing. It fails with ErrUnfitFileSystem.
func (s *Store) CanMount() error {
	err := mounts.ProbeUpper(s.path(tmpDir))
	var unfit *mounts.UnfitError
	if errors.As(err, &unfit) {
		return fmt.Errorf("%w: %w", ErrUnfitFileSystem, unfit)
	}
	return err
}

// claim enters the mount into the table if all its layers still exist. The table protects the
// layers from collection.
func (s *Store) claim(id string, rec mountRecord, layers []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, dir := range layers {
		if _, err := os.Stat(dir); err != nil {
			return fmt.Errorf("%w: %w", ErrNotPresent, err)
		}
	}
	s.mounts[id] = rec
	return nil
}

func (s *Store) mountOverlay(id string, rec mountRecord, layers []string) error {
	dir := s.path(mountsDir, id)
	for _, sub := range []string{upperDir, workDir, rootfsDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	// The root of an overlay has the owner and mode of its upper directory.
	if err := copyRootAttributes(filepath.Join(dir, upperDir), layers[len(layers)-1]); err != nil {
		return err
	}
	// A power failure also ends the mount, so the record need not be synced.
	if err := writeJSON(filepath.Join(dir, mountFile), rec, backgroundWrites); err != nil {
		return err
	}
	lower := slices.Clone(layers)
	slices.Reverse(lower) // overlayfs names the topmost layer first
	// overlayfs ignores the opaque mark of a root, so drop the layers below it here.
	if i := slices.IndexFunc(lower, wire.Opaque); i >= 0 {
		lower = lower[:i+1]
	}
	options := overlayOptions(lower, dir)
	// mount(2) accepts one page minus the NUL.
	if len(options) >= os.Getpagesize() {
		short, closeAll, err := descriptors(lower)
		if err != nil {
			return err
		}
		defer closeAll()
		options = overlayOptions(short, dir)
	}
	// MS_NODEV: no device in a layer, or created in the container, can be opened.
	if err := unix.Mount("overlay", filepath.Join(dir, rootfsDir), "overlay", unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("overlay of %d layers: %w", len(layers), err)
	}
	return nil
}

func overlayOptions(lower []string, dir string) string {
	return "lowerdir=" + strings.Join(lower, ":") +
		",upperdir=" + filepath.Join(dir, upperDir) + ",workdir=" + filepath.Join(dir, workDir)
}

// descriptors returns short names for directories. They are valid until closeAll is called.
func descriptors(dirs []string) (names []string, closeAll func(), err error) {
	var files []*os.File
	closeAll = func() {
		for _, f := range files {
			_ = f.Close()
		}
	}
	for _, dir := range dirs {
		f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		files = append(files, f)
		names = append(names, fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	}
	return names, closeAll, nil
}

func copyRootAttributes(upper, layer string) error {
	fi, err := os.Stat(layer)
	if err != nil {
		return err
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		if err := os.Chown(upper, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	return os.Chmod(upper, fi.Mode())
}

// Unmount removes the mount. Unless keepWritable is set, it also deletes all files written in
// it. If there is no such mount, it does nothing.
func (s *Store) Unmount(ctx context.Context, id string, keepWritable bool) error {
	release, err := s.lockMount(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	rootfs := s.path(mountsDir, id, rootfsDir)
	if err := mounts.Unmount(rootfs); err != nil {
		return fmt.Errorf("unmounting %s: %w", id, err)
	}
	if keepWritable {
		return nil
	}
	return s.discard(id)
}

// discard removes the directory of an id that is not mounted. The rename makes the removal
// atomic; Open completes it after a crash.
func (s *Store) discard(id string) error {
	trash, err := os.MkdirTemp(s.path(tmpDir), "mount-")
	if err != nil {
		return fmt.Errorf("removing mount %s: %w", id, err)
	}
	err = os.Rename(s.path(mountsDir, id), filepath.Join(trash, id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("removing mount %s: %w", id, err), os.Remove(trash))
	}
	s.mu.Lock()
	delete(s.mounts, id)
	s.mu.Unlock()
	if err := os.RemoveAll(trash); err != nil {
		return fmt.Errorf("removing mount %s: %w", id, err)
	}
	return nil
}

// Mounted lists every id of which the store has files: mounted, kept, or left by a crash.
// Unmount accepts all of them.
func (s *Store) Mounted() ([]string, error) {
	entries, err := os.ReadDir(s.path(mountsDir))
	if err != nil {
		return nil, fmt.Errorf("reading the image store: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if mountID.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// loadMounts fills the table after a restart. A mount without a readable record, which a power
// failure can cause, protects no layers, because it is not mounted.
func (s *Store) loadMounts() error {
	names, err := s.Mounted()
	if err != nil {
		return err
	}
	for _, id := range names {
		var rec mountRecord
		if err := readJSON(s.path(mountsDir, id, mountFile), &rec); err != nil {
			s.log.Warn("the record of a mount cannot be read", "instance", id, "err", err)
			continue
		}
		s.mounts[id] = rec
	}
	return nil
}

// lockMount makes calls for the same id run one after the other.
func (s *Store) lockMount(ctx context.Context, id string) (release func(), err error) {
	if !mountID.MatchString(id) {
		return nil, fmt.Errorf("%w: %q", ErrInvalidID, id)
	}
	for {
		s.mu.Lock()
		wait, busy := s.busy[id]
		if !busy {
			mine := make(chan struct{})
			s.busy[id] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.busy, id)
				s.mu.Unlock()
				close(mine)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// chainOf converts the directories of an Image back to chain identifiers. The Image may come
// from a file of the caller, so it accepts nothing else.
func (s *Store) chainOf(layers []string) ([]digest.Digest, error) {
	chain := make([]digest.Digest, len(layers))
	for i, dir := range layers {
		name := filepath.Base(filepath.Dir(dir))
		chain[i] = digest.Digest(strings.Replace(name, "-", ":", 1))
	}
	want, err := s.layerDirs(chain)
	if err != nil || len(layers) == 0 || !slices.Equal(want, layers) {
		return nil, fmt.Errorf("%w: the layers do not belong to an image of this store", ErrNotPresent)
	}
	return chain, nil
}

func isMounted(dir string) (bool, error) {
	live, err := mountinfo.Mounted(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return live, err
}

func classifySpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", wire.ErrNoSpace, err)
	}
	return err
}
