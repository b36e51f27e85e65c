// Package simulate runs many riklets in one process that speak the real Worker
// protocol and run nothing. They make a control plane work as hard as real nodes
// would, for benchmarks and for trying out placement.
//
// A simulated node is honest: it obeys the highest term, reports Creating and
// Running for what it is told to run, confirms what it is told to stop, keeps its
// instances over a reconnect and then says again what it has.
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

// Config of a simulation.
type Config struct {
	// Nodes is how many there are. Required.
	Nodes int
	// Prefix of the nodes' names, which continue with a number of five digits.
	// "sim-" when empty.
	Prefix string
	// Dial connects a node to the scheduler; release is called when the node is
	// done with the connection. Nodes may share one where identities allow it.
	// Required.
	Dial func(ctx context.Context, node string) (conn grpc.ClientConnInterface, release func(), err error)
	// Allocatable is what every node offers. Required.
	Allocatable rikv1alpha1.ResourceList
	// Zones spreads the nodes over so many zones; 0 leaves the label out.
	Zones int
	// StartDelay and StopDelay are how long an instance takes to run, and to be
	// gone.
	StartDelay, StopDelay time.Duration
	// RetryDelay is the pause before a node connects anew. A second when 0.
	RetryDelay time.Duration
	// Logger discards when nil.
	Logger *slog.Logger
}

// Validate reports every problem of a configuration.
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

// NodeName is the name of the i-th node, counted from 0.
func (c *Config) NodeName(i int) string {
	prefix := c.Prefix
	if prefix == "" {
		prefix = "sim-"
	}
	return fmt.Sprintf("%s%05d", prefix, i)
}

// Run simulates until ctx ends. Nodes that lose their connection connect anew.
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
