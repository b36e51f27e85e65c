package disk

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/riklet/progress"
)

// tools are the programs of e2fsprogs. mke2fs has advantages over a library that writes ext4
// from a stream. It reads a mounted image, in which the layers are already merged. It keeps
// owners, hard links, holes and attributes. It also creates the writable disks, and every kernel
// is tested with its file systems.
type tools struct{ mkfs, debugfs string }

// find searches for a program when it is needed, because a node without microVMs needs none.
func find(configured, program string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	// The PATH of a service may lack the directories of administration programs.
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if info, err := os.Stat(filepath.Join(dir, program)); err == nil && info.Mode()&0o111 != 0 {
			return filepath.Join(dir, program), nil
		}
	}
	return "", fmt.Errorf("%w: %s; install the package e2fsprogs", ErrNoTools, program)
}

var (
	errFull = errors.New("the file system is too small")
	errTime = errors.New("creating the block image took too long")
)

// fromTree creates an ext4 image of a tree at path, which must not exist.
func (d *Dir) fromTree(ctx context.Context, tree, path, id string) error {
	ctx, stop := context.WithTimeoutCause(ctx, d.cfg.Limits.Time, fmt.Errorf("%w: the limit is %s", errTime, d.cfg.Limits.Time))
	defer stop()
	m, err := measureTree(ctx, tree, d.cfg.Limits)
	if err != nil {
		return err
	}
	if err := d.checkSpace(filepath.Dir(path), m.blocks*blockSize); err != nil {
		return err
	}
	progress.Of(ctx).Step("", m.blocks*blockSize, func() int64 { return written(path) })
	const attempts = 4
	for attempt := range attempts {
		inodes, size := m.geometry(attempt)
		err = d.populate(ctx, populateRequest{tree: tree, path: path, id: id, inodes: inodes, bytes: size, measure: m})
		if !errors.Is(err, errFull) {
			break
		}
		d.log.Info("the block image needs more space than was measured; it is created again with more", "image", id, "bytes", size)
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("removing the block image, to create it again: %w", err)
		}
	}
	if err != nil {
		return err
	}
	if m.times.lost > 0 {
		d.log.Warn("files in the block image have times in whole seconds only", "image", id, "files", m.times.lost)
	}
	progress.Of(ctx).Step("finishing", 0, nil)
	if err := d.finishTree(ctx, path, m); err != nil {
		return err
	}
	return os.Chmod(path, 0o444)
}

// written returns the number of allocated bytes of a sparse file.
func written(path string) int64 {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return 0
	}
	return st.Blocks * 512 // stat(2)
}

type populateRequest struct {
	tree, path, id string
	inodes, bytes  int64
	measure        measure
}

// populate runs mke2fs -d. The identifiers are derived from the content's, and the time is
// fixed, so that the same content gives nearly the same image everywhere.
func (d *Dir) populate(ctx context.Context, r populateRequest) error {
	uuid := uuidOf(r.id)
	return d.mkfs(ctx, r.path, r.bytes,
		"-N", strconv.FormatInt(r.inodes, 10),
		"-U", uuid,
		"-E", fmt.Sprintf("hash_seed=%s,root_owner=%d:%d,lazy_itable_init=1,nodiscard", uuid, r.measure.uid, r.measure.gid),
		"-L", "rik-root",
		"-d", r.tree)
}

// features are the ext4 features of Debian's mke2fs.conf, without a journal and without the
// ability to grow, because a read-only image needs neither. Writable adds the journal.
const features = "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

// mkfs creates a sparse file with a file system. It ignores the machine's mke2fs.conf.
func (d *Dir) mkfs(ctx context.Context, path string, size int64, args ...string) error {
	program, err := find(d.tools.mkfs, "mke2fs")
	if err != nil {
		return err
	}
	if err := sparse(path, size); err != nil {
		return err
	}
	all := append([]string{"-q", "-F", "-O", features, "-b", strconv.Itoa(blockSize), "-I", strconv.Itoa(inodeSize), "-m", "0"}, args...)
	out, err := run(ctx, program, append(all, path)...)
	switch {
	case err == nil:
		return nil
	case strings.Contains(out, "No space left on device"), strings.Contains(out, "Disk quota exceeded"):
		return fmt.Errorf("%w: creating the file system %s: %s", ErrNoSpace, filepath.Base(path), out)
	case strings.Contains(out, "Could not allocate"):
		return fmt.Errorf("%w: %s", errFull, out)
	}
	return fmt.Errorf("creating an ext4 file system of %d bytes: %w: %s", size, err, out)
}

// finishTree removes lost+found, which the tree does not have. It also sets the mode of the root,
// and the times of files that mke2fs does not copy.
func (d *Dir) finishTree(ctx context.Context, path string, m measure) error {
	program, err := find(d.tools.debugfs, "debugfs")
	if err != nil {
		return err
	}
	script := path + ".debugfs"
	unixMode := uint32(m.mode.Perm()) | syscall.S_IFDIR
	if m.mode&fs.ModeSticky != 0 {
		unixMode |= syscall.S_ISVTX
	}
	if err := os.WriteFile(script, fmt.Appendf(nil, "rmdir lost+found\nset_inode_field / mode 0%o\n%s", unixMode, m.times.script()), 0o600); err != nil {
		return classify(fmt.Errorf("finishing the block image: %w", err))
	}
	out, err := run(ctx, program, "-w", "-f", script, path)
	if err != nil {
		return fmt.Errorf("finishing the block image: %w: %s", err, out)
	}
	return os.Remove(script)
}

// sparse creates a file without allocated blocks.
func sparse(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("creating a disk image: %w", classify(err))
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return fmt.Errorf("creating a disk image of %d bytes: %w", size, classify(err))
	}
	return nil
}

// run runs one of the tools in a new process group, which is killed when ctx ends or the riklet
// dies. The output is only for error messages.
func run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir = "/"
	// FAKE_TIME fixes the times in the file system. It is 1 because 0 means now.
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "MKE2FS_CONFIG=/dev/null", "E2FSPROGS_FAKE_TIME=1", "DEBUGFS_PAGER=__none__"}
	out := excerpt.NewTail(tailBytes)
	cmd.Stdout, cmd.Stderr = out, out
	// Pdeathsig depends on the thread, which Go could otherwise end before the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out.String(), err
}

// tailBytes limits the end of a program's output in an error.
const tailBytes = 1024

// uuidOf derives the UUID of a file system from the identifier of its content.
func uuidOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	sum[6] = sum[6]&0x0f | 0x80 // version 8: custom
	sum[8] = sum[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}
