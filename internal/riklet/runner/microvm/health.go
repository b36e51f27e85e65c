package microvm

import (
	"context"
	"errors"
	"syscall"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/shim"
)

// Answers returns an error only if the guest is silent. A guest that returns an error, or is too
// busy for another request, still works.
func (e *machines) Answers(ctx context.Context, uid string) error {
	if err := e.guest(uid).Health(ctx); ctx.Err() != nil {
		return err
	}
	return nil
}

// Kill ends the VMM.
func (*machines) Kill(ctx context.Context, client *shim.Client) error { return killVMM(ctx, client) }

func killVMM(ctx context.Context, client *shim.Client) error {
	ctx, cancel := context.WithTimeout(ctx, engine.EndTimeout)
	defer cancel()
	if err := client.Signal(ctx, engine.VMM, syscall.SIGKILL); !errors.Is(err, shim.ErrGone) {
		return err
	}
	return nil
}

// EndIfSilent ends the VMM of a guest that does not answer within Node.HealthTimeout. It is called
// after a start has failed, and does not depend on the end of ctx. The machine is then replaced,
// and the next attempt uses a machine that works.
func EndIfSilent(ctx context.Context, node engine.Node, uid string, supervisor *shim.Client) {
	ctx = context.WithoutCancel(ctx)
	asking, cancel := context.WithTimeout(ctx, node.HealthTimeout)
	defer cancel()
	if guest.New(shim.GuestOpener(GuestSocket(node.Paths, uid))).Health(asking) == nil {
		return
	}
	node.Logger.Warn("a guest does not answer; its VMM is killed", "instance", uid)
	if err := killVMM(ctx, supervisor); err != nil {
		node.Logger.Warn("killing a VMM failed", "instance", uid, "err", err)
	}
}
