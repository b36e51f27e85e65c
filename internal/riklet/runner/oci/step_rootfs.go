package oci

import (
	"context"
)

func (f *attempt) mount(ctx context.Context) (err error) {
	f.rootfs, err = f.e.cfg.Images.Mount(ctx, f.ID(), f.image)
	return err
}

func (f *attempt) unmount(ctx context.Context) error {
	return f.e.cfg.Images.Unmount(ctx, f.ID(), false)
}
