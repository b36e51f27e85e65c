package runner

import (
	"context"
	"errors"

	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim"
)

func (b *build) supervisor(ctx context.Context) error {
	d, uid := b.d, b.Instance.UID
	c, err := shim.Run(ctx, shim.Spawn{
		Binary: d.cfg.Shim, Socket: d.paths.Socket(uid), Log: d.paths.ShimLog(uid), HostNetwork: b.Instance.Template.HostNetwork,
		Settings: shim.Settings{Hostname: engine.Hostname(b.Instance), Loopback: !b.Instance.Template.HostNetwork, Cgroups: d.shims},
	})
	if err != nil {
		return err
	}
	b.Supervisor = c
	return nil
}

func (b *build) endSupervisor(ctx context.Context) error {
	c, err := shim.Connect(ctx, b.d.paths.Socket(b.Instance.UID))
	if errors.Is(err, shim.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	termCtx, cancel := context.WithTimeout(ctx, engine.EndTimeout)
	defer cancel()
	if err := c.Shutdown(termCtx); err == nil {
		return nil
	}
	killCtx, cancel := context.WithTimeout(ctx, engine.EndTimeout)
	defer cancel()
	return c.Kill(killCtx)
}
