package multicluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/cluster"
	"rik.dev/rik/internal/multicluster/metrics"
	"rik.dev/rik/internal/multicluster/negotiation"
	"rik.dev/rik/internal/multicluster/syncer"
)

// errModes has the same text as in the prototype.
var errModes = errors.New("--push-mode and --pull-mode must not be set together")

// controllers are the cluster controller, negotiation and the splitter. They run inside a kcp or
// in a program of their own.
type controllers struct {
	push, pull   bool
	syncerImage  string
	resources    []string
	autoPublish  bool
	threads      int
	pollInterval time.Duration
	deletes      syncer.DeleteLimit
	splitter     splitter
}

func (c *controllers) addFlags(s *pflag.FlagSet) {
	s.BoolVar(&c.push, "push-mode", false, "run the syncers of Clusters without a mode in this process")
	s.BoolVar(&c.pull, "pull-mode", false, "install the syncers of Clusters without a mode in these clusters; with neither flag, you start these syncers yourself")
	s.StringVar(&c.syncerImage, "syncer-image", "", "image of the syncer that is installed in clusters; required for mode pull")
	s.StringSliceVar(&c.resources, "resources-to-sync", []string{cluster.DefaultResource}, "types, as plural.group or plural, that are imported from clusters and synced to them")
	s.BoolVar(&c.autoPublish, "auto-publish-apis", false, "publish every type after its first negotiation")
	s.IntVar(&c.threads, "apiresource-controller-threads", negotiation.DefaultWorkers, "number of types that are negotiated in parallel")
	c.splitter.addFlags(s)
	s.DurationVar(&c.pollInterval, "discovery-poll-interval", cluster.DefaultPollInterval, "interval at which the types of a cluster are read if it does not report changes itself")
	addDeleteFlags(s, &c.deletes)
}

// validate finds invalid flags before anything is opened or created.
func (c *controllers) validate() error {
	var problems []error
	if c.push && c.pull {
		problems = append(problems, errModes)
	}
	if c.threads < 1 {
		problems = append(problems, fmt.Errorf("--apiresource-controller-threads %d: use at least 1", c.threads))
	}
	if c.pollInterval <= 0 {
		problems = append(problems, fmt.Errorf("--discovery-poll-interval %s: use a positive time, such as %s", c.pollInterval, cluster.DefaultPollInterval))
	}
	problems = append(problems, c.splitter.validate())
	if c.pull && !c.push && c.syncerImage == "" {
		problems = append(problems, errors.New("--pull-mode installs syncers in clusters: set their image with --syncer-image"))
	}
	// The result does not depend on the kcp.
	config := c.clusterConfig(&rest.Config{})
	return errors.Join(append(problems, config.Validate())...)
}

func (c *controllers) mode() workloadv1alpha1.SyncMode {
	switch {
	case c.push:
		return workloadv1alpha1.SyncPush
	case c.pull:
		return workloadv1alpha1.SyncPull
	default:
		return workloadv1alpha1.SyncNone
	}
}

func (c *controllers) clusterConfig(kcp *rest.Config) cluster.Config {
	return cluster.Config{
		Rest: kcp, Mode: c.mode(), ResourcesToSync: c.resources, PollInterval: c.pollInterval, SyncerImage: c.syncerImage,
		Deletes: c.deletes,
	}
}

// credentials creates a kubeconfig for the syncer of a cluster. See cluster.Config.
type credentials = func(ctx context.Context, cluster string, uid types.UID) ([]byte, error)

// run works on a kcp until ctx ends. Two runs in one process would use the same metrics, so the
// second one returns an error.
func (c *controllers) run(ctx context.Context, kcp *rest.Config, issue credentials, log *slog.Logger) error {
	registry := &metrics.Scope{Registerer: legacyregistry.Registerer()}
	defer registry.End()
	negotiator, err := negotiation.New(negotiation.Config{
		Rest: kcp, AutoPublish: c.autoPublish, Workers: c.threads,
		Logger: log.With("component", "negotiation"), Metrics: registry,
	})
	if err != nil {
		return err
	}
	config := c.clusterConfig(kcp)
	config.Credentials, config.Logger, config.Metrics = issue, log.With("component", "cluster-controller"), registry
	clusters, err := cluster.New(config)
	if err != nil {
		return err
	}
	split, err := c.splitter.prepare(kcp, log, registry)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return negotiator.Run(ctx) })
	group.Go(func() error { return clusters.Run(ctx) })
	group.Go(func() error { return split(ctx) })
	return group.Wait()
}
