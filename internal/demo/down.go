package demo

import (
	"context"
	"fmt"
	"os"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/install/layout"
)

// Exists reports whether the cluster has the application, or instances of it that have not ended.
func (d *Demo) Exists(ctx context.Context) (bool, error) {
	var found rikv1alpha1.Workload
	err := d.Client.Get(ctx, types.NamespacedName{Namespace: Namespace, Name: d.Name}, &found)
	if apierrors.IsNotFound(err) {
		left, err := d.instances(ctx)
		return len(left) > 0, err
	}
	found.DeletionTimestamp = nil // Down continues a deletion
	err = d.own(&found, err)
	return err == nil, err
}

// Down deletes the application and its image, and returns when its instances have ended. It is no
// error if there is none.
func (d *Demo) Down(ctx context.Context) error {
	var found rikv1alpha1.Workload
	err := d.Client.Get(ctx, types.NamespacedName{Namespace: Namespace, Name: d.Name}, &found)
	if !apierrors.IsNotFound(err) {
		// A deletion of an earlier Down continues.
		found.DeletionTimestamp = nil
		if err := d.own(&found, err); err != nil {
			return err
		}
		d.say("deleting the workload %s", d.Name)
		if err := d.Client.Delete(ctx, &found); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting the workload %s: %w", d.Name, err)
		}
	}
	if err := d.awaitEnd(ctx); err != nil {
		return err
	}
	_, err = d.RemoveImage()
	return err
}

// awaitEnd waits until no instance of the application is left.
func (d *Demo) awaitEnd(ctx context.Context) error {
	var left []rikv1alpha1.Instance
	var problem error
	err := wait.PollUntilContextTimeout(ctx, interval, d.Timeout, true, func(ctx context.Context) (bool, error) {
		before := len(left)
		left, problem = d.instances(ctx)
		if before == 0 && len(left) > 0 {
			d.say("waiting for the end of %d instances", len(left))
		}
		return problem == nil && len(left) == 0, nil
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case problem != nil:
		return fmt.Errorf("%w after %s: %w", ErrNotRemoved, d.Timeout, problem)
	default:
		return fmt.Errorf("%w after %s:\n%s", ErrNotRemoved, d.Timeout, explain(left))
	}
}

// RemoveImage removes the image, and the directory of images if it is empty then. The default
// directory of images is in the data directory, which is removed too if it is empty. It reports whether there was an image.
func (d *Demo) RemoveImage() (removed bool, err error) {
	_, err = os.Lstat(d.imageDir())
	removed = err == nil
	if err := os.RemoveAll(d.imageDir()); err != nil {
		return false, fmt.Errorf("removing the image: %w", err)
	}
	// An error means that a directory has other files, or is gone.
	_ = os.Remove(d.ImageDir)
	if d.ImageDir == layout.ImageDir {
		_ = os.Remove(layout.DataDir)
	}
	return removed, nil
}
