package process

import "rik.dev/rik/internal/riklet/mounts"

// releaseFiles releases the archive of an App that is removed. The step rootfs mounts its files.
func (e *apps) releaseFiles(uid string) error {
	if err := mounts.Unmount(e.appDir(uid)); err != nil {
		return err
	}
	if e.archives == nil {
		return nil
	}
	return e.archives.Release(uid)
}
