package process

import (
	"context"

	"rik.dev/rik/internal/riklet/archive"
	"rik.dev/rik/internal/riklet/runner/engine"
)

func (f *attempt) fetch(ctx context.Context) (err error) {
	app := f.Instance.Template.App
	f.tree, err = f.e.archives.Get(ctx, f.Instance.UID, archive.Request{Repo: app.Repo, Version: app.Version})
	if err == nil {
		f.Note = engine.ImageNote{Digest: f.tree.Digest}
	}
	return err
}
