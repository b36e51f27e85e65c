package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/syncer"
)

// What Config's zero values mean.
const (
	// DefaultPollInterval is how often a cluster is asked for its types and its nodes
	// when it does not say by itself that something changed.
	DefaultPollInterval = time.Minute
	// DefaultProbeInterval is how often a cluster is asked whether it works.
	DefaultProbeInterval = 10 * time.Second
	// DefaultHeartbeatTimeout is four heartbeats of a syncer, which come every 10 s.
	DefaultHeartbeatTimeout = 40 * time.Second
	// DefaultResource is what is synced when nothing is named.
	DefaultResource = "deployments.apps"
)

// Config is what the cluster controller is made of.
type Config struct {
	// Rest reaches the kcp as a user who may do everything and may impersonate the
	// users of syncers. Required.
	Rest *rest.Config
	// Mode is that of Clusters that name none: SyncNone when empty.
	Mode workloadv1alpha1.SyncMode
	// ResourcesToSync are the types, as plural.group or plural, that are imported from
	// clusters and synced to them: DefaultResource when empty. The types that a kcp
	// serves by itself are always imported, to be checked.
	ResourcesToSync []string
	// PollInterval, ProbeInterval and HeartbeatTimeout have the defaults above.
	PollInterval, ProbeInterval, HeartbeatTimeout time.Duration
	// SyncerImage is what an agent in a cluster (mode pull) runs. Without it that mode
	// is refused per Cluster, as ErrorInstallingSyncer.
	SyncerImage string
	// Credentials makes a kubeconfig with which the syncer of a cluster reaches the kcp
	// from outside, as the user system:rik:syncer:<cluster> with the Cluster's UID. Without
	// it mode pull is refused per Cluster. Each call makes new credentials.
	Credentials func(ctx context.Context, cluster string, uid types.UID) (kubeconfig []byte, err error)
	// Deletes bound how many objects may go at once in a cluster whose syncer runs here, or
	// as an agent in it; see [syncer.DeleteLimit] for the defaults.
	Deletes syncer.DeleteLimit
	// Logger is slog.Default when nil.
	Logger *slog.Logger
	// Metrics registers the metrics of the controller and of the syncers that it runs;
	// none when nil.
	Metrics prometheus.Registerer
}

// Validate reports every problem.
func (c *Config) Validate() error {
	var problems []error
	if c.Rest == nil {
		problems = append(problems, errors.New("a connection to the kcp is required"))
	}
	modes := []workloadv1alpha1.SyncMode{"", workloadv1alpha1.SyncPush, workloadv1alpha1.SyncPull, workloadv1alpha1.SyncNone}
	if !slices.Contains(modes, c.Mode) {
		problems = append(problems, fmt.Errorf("sync mode %q: it is push, pull or none", c.Mode))
	}
	if c.PollInterval < 0 || c.ProbeInterval < 0 || c.HeartbeatTimeout < 0 {
		problems = append(problems, errors.New("intervals and timeouts may not be negative"))
	}
	for _, name := range c.ResourcesToSync {
		if problem := neverSynced(schema.ParseGroupResource(name)); problem != "" {
			problems = append(problems, fmt.Errorf("%s cannot be synced: %s", name, problem))
		}
		if name != strings.TrimSpace(name) || name == "" {
			problems = append(problems, fmt.Errorf("%q names no type: give plural.group, such as %s", name, DefaultResource))
		}
	}
	return errors.Join(append(problems, c.Deletes.Validate())...)
}

func (c Config) withDefaults() Config {
	orElse := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	orElse(&c.PollInterval, DefaultPollInterval)
	orElse(&c.ProbeInterval, DefaultProbeInterval)
	orElse(&c.HeartbeatTimeout, DefaultHeartbeatTimeout)
	if c.Mode == "" {
		c.Mode = workloadv1alpha1.SyncNone
	}
	if len(c.ResourcesToSync) == 0 {
		c.ResourcesToSync = []string{DefaultResource}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// modeOf is the mode of a Cluster.
func (c *Config) modeOf(cluster *workloadv1alpha1.Cluster) workloadv1alpha1.SyncMode {
	if cluster.Spec.SyncMode != "" {
		return cluster.Spec.SyncMode
	}
	return c.Mode
}
