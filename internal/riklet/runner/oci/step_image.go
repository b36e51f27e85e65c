package oci

import (
	"context"

	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/runner/engine"
)

func (f *attempt) pull(ctx context.Context) error {
	auth, err := f.e.host.PullSecret(ctx, f.Instance)
	if err != nil {
		return err
	}
	f.image, err = f.e.cfg.Images.Pull(ctx, image.PullRequest{Reference: f.Container.Image, Policy: f.Container.ImagePullPolicy, Auth: auth})
	if err != nil {
		return err
	}
	f.Note = engine.ImageNote{Digest: f.image.Digest, StopSignal: f.image.Config.StopSignal}
	_, err = engine.StopSignal(f.Note.StopSignal)
	return err
}
