package network

import (
	"context"
	"net/netip"
	"path/filepath"
	"sync"

	"rik.dev/rik/internal/riklet/network/nameserver"
)

// names is the name server, once it has an address: a process that outlives this one.
type names struct {
	cfg  Config
	lock *netLock
	feed *nameserver.Feed
	look chan<- struct{} // gets a token when the process has ended

	mu      sync.Mutex
	address netip.AddrPort
	cancel  context.CancelFunc
	done    chan struct{} // closed when the process is no longer fed
}

// at is where the process listens; invalid before it does.
func (n *names) at() netip.AddrPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.address
}

// nameServer says which process answers at an address.
func nameServer(cfg Config, lock *netLock, address netip.Addr) nameserver.Config {
	return nameserver.Config{
		Program: cfg.NameServer, Socket: lock.beside("dns"), Log: filepath.Join(cfg.Dir, "dns.log"),
		Settings: nameserver.Settings{Address: netip.AddrPortFrom(address, nameserver.Port), Resolver: cfg.Resolver},
	}
}

// serve has the process answer at an address and feeds it, if that is not so already. It is
// called by one goroutine, as stop is.
func (n *names) serve(ctx context.Context, address netip.Addr) error {
	if n.at().Addr() == address && !n.ended() {
		return nil
	}
	n.stop()
	client, err := nameserver.Ensure(ctx, nameServer(n.cfg, n.lock, address))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer client.Close()
		err := n.feed.Run(ctx, client)
		close(done)
		if err != nil {
			n.cfg.Logger.Warn("the name server's process has ended, or cannot be reached; it is started again", "address", address, "err", err)
			notify(n.look)
		}
	}()
	n.mu.Lock()
	n.address, n.cancel, n.done = client.Address(), cancel, done
	n.mu.Unlock()
	n.cfg.Logger.Info("names are answered", "address", address, "listening", client.Address())
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

// stop no longer feeds the process, which goes on with what it knows.
func (n *names) stop() {
	if n.cancel == nil {
		return
	}
	n.cancel()
	<-n.done
	n.mu.Lock()
	n.address, n.cancel, n.done = netip.AddrPort{}, nil, nil
	n.mu.Unlock()
}
