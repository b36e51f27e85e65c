package microvm

import (
	"context"

	"rik.dev/rik/internal/riklet/shim"
)

func (f *attempt) start(ctx context.Context) error {
	env, err := f.e.host.Environment(ctx, f.Instance, f.Address, f.Container)
	if err != nil {
		return err
	}
	p, err := guestProcess(f.Instance.Template, f.Container, f.root, env, f.vm.Config.Hostname, f.Node.PIDs)
	if err != nil {
		return err
	}
	err = f.Start(ctx, shim.Start{Guest: &p})
	if err != nil {
		EndIfSilent(ctx, f.Node, f.Instance.UID, f.Supervisor)
	}
	return err
}
