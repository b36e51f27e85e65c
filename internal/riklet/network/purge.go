package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/riklet/network/nameserver"
	"rik.dev/rik/internal/riklet/network/netmap"
	"rik.dev/rik/internal/riklet/network/overlay"
	"rik.dev/rik/internal/riklet/network/proxy"
)

// Purge removes everything that a stopped node created for its network: the name server, rules,
// routes to other nodes, the bridge, and its directory. If the directory does not exist, the node
// never had a network, and Purge leaves the networks of other nodes alone.
func Purge(ctx context.Context, cfg Config) error {
	if _, err := os.Stat(cfg.Dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	lock, err := lock(ctx)
	if err != nil {
		return fmt.Errorf("removing the node's network: %w", err)
	}
	defer func() { _ = lock.release() }()
	links, err := bridge.New(bridge.DefaultName)
	if err != nil {
		return err
	}
	rules, err := proxy.New(proxy.Config{
		Logger: cfg.Logger, Netmap: func() *netmap.Snapshot { return nil }, Facts: func() proxy.Facts {
			return proxy.Facts{Node: cfg.Node, Links: []string{bridge.DefaultName, overlay.Device}}
		}, Changed: make(chan struct{}), Created: lock.siblingPath("tables"),
	})
	if err != nil {
		return errors.Join(err, links.Close())
	}
	ended := nameserver.Remove(ctx, lock.siblingPath("dns"))
	// The rules first: they refer to devices that are removed next.
	err = errors.Join(ended, rules.Remove(ctx))
	_, removed := overlay.Apply(overlay.Plan{})
	if err := errors.Join(err, removed, links.Remove(ctx), links.Close()); err != nil {
		return fmt.Errorf("removing the node's network: %w", err)
	}
	return os.RemoveAll(cfg.Dir)
}
