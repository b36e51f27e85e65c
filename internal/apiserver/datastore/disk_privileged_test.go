package datastore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/apiserver/datastore/datastoretest"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/privileged"
)

// onDisk are the kinds of datastores with files of their own. Database servers are among them only
// in the long form of the tests, because they need a minute to recover.
func onDisk() []datastoretest.Kind {
	return slices.DeleteFunc(datastoretest.Kinds(), func(k datastoretest.Kind) bool {
		return k.In == nil || !privileged.Long() && k.SQL && k.Name != "SQLite"
	})
}

// mounted mounts a file system for the test.
func mounted(t *testing.T, kind, options string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rikdisk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := unix.Mount(kind, dir, kind, 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill uses up all free space of a file system.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for block := make([]byte, 1<<16); err == nil; {
		if _, err = file.Write(block); err != nil && len(block) > 1<<12 {
			block, err = block[:1<<12], nil
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// TestPrivilegedAFullDisk: while the disk of a datastore is full, writes fail or wait. All
// acknowledged writes are there when it has space again, although the server or the database may
// have ended.
func TestPrivilegedAFullDisk(t *testing.T) {
	privileged.Require(t)
	for _, kind := range onDisk() {
		t.Run(kind.Name, func(t *testing.T) {
			disk := mounted(t, "tmpfs", "size=400m")
			dir := filepath.Join(disk, "data")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			b := kind.In(t, dir)
			host := b.Host(t)
			config := load
			config.Bytes = 20000
			l := datastoretest.StartLoad(t, datastoretest.Connect(t, host.Endpoint(t)), config)
			more(t, l, 100)
			for range rounds(1, 5) {
				free := fill(t, disk)
				// etcd writes into space that it has reserved before. The load fills that.
				refused := l.Refused()
				poll.Until(t, 2*time.Minute, "a write fails", func(context.Context) error {
					if l.Refused() == refused {
						return errors.New("all writes succeed")
					}
					return nil
				})
				begin := l.Refused()
				time.Sleep(2 * time.Second)
				if n := l.Refused() - begin; n > 2000 {
					t.Errorf("%d writes failed in 2 s on a full disk: they are tried again without a pause", n)
				}
				free()
				for _, s := range b.Servers {
					// Some databases end on a full disk. Their service would start them again.
					s.Kill()
					s.Start(t)
				}
				select {
				case <-host.Done():
					t.Log("the server ended while the disk was full")
					host.Start(t)
				case <-time.After(time.Second):
				}
				more(t, l, 100)
			}
			t.Logf("%d writes acknowledged, %d failed", l.Finish(t), l.Refused())
		})
	}
}

// slowFile waits before it synchronizes.
type slowFile struct {
	*fs.LoopbackFile
	delay time.Duration
}

// Fsync implements fs.FileFsyncer.
func (f slowFile) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	time.Sleep(f.delay)
	return f.LoopbackFile.Fsync(ctx, flags)
}

// PassthroughFd implements fs.FilePassthroughFder: the kernel must not bypass Fsync.
func (slowFile) PassthroughFd() (int, bool) { return 0, false }

// slowNode is a file or directory of a slow disk.
type slowNode struct {
	fs.LoopbackNode
	delay time.Duration
}

func (n *slowNode) slow(fh fs.FileHandle) fs.FileHandle {
	if file, ok := fh.(*fs.LoopbackFile); ok {
		return slowFile{file, n.delay}
	}
	return fh
}

// Open implements fs.NodeOpener.
func (n *slowNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	fh, out, errno := n.LoopbackNode.Open(ctx, flags)
	return n.slow(fh), out, errno
}

// Create implements fs.NodeCreater.
func (n *slowNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	inode, fh, open, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return inode, n.slow(fh), open, errno
}

// WrapChild implements fs.NodeWrapChilder.
func (n *slowNode) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	if node, ok := ops.(*fs.LoopbackNode); ok {
		return &slowNode{fs.LoopbackNode{RootData: node.RootData}, n.delay}
	}
	return ops
}

// slowDisk mounts a directory whose files take a time to synchronize.
func slowDisk(t *testing.T, delay time.Duration) string {
	t.Helper()
	if file, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("this machine has no FUSE: %v", err)
	} else if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	at, below := t.TempDir(), t.TempDir()
	root, err := fs.NewLoopbackRoot(below)
	if err != nil {
		t.Fatal(err)
	}
	node, ok := root.(*fs.LoopbackNode)
	if !ok {
		t.Fatalf("the root is a %T", root)
	}
	slow := &slowNode{fs.LoopbackNode{RootData: node.RootData}, delay}
	node.RootData.RootNode = slow // paths are relative to it
	server, err := fs.Mount(at, slow, &fs.Options{
		MountOptions: fuse.MountOptions{AllowOther: true, DirectMountStrict: true, FsName: "rik-slow", Name: "rik-slow"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	})
	return at
}

// TestPrivilegedASlowDisk: nothing is lost on a disk that needs 200 ms to synchronize, also when the
// server is killed.
func TestPrivilegedASlowDisk(t *testing.T) {
	privileged.Require(t)
	for _, kind := range onDisk() {
		t.Run(kind.Name, func(t *testing.T) {
			dir := filepath.Join(slowDisk(t, 200*time.Millisecond), "data")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			host := kind.In(t, dir).Host(t)
			config := load
			config.Timeout = 30 * time.Second
			l := datastoretest.StartLoad(t, datastoretest.Connect(t, host.Endpoint(t)), config)
			for range rounds(1, 5) {
				more(t, l, 20)
				host.Kill()
				host.Start(t)
			}
			more(t, l, 20)
			t.Logf("%d writes acknowledged, %d failed", l.Finish(t), l.Refused())
		})
	}
}
