// Package simulate runs many riklets in one process that use the real Worker protocol and run
// no instances. They put the same load on a control plane as real nodes, for benchmarks and for
// tests of placement.
//
// A simulated node behaves correctly. It accepts the highest term. It reports Creating and
// Running for run orders and confirms stop orders. It keeps its instances across a reconnect
// and reports them again.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Config configures a simulation.
type Config struct {
	// Nodes is the number of nodes. Required.
	Nodes int
	// Prefix starts the nodes' names. A number of five digits follows. The default is "sim-".
	Prefix string
	// Dial connects a node to the scheduler. The node calls release when it no longer uses the
	// connection. Nodes may share a connection if the scheduler's authentication allows it.
	// Required.
	Dial func(ctx context.Context, node string) (conn grpc.ClientConnInterface, release func(), err error)
	// Allocatable is the capacity of every node. Required.
	Allocatable rikv1alpha1.ResourceList
	// Zones is the number of zones over which nodes are spread. Zero omits the label.
	Zones int
	// StartDelay is the time until an instance is Running. StopDelay is the time until a stopped
	// instance is Terminated.
	StartDelay, StopDelay time.Duration
	// RetryDelay is the pause before a node connects again. The default is one second.
	RetryDelay time.Duration
	// Logger discards all messages when nil.
	Logger *slog.Logger
}

// Validate reports every problem in a configuration.
func (c *Config) Validate() error {
	var errs []error
	if c.Nodes < 1 || c.Nodes > 99_999 {
		errs = append(errs, fmt.Errorf("nodes: %d is not between 1 and 99999", c.Nodes))
	}
	if c.Dial == nil {
		errs = append(errs, errors.New("dial is missing"))
	}
	if len(c.Allocatable) == 0 {
		errs = append(errs, errors.New("allocatable is missing"))
	}
	if c.Zones < 0 || c.StartDelay < 0 || c.StopDelay < 0 || c.RetryDelay < 0 {
		errs = append(errs, errors.New("zones and delays must not be negative"))
	}
	return errors.Join(errs...)
}

// NodeName returns the name of the i-th node, counted from 0.
func (c *Config) NodeName(i int) string {
	prefix := c.Prefix
	if prefix == "" {
		prefix = "sim-"
	}
	return fmt.Sprintf("%s%05d", prefix, i)
}

// Run simulates until ctx ends. Nodes that lose their connection connect again.
func Run(ctx context.Context, c Config) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("configuring the simulation: %w", err)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.RetryDelay == 0 {
		c.RetryDelay = time.Second
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range c.Nodes {
		n, err := newNode(&c, i)
		if err != nil {
			return err
		}
		group.Go(func() error { return n.run(ctx) })
	}
	return group.Wait()
}
