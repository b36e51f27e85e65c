// Package scheduler is the component between the controller and the nodes. It chooses a node
// for every instance, sends orders to the nodes, and forwards the nodes' observations to the
// controller.
//
// It serves two gRPC services. The active controller calls Scheduler/Sync, and each node calls
// Worker/Connect. All state is in memory, in an inventory.Inventory: the controller and the
// nodes rebuild it after a restart. The scheduler sends an order to run an instance only after
// the controller has acknowledged that the binding is durable.
//
// No code here blocks on a peer. Messages wait in one outbox per stream, in which a newer
// message replaces an older one about the same object. A slow peer therefore costs memory in
// proportion to the number of its objects, and does not delay other peers.
package scheduler

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"rik.dev/rik/internal/scheduler/placement"
)

// Defaults of Config.
const (
	DefaultHeartbeatInterval = 5 * time.Second
	DefaultNodeTimeout       = 20 * time.Second
)

// Endpoint is the listener of one service, with the settings by which peers authenticate.
type Endpoint struct {
	// Listener accepts the connections. Run closes it.
	Listener net.Listener
	// TLS must require and verify client certificates. It is required unless Trusted is set.
	TLS *tls.Config
	// Trusted accepts every peer under the identity that the peer states. It is only for
	// listeners inside the process.
	Trusted bool
}

// Config configures a Scheduler.
type Config struct {
	// Controllers and Workers may each have several endpoints (such as one on the network and one
	// inside the process), or none.
	Controllers []Endpoint
	Workers     []Endpoint
	// LegacyController and LegacyWorker serve the published protocol, which has no encryption and
	// no identities. They are optional and must listen on loopback.
	LegacyController net.Listener
	LegacyWorker     net.Listener

	// HeartbeatInterval is the interval at which nodes must send heartbeats. Zero means the
	// default, or a shorter interval if NodeTimeout is short.
	HeartbeatInterval time.Duration
	// NodeTimeout is the time without a message after which a node is lost. Zero means the
	// default.
	NodeTimeout time.Duration
	// Placement sets the strategy and the salt that decides ties.
	Placement placement.Options

	// Name is sent to controllers, for their log.
	Name string
	// Clock is the real clock when nil.
	Clock clock.Clock
	// Logger discards all messages when nil.
	Logger *slog.Logger
	// Registry registers the metrics. It is optional.
	Registry prometheus.Registerer
}

// Validate reports every problem in a configuration.
func (c *Config) Validate() error {
	var errs []error
	for kind, endpoints := range map[string][]Endpoint{"controllers": c.Controllers, "workers": c.Workers} {
		for i, e := range endpoints {
			if err := e.validate(); err != nil {
				errs = append(errs, fmt.Errorf("%s[%d]: %w", kind, i, err))
			}
		}
	}
	for name, l := range map[string]net.Listener{"legacyController": c.LegacyController, "legacyWorker": c.LegacyWorker} {
		if l != nil && !local(l.Addr()) {
			errs = append(errs, fmt.Errorf("%s: %s is not a loopback address; the published protocol has no identities", name, l.Addr()))
		}
	}
	if c.HeartbeatInterval < 0 || c.NodeTimeout < 0 {
		errs = append(errs, errors.New("heartbeatInterval and nodeTimeout must not be negative"))
	}
	if heartbeat, timeout := c.timing(); timeout <= heartbeat {
		errs = append(errs, fmt.Errorf("nodeTimeout %s must be longer than heartbeatInterval %s", timeout, heartbeat))
	}
	return errors.Join(errs...)
}

func (e *Endpoint) validate() error {
	switch {
	case e.Listener == nil:
		return errors.New("listener is missing")
	case e.Trusted && e.TLS != nil:
		return errors.New("trusted and TLS must not be set together")
	case e.Trusted && !inProcess(e.Listener.Addr()):
		return fmt.Errorf("trusted is only for listeners inside the process, not for %s", e.Listener.Addr())
	case !e.Trusted && e.TLS == nil:
		return errors.New("TLS is missing")
	case e.TLS != nil && e.TLS.ClientAuth != tls.RequireAndVerifyClientCert:
		return errors.New("TLS must require and verify client certificates")
	}
	return nil
}

// inProcess reports whether no other process can dial the address.
func inProcess(a net.Addr) bool {
	switch a.(type) {
	case *net.TCPAddr, *net.UnixAddr:
		return false
	}
	return true
}

func local(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

func (c *Config) timing() (heartbeat, timeout time.Duration) {
	heartbeat, timeout = c.HeartbeatInterval, c.NodeTimeout
	if timeout == 0 {
		timeout = DefaultNodeTimeout
	}
	if heartbeat == 0 {
		// Several heartbeats fit into the timeout, so one or two lost ones do not matter.
		heartbeat = min(DefaultHeartbeatInterval, timeout/4)
	}
	return heartbeat, timeout
}
