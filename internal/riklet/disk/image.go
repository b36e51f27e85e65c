package disk

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/progress"
)

// mountPrefix is the prefix of the names of mounts for creating images.
const mountPrefix = "rik-disk-"

// unmountTime is the timeout for the cleanup after a canceled build.
const unmountTime = 30 * time.Second

// FromImage implements Store.
func (d *Dir) FromImage(ctx context.Context, user string, img *image.Image) (*Image, error) {
	if d.cfg.Images == nil {
		return nil, errors.New("this node has no image store, so it cannot create block images")
	}
	sum, err := digest.Parse(img.Digest)
	if err != nil {
		return nil, fmt.Errorf("%w: the image %q has no digest: %w", ErrRefused, img.Reference, err)
	}
	key := imageKey(sum, img.Layers)
	dir, err := d.cache.Take(ctx, user, key, func(ctx context.Context, dir string) error {
		return d.convert(ctx, dir, key, img)
	})
	if err != nil {
		return nil, fmt.Errorf("creating a block image of %s: %w", img.Reference, err)
	}
	out, err := open(dir, img.Digest)
	if err != nil {
		return nil, err
	}
	out.Config = configOf(img.Config)
	return out, nil
}

// buildProgress returns the progress of a block image.
func buildProgress(what string) progress.Progress {
	return progress.Progress{What: "creating the disk image of " + what}
}

// imageKey returns the key of the block image. It includes the layers, because the image of an
// index's digest depends on the platform.
func imageKey(sum digest.Digest, layers []string) string {
	all := make([]string, 0, len(layers)+1)
	all = append(all, sum.String())
	for _, l := range layers {
		all = append(all, filepath.Base(filepath.Dir(l)))
	}
	return "oci-" + digest.FromString(strings.Join(all, "\n")).Encoded()
}

// convert mounts the image's layers as for a container and packs the result.
func (d *Dir) convert(ctx context.Context, dir, key string, img *image.Image) (err error) {
	start := time.Now()
	progress.Of(ctx).Begin(buildProgress(img.Reference))
	// The directory's name makes the ID different from that of any other build, also of the same
	// image.
	id := mountPrefix + key[:16] + "-" + strings.Trim(filepath.Base(filepath.Dir(dir)), ".")
	rootfs, err := d.cfg.Images.Mount(ctx, id, img)
	if err != nil {
		return err
	}
	defer func() {
		clean, stop := context.WithTimeout(context.WithoutCancel(ctx), unmountTime)
		defer stop()
		err = errors.Join(err, d.cfg.Images.Unmount(clean, id, false))
	}()
	if err := d.fromTree(ctx, rootfs, filepath.Join(dir, imageFile), key); err != nil {
		return err
	}
	d.log.Info("block image created", "image", img.Reference, "digest", img.Digest, "duration", time.Since(start))
	return nil
}

func configOf(c v1.ImageConfig) ImageConfig {
	return ImageConfig{
		Entrypoint: slices.Clone(c.Entrypoint), Cmd: slices.Clone(c.Cmd), Env: slices.Clone(c.Env),
		WorkingDir: c.WorkingDir, User: c.User, StopSignal: c.StopSignal,
	}
}
