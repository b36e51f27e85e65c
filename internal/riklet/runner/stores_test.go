package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"rik.dev/rik/internal/riklet/image"
)

// Stores with the test's image, made once. Unpacking the image and converting it to a disk is
// most of the cost of a node's first instance. Nodes get hard links to these files. That is safe,
// because stores replace their files and never write into them.
var (
	madeImages = sync.OnceValue(func() error {
		images, err := openImages(tools.dir)
		if err != nil {
			return err
		}
		_, err = images.Pull(context.Background(), image.PullRequest{Reference: tools.image})
		return errors.Join(err, images.Close())
	})
	madeDisks = sync.OnceValue(func() error {
		// Use separate images, because the others are linked into nodes at the same time.
		dir := filepath.Join(tools.dir, "maker")
		if err := errors.Join(os.Mkdir(dir, 0o700), linkStore(dir, "images", madeImages)); err != nil {
			return err
		}
		images, err := openImages(dir)
		if err != nil {
			return err
		}
		disks, err := openDisks(tools.dir, images)
		if err != nil {
			return errors.Join(err, images.Close())
		}
		const user = "nobody"
		img, err := images.Pull(context.Background(), image.PullRequest{Reference: tools.image})
		if err == nil {
			_, err = disks.FromImage(context.Background(), user, img)
		}
		return errors.Join(err, disks.Release(user), disks.Close(), images.Close())
	})
)

// linkStore links a prepared store into a node's directory.
func linkStore(dir, store string, made func() error) error {
	if err := made(); err != nil {
		return fmt.Errorf("making %s for all tests: %w", store, err)
	}
	if out, err := exec.Command("cp", "-al", filepath.Join(tools.dir, store), dir).CombinedOutput(); err != nil {
		return fmt.Errorf("giving a node its %s: %w: %s", store, err, out)
	}
	// A lock belongs to the file, whatever its name.
	return os.Remove(filepath.Join(dir, store, "lock"))
}

// bare removes the prepared stores from a node, so that the node unpacks and converts by itself.
func (n *node) bare() *node {
	n.Helper()
	for _, store := range []string{"images", "disks"} {
		if err := os.RemoveAll(filepath.Join(n.dir, store)); err != nil {
			n.Fatal(err)
		}
	}
	return n
}
