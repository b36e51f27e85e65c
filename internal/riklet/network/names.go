package network

import (
	"context"
	"net/netip"
	"sync"

	"rik.dev/rik/internal/riklet/network/dns"
	"rik.dev/rik/internal/riklet/network/table"
)

// port of all name servers.
const port = 53

// names is the name server, once it has an address.
type names struct {
	cfg   Config
	table *table.Table

	mu      sync.Mutex
	address netip.Addr
	cancel  context.CancelFunc
	done    chan struct{} // closed when the server has ended
}

// at is where names are answered; invalid before they are.
func (n *names) at() netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.address
}

// serve has the server answer at an address, if it does not already. It is
// called by one goroutine, as stop is.
func (n *names) serve(ctx context.Context, address netip.Addr) error {
	if n.at() == address && !n.ended() {
		return nil
	}
	n.stop()
	server, err := dns.Listen(ctx, dns.Config{
		Listen: netip.AddrPortFrom(address, port), Snapshot: n.table.Snapshot, Resolver: n.cfg.Resolver, Logger: n.cfg.Logger,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Run(ctx); err != nil {
			n.cfg.Logger.Error("names are not answered; it is tried again", "address", address, "err", err)
		}
	}()
	n.mu.Lock()
	n.address, n.cancel, n.done = address, cancel, done
	n.mu.Unlock()
	n.cfg.Logger.Info("names are answered", "address", address)
	return nil
}

func (n *names) ended() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

// stop ends the server, if there is one.
func (n *names) stop() {
	if n.cancel == nil {
		return
	}
	n.cancel()
	<-n.done
	n.mu.Lock()
	n.address, n.cancel, n.done = netip.Addr{}, nil, nil
	n.mu.Unlock()
}
