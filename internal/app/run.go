package app

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/authority"
	"rik.dev/rik/internal/apiserver/listener"
	"rik.dev/rik/internal/apiserver/userconfig"
	"rik.dev/rik/internal/app/node"
	controllernode "rik.dev/rik/internal/controller/node"
	"rik.dev/rik/internal/controller/scheduling"
	"rik.dev/rik/internal/sdnotify"
)

// runServer runs a whole cluster in this process.
func runServer(ctx context.Context, f *flags, log *slog.Logger) error {
	if err := f.validate(f.validatePlane, f.validateScheduler, f.validateTogether, f.validateSeveral); err != nil {
		return err
	}
	if !f.noAgent {
		// Check the node first, because that takes only milliseconds.
		if err := f.node.Validate(); err != nil {
			return err
		}
	}
	if err := f.restore.Run(ctx, f.controlPlane().server(log)); err != nil {
		return err
	}
	if err := f.joinCluster(ctx, log); err != nil {
		return err
	}
	ca, err := authority.Open(f.control.DataDir, f.control.AcceptKeys)
	if err != nil {
		return err
	}
	schedulerSettings, planeSettings := f.schedulerSettings(), f.controlPlane()
	planeSettings.Connections = listener.NewConnections(listener.Budget{}, log)
	planeSettings.Steps = newSteps(sdnotify.Of(ctx), log)
	defer planeSettings.Steps.stop()
	schedulerSettings.Connections = planeSettings.Connections
	b, err := newSchedulerServer(ctx, schedulerSettings, false, ca, log)
	if err != nil {
		return authority.Discard(f.control.DataDir, ca, err)
	}
	p, err := newPlane(ctx, planeSettings, ca, b.controllers.dial, log)
	if err != nil {
		return authority.Discard(f.control.DataDir, ca, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return b.run(ctx) })
	group.Go(func() error {
		return p.run(ctx, func(ctx context.Context) error {
			userconfig.Share(filepath.Join(f.control.DataDir, apiserver.RIKConfigFile), log)
			if f.noAgent {
				return nil
			}
			go controllernode.MarkControlPlane(ctx, p.controller.Client(), f.node.NodeName, log)
			return p.runNode(ctx, f.node, node.Connections{
				Scheduler:  b.workers.options(),
				Controller: p.local.options(),
				Authority:  ca.Hash(),
			})
		})
	})
	return group.Wait()
}

// runController runs the API server and the controller. The scheduler runs elsewhere.
func runController(ctx context.Context, f *flags, log *slog.Logger) error {
	if err := f.validate(f.validatePlane, f.validateTimeout); err != nil {
		return err
	}
	if err := f.restore.Run(ctx, f.controlPlane().server(log)); err != nil {
		return err
	}
	ca, err := authority.Open(f.control.DataDir, f.control.AcceptKeys)
	if err != nil {
		return err
	}
	address, err := scheduling.ParseAddress(f.schedulerURL)
	if err != nil {
		return fmt.Errorf("%w: --scheduler-url %w", errUsage, err)
	}
	config, leaf, err := ca.ClientTLS(ctx, rikv1alpha1.UserController, address.Host, log)
	if err != nil {
		return err
	}
	dial := scheduling.Dialer(address, config)
	settings := f.controlPlane()
	settings.Connections = listener.NewConnections(listener.Budget{}, log)
	settings.Steps = newSteps(sdnotify.Of(ctx), log)
	defer settings.Steps.stop()
	p, err := newPlane(ctx, settings, ca, dial, log)
	if err != nil {
		return authority.Discard(f.control.DataDir, ca, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return leaf.Run(ctx) })
	group.Go(func() error {
		return p.run(ctx, func(context.Context) error {
			userconfig.Share(filepath.Join(f.control.DataDir, apiserver.RIKConfigFile), log)
			return nil
		})
	})
	return group.Wait()
}
