package network

import (
	"context"
	"net/netip"
	"path/filepath"
	"sync"

	"rik.dev/rik/internal/riklet/network/nameserver"
	"rik.dev/rik/internal/wakeup"
)

// names controls the name server, once it has an address. The name server is a process that
// outlives this one.
type names struct {
	cfg  Config
	lock *netLock
	feed *nameserver.Feed
	look wakeup.Signal // set when the process has ended

	mu      sync.Mutex
	address netip.AddrPort
	cancel  context.CancelFunc
	done    chan struct{} // closed when the process no longer gets the netmap
}

// at returns where the name server listens. It is invalid before that.
func (n *names) at() netip.AddrPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.address
}

// nameServer returns the configuration of the name server for an address.
func nameServer(cfg Config, lock *netLock, address netip.Addr) nameserver.Config {
	return nameserver.Config{
		Program: cfg.NameServer, Socket: lock.siblingPath("dns"), Log: filepath.Join(cfg.Dir, "dns.log"),
		Settings: nameserver.Settings{Address: netip.AddrPortFrom(address, nameserver.Port), Resolver: cfg.Resolver},
	}
}

// serve makes the process answer at an address and sends it the netmap, unless that is already
// so. serve and stop must be called by the same goroutine.
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
			n.cfg.Logger.Warn("the name server has ended or does not answer; starting it again", "address", address, "err", err)
			n.look.Wake()
		}
	}()
	n.mu.Lock()
	n.address, n.cancel, n.done = client.Address(), cancel, done
	n.mu.Unlock()
	n.cfg.Logger.Info("the name server is ready", "address", address, "listening", client.Address())
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

// stop stops sending the netmap to the process. The process continues with its last netmap.
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
