// Package scheduler is the component between the controller and the nodes: it
// chooses a node for every instance, hands orders to the nodes and what they
// see to the controller.
//
// It serves two gRPC services. Scheduler/Sync joins the active controller;
// Worker/Connect joins each node. All state is in memory, in an
// inventory.Inventory: the controller and the nodes rebuild it after a restart.
// An order to run an instance leaves only after the controller has acknowledged
// that the binding is durable.
//
// Nothing here waits for a peer: what is to be sent lies in one outbox per
// stream, in which a newer message takes the place of an older one about the
// same thing, so a slow peer costs memory in proportion to what it knows of, and
// holds up nobody else.
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

// What Config falls back to.
const (
	DefaultHeartbeatInterval = 5 * time.Second
	DefaultNodeTimeout       = 20 * time.Second
)

// Endpoint is a listener of one service and how its peers prove who they are.
type Endpoint struct {
	// Listener is closed by Run.
	Listener net.Listener
	// TLS must demand and verify client certificates. Required unless Trusted.
	TLS *tls.Config
	// Trusted accepts every peer as whom it claims to be. Only for listeners
	// inside the process.
	Trusted bool
}

// Config of a Scheduler.
type Config struct {
	// Controllers and Workers may each have several endpoints (say, one on the
	// network and one inside the process), or none.
	Controllers []Endpoint
	Workers     []Endpoint
	// LegacyController and LegacyWorker serve the published protocol, without
	// encryption or identity, and only when set. For loopback.
	LegacyController net.Listener
	LegacyWorker     net.Listener

	// HeartbeatInterval is what nodes are asked for; 0 is the default.
	HeartbeatInterval time.Duration
	// NodeTimeout is the silence after which a node counts as lost; 0 is the default.
	NodeTimeout time.Duration
	// Placement chooses the strategy and the salt of ties.
	Placement placement.Options

	// Name is told to controllers, for their log.
	Name string
	// Clock is the real one when nil.
	Clock clock.Clock
	// Logger discards when nil.
	Logger *slog.Logger
	// Registry takes the metrics, when set.
	Registry prometheus.Registerer
}

// Validate reports every problem of a configuration.
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
		return errors.New("trusted and TLS exclude each other")
	case e.Trusted && !inProcess(e.Listener.Addr()):
		return fmt.Errorf("trusted is only for listeners inside the process, not for %s", e.Listener.Addr())
	case !e.Trusted && e.TLS == nil:
		return errors.New("TLS is missing")
	case e.TLS != nil && e.TLS.ClientAuth != tls.RequireAndVerifyClientCert:
		return errors.New("TLS must require and verify client certificates")
	}
	return nil
}

// inProcess says whether an address is none that another process could dial.
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
	if heartbeat == 0 {
		heartbeat = DefaultHeartbeatInterval
	}
	if timeout == 0 {
		timeout = DefaultNodeTimeout
	}
	return heartbeat, timeout
}
