package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/mounts"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
)

func (b *build) directories(context.Context) error {
	d, uid := b.d, b.Instance.UID
	if err := b.ownRunDir(); err != nil {
		return err
	}
	for _, dir := range []string{
		filepath.Dir(d.paths.ExitFile(uid, "x")), filepath.Dir(d.paths.LogDir(uid, "x")),
	} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	hosts, resolv := spec.Hosts(engine.Hostname(b.Instance), ""), "# this instance has only its loopback device\n"
	if b.Instance.Template.HostNetwork { // use the same files as the node
		resolv = engine.ReadOr(d.cfg.Resolver, resolv)
		hosts = engine.ReadOr("/etc/hosts", spec.Hosts(engine.Hostname(b.Instance), d.cfg.Node.Address))
	}
	// Containers may write to these files. The files are in a separate file system, so that
	// containers cannot fill the space of other instances or of the node.
	room := podFileBytes + roundUp(len(hosts)) + roundUp(len(resolv))
	if err := mounts.Tmpfs(d.paths.PodFile(uid, ""), fmt.Sprintf("mode=0755,nr_inodes=%d", podFileInodes), room, unix.MS_NOEXEC); err != nil {
		return err
	}
	if err := b.files(hosts, resolv); err != nil {
		return err
	}
	// The container's user must be able to enter this directory. Only root can enter its parent.
	return os.Chmod(d.paths.PodFile(uid, ""), 0o755)
}

// ownRunDir mounts a separate file system at the instance's run directory. Thus an instance that
// fills its directory, for example with objects of many keys, does not affect other instances. A
// directory that already has files in it is used as it is.
func (b *build) ownRunDir() error {
	dir := b.d.paths.RunDir(b.Instance.UID)
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return nil
	}
	return mounts.Tmpfs(dir, fmt.Sprintf("mode=0700,nr_inodes=%d", engine.RunDirInodes), engine.RunDirBytes, 0)
}

// Limits of the files that containers see in their /etc, in addition to the size of the files
// that the node writes. The resolv.conf and hosts files of an instance have some hundred bytes.
// Those of the node may be large.
const (
	podFileBytes  = 256 << 10
	podFileInodes = 16
)

// roundUp rounds a size up to whole pages.
func roundUp(bytes int) int64 {
	page := int64(os.Getpagesize())
	return (int64(bytes) + page - 1) / page * page
}

// files writes the files that containers see in their /etc.
func (b *build) files(hosts, resolv string) error {
	texts := map[string]string{"hosts": hosts, "hostname": engine.Hostname(b.Instance) + "\n", "resolv.conf": resolv}
	for name := range texts { // containers may have filled the whole file system
		if err := os.Truncate(b.d.paths.PodFile(b.Instance.UID, name), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for name, text := range texts {
		if err := os.WriteFile(b.d.paths.PodFile(b.Instance.UID, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (b *build) removeDirectories(context.Context) error {
	if err := mounts.Unmount(b.d.paths.PodFile(b.Instance.UID, "")); err != nil {
		return err
	}
	dir := b.d.paths.RunDir(b.Instance.UID)
	if err := mounts.Clear(dir); err != nil { // refuses while something else is mounted in it
		return err
	}
	if err := mounts.Unmount(dir); err != nil {
		return err
	}
	return mounts.RemoveAll(dir)
}
