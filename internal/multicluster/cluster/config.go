package cluster

import (
	"cmp"
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
	"rik.dev/rik/internal/fencing"
	"rik.dev/rik/internal/multicluster/syncer"
)

// The defaults for zero values in a Config.
const (
	// DefaultPollInterval is the interval at which the types and the nodes of a cluster are read
	// if the cluster does not report a change.
	DefaultPollInterval = time.Minute
	// DefaultProbeInterval is the interval at which a cluster is probed.
	DefaultProbeInterval = 10 * time.Second
	// DefaultHeartbeatTimeout is how long a heartbeat of a syncer may be missing. Fences depend on
	// it.
	DefaultHeartbeatTimeout = fencing.HeartbeatTimeout
	// DefaultResource is the type that is synced if the configuration names none.
	DefaultResource = "deployments.apps"
)

// Config is the configuration of a [Controller].
type Config struct {
	// Rest connects to the kcp as a user who may do everything and may impersonate the users of
	// syncers. It is required.
	Rest *rest.Config
	// Mode is the mode of Clusters that do not set one. Empty means SyncNone.
	Mode workloadv1alpha1.SyncMode
	// ResourcesToSync are the types, as plural.group or plural, that are imported from clusters
	// and synced to them. Empty means DefaultResource. The types that every kcp serves are always
	// imported, so that they can be checked.
	ResourcesToSync []string
	// PollInterval, ProbeInterval and HeartbeatTimeout have the defaults above.
	PollInterval, ProbeInterval, HeartbeatTimeout time.Duration
	// SyncerImage is the image of an agent in a cluster (mode pull). Without it, Clusters with
	// that mode get the error ErrorInstallingSyncer.
	SyncerImage string
	// Credentials creates a kubeconfig with which the syncer of a cluster reaches the kcp from
	// outside. Its user is system:rik:syncer:<cluster> with the Cluster's UID. Without it,
	// Clusters with mode pull get an error. Each call creates new credentials.
	Credentials func(ctx context.Context, cluster string, uid types.UID) (kubeconfig []byte, err error)
	// Deletes limits how many objects may be deleted at once in a cluster whose syncer runs in
	// this process or as an agent. See [syncer.DeleteLimit] for the defaults.
	Deletes syncer.DeleteLimit
	// Logger receives the logs. nil means slog.Default.
	Logger *slog.Logger
	// Metrics registers the metrics of the controller and of the syncers that it runs. nil means
	// no metrics.
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
			problems = append(problems, fmt.Errorf("%q is not the name of a type: use plural.group, such as %s", name, DefaultResource))
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
	c.Mode = cmp.Or(c.Mode, workloadv1alpha1.SyncNone)
	if len(c.ResourcesToSync) == 0 {
		c.ResourcesToSync = []string{DefaultResource}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// modeOf returns the mode of a Cluster.
func (c *Config) modeOf(cluster *workloadv1alpha1.Cluster) workloadv1alpha1.SyncMode {
	if cluster.Spec.SyncMode != "" {
		return cluster.Spec.SyncMode
	}
	return c.Mode
}
