package app

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/authority"
	"rik.dev/rik/internal/scheduler/simulate"
	"rik.dev/rik/internal/scheduler/simulate/admission"
)

// simulation holds the flags of rik simulate.
type simulation struct {
	nodes, zones int
	scheduler    string
	capacity     admission.Capacity
	delay        time.Duration
}

func simulateCommand() *cobra.Command {
	f := newFlags()
	var s simulation
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Join many simulated nodes, which use the real protocol and run nothing",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return withLog(&f, func(log *slog.Logger) error {
				if err := f.validate(s.validate); err != nil {
					return err
				}
				return s.run(c.Context(), f.control.DataDir, log)
			})
		},
	}
	f.common(c.Flags())
	c.Flags().IntVar(&s.nodes, "nodes", 10, "number of nodes")
	c.Flags().IntVar(&s.zones, "zones", 0, "number of zones over which the nodes are spread")
	c.Flags().StringVar(&s.scheduler, "scheduler", "127.0.0.1:4995", "address of the scheduler for nodes")
	c.Flags().StringVar(&s.capacity.CPU, "cpu", "32", "cores of each node")
	c.Flags().StringVar(&s.capacity.Memory, "memory", "256Gi", "memory of each node")
	c.Flags().StringVar(&s.capacity.Disk, "disk", "1Ti", "disk of each node")
	c.Flags().Int64Var(&s.capacity.Instances, "instances", 250, "maximum number of instances on each node")
	c.Flags().DurationVar(&s.delay, "start-delay", 0, "time until an instance runs")
	return c
}

func (s *simulation) validate() []error {
	var problems []error
	if _, _, err := net.SplitHostPort(s.scheduler); err != nil {
		problems = append(problems, fmt.Errorf("--scheduler: %w", err))
	}
	if s.nodes < 1 {
		problems = append(problems, fmt.Errorf("--nodes %d: use at least 1", s.nodes))
	}
	return append(problems, notNegative("--start-delay", s.delay)...)
}

func (s *simulation) run(ctx context.Context, dataDir string, log *slog.Logger) error {
	allocatable, err := s.capacity.Allocatable()
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	// Do this before authority.Open, which would create a missing authority.
	api, err := admission.Administrator(filepath.Join(dataDir, apiserver.KubeconfigFile))
	if err != nil {
		return err
	}
	ca, err := authority.Open(dataDir, false)
	if err != nil {
		return err
	}
	cluster := &admission.Cluster{API: api, Authority: ca, Scheduler: s.scheduler}
	log.Info("simulating", "nodes", s.nodes, "scheduler", s.scheduler)
	return simulate.Run(ctx, simulate.Config{
		Nodes:       s.nodes,
		Zones:       s.zones,
		Allocatable: allocatable,
		StartDelay:  s.delay,
		Logger:      log,
		Dial:        cluster.Dial,
	})
}
