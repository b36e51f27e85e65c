package microvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/disk"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/progress"
	"rik.dev/rik/internal/riklet/runner/engine"
)

// fetch fetches the root file system of every container, because a VM has all its disks from its
// start.
func (v *sandbox) fetch(ctx context.Context) error {
	v.images = map[string]*disk.Image{}
	return progress.Watch(ctx, v.Report, func(ctx context.Context) error {
		for _, c := range engine.Containers(v.Instance.Template) {
			img, err := v.root(ctx, c)
			if err != nil {
				return fmt.Errorf("container %q: %w", c.Name, err)
			}
			v.images[c.Name] = img
		}
		return nil
	})
}

func (v *sandbox) root(ctx context.Context, c rikv1alpha1.Container) (*disk.Image, error) {
	if f := v.Instance.Template.Function; f != nil && f.Execution.Rootfs != "" {
		return v.e.vm.Disks.FromURL(ctx, v.Instance.UID, disk.URLRequest{URL: f.Execution.Rootfs, SHA256: f.Execution.SHA256})
	}
	auth, err := v.e.host.PullSecret(ctx, v.Instance)
	if err != nil {
		return nil, err
	}
	pulled, err := v.e.images.Pull(ctx, image.PullRequest{Reference: c.Image, Policy: c.ImagePullPolicy, Auth: auth})
	if err != nil {
		return nil, err
	}
	return v.e.vm.Disks.FromImage(ctx, v.Instance.UID, pulled)
}

// findDisk finds the container's disk. The machine has had it since its start.
func (f *attempt) findDisk(context.Context) (err error) {
	if f.vm, err = f.e.note(f.Instance.UID); err != nil {
		return err
	}
	f.root = f.vm.Images[f.Container.Name]
	f.Note = engine.ImageNote{Digest: f.root.Digest, StopSignal: f.root.Config.StopSignal}
	_, err = engine.StopSignal(f.Note.StopSignal)
	return err
}

// readSnapshotNote checks whether the machine can resume from its snapshot.
func (v *sandbox) readSnapshotNote(context.Context) error {
	d, uid := v.dirs, v.Instance.UID
	if err := engine.ReadJSON(d.snapshotFile(uid), &v.was); err != nil {
		return &engine.SnapshotError{Err: err}
	}
	for name, bytes := range v.was.Files {
		info, err := os.Stat(filepath.Join(d.snapshot(uid), name))
		if err == nil && info.Size() != bytes {
			err = fmt.Errorf("%s has %d bytes and had %d", name, info.Size(), bytes)
		}
		if err != nil {
			return &engine.SnapshotError{Err: err}
		}
	}
	scratch, err := stampOf(d.scratch(uid))
	if err == nil && scratch != v.was.Scratch {
		err = errors.New("the microVM's disk has changed since the snapshot")
	}
	if err != nil {
		return &engine.SnapshotError{Err: err}
	}
	return nil
}
