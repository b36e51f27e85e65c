package syncer

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/fencing"
)

// The defaults of a Config.
const (
	DefaultWorkers           = 32
	DefaultHeartbeatInterval = fencing.HeartbeatInterval
)

// Config is the configuration of a [Syncer].
type Config struct {
	// Upstream connects to the kcp, as the cluster's own syncer or a user with the same
	// permissions.
	Upstream *rest.Config
	// Downstream connects to the physical cluster.
	Downstream *rest.Config
	// Cluster is the name of the Cluster upstream.
	Cluster string
	// Types restrict what is copied, as resource.group. If it is empty, all types in the
	// Cluster's status are copied.
	Types []string
	// Workers is how many objects are processed at once. 0 means DefaultWorkers. At most three
	// quarters of them process one type, and half of them one namespace.
	Workers int
	// HeartbeatInterval is the time between heartbeats. 0 means DefaultHeartbeatInterval.
	HeartbeatInterval time.Duration
	// Deletes limits how many objects may be deleted at once.
	Deletes DeleteLimit
	// Logger receives the logs. nil means slog.Default.
	Logger *slog.Logger
	// Metrics registers the metrics. It may be nil. All metrics have the label cluster. They are
	// unregistered when Run ends.
	Metrics prometheus.Registerer
}

// Validate reports every problem.
func (c *Config) Validate() error {
	var errs []error
	if c.Upstream == nil {
		errs = append(errs, errors.New("no configuration for the kcp: give its kubeconfig"))
	}
	if c.Downstream == nil {
		errs = append(errs, errors.New("no configuration for the physical cluster: give its kubeconfig"))
	}
	if why := validation.IsDNS1123Label(c.Cluster); len(why) > 0 {
		errs = append(errs, fmt.Errorf("the cluster's name %q: %s", c.Cluster, why[0]))
	}
	return errors.Join(append(errs, c.Deletes.Validate())...)
}

func (c *Config) setDefaults() {
	if c.Workers <= 0 {
		c.Workers = DefaultWorkers
	}
	if c.HeartbeatInterval <= 0 {
		c.HeartbeatInterval = DefaultHeartbeatInterval
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Deletes.setDefaults()
}
