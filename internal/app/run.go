package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"rik.dev/rik/internal/apiserver/listener"
	"rik.dev/rik/internal/app/node"
)

// runServer runs a whole cluster in this process.
func runServer(ctx context.Context, f *flags, log *slog.Logger) error {
	if err := f.validate(f.validatePlane, f.validateScheduler, f.validateTogether); err != nil {
		return err
	}
	if !f.noAgent {
		// Check the node first, because that takes only milliseconds.
		if err := f.node.Validate(); err != nil {
			return err
		}
	}
	authority, err := openAuthority(f.control.DataDir, f.control.AcceptKeys)
	if err != nil {
		return err
	}
	brainSettings, planeSettings := f.schedulerSettings(), f.controlPlane()
	planeSettings.Connections = listener.NewConnections(listener.Budget{}, log)
	brainSettings.Connections = planeSettings.Connections
	b, err := newBrain(ctx, brainSettings, false, authority, log)
	if err != nil {
		return discardAuthority(f.control.DataDir, authority, err)
	}
	p, err := newPlane(ctx, planeSettings, authority, b.controllers.dial, log)
	if err != nil {
		return discardAuthority(f.control.DataDir, authority, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return b.run(ctx) })
	group.Go(func() error {
		return p.run(ctx, func(ctx context.Context) error {
			shareConfig(f.control.DataDir, log)
			if f.noAgent {
				return nil
			}
			go markControlPlane(ctx, p.controller.Client(), f.node.NodeName, log)
			return node.Run(ctx, f.node, node.Connections{
				Scheduler:  b.workers.options(),
				Controller: p.local.options(),
				Authority:  authority.Hash(),
			}, log)
		})
	})
	return group.Wait()
}

// runController runs the API server and the controller. The scheduler runs elsewhere.
func runController(ctx context.Context, f *flags, log *slog.Logger) error {
	if err := f.validate(f.validatePlane, f.validateTimeout); err != nil {
		return err
	}
	authority, err := openAuthority(f.control.DataDir, f.control.AcceptKeys)
	if err != nil {
		return err
	}
	address, err := schedulerAddress(f.schedulerURL)
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%w: --scheduler-url: %w", errUsage, err)
	}
	config, leaf, err := clientTLS(ctx, authority, controllerName, host, log)
	if err != nil {
		return err
	}
	dial := func(context.Context) (*grpc.ClientConn, error) {
		return grpc.NewClient(address,
			grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithNoProxy(),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: silence, Timeout: silence}))
	}
	settings := f.controlPlane()
	settings.Connections = listener.NewConnections(listener.Budget{}, log)
	p, err := newPlane(ctx, settings, authority, dial, log)
	if err != nil {
		return discardAuthority(f.control.DataDir, authority, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return leaf.Run(ctx) })
	group.Go(func() error {
		return p.run(ctx, func(context.Context) error {
			shareConfig(f.control.DataDir, log)
			return nil
		})
	})
	return group.Wait()
}

// schedulerAddress parses the SCHEDULER_URL of the published papers. It ignores the scheme,
// because everything without --insecure-legacy uses TLS.
func schedulerAddress(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return "", errors.Join(fmt.Errorf("%w: --scheduler-url %q does not have the form https://localhost:4996", errUsage, raw), err)
	}
	if u.Port() == "" {
		return net.JoinHostPort(u.Hostname(), "4996"), nil
	}
	return u.Host, nil
}
