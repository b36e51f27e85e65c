package syncer

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
)

// Defaults of a Config.
const (
	DefaultWorkers           = 32
	DefaultHeartbeatInterval = 10 * time.Second
)

// Config says what is carried from where to where.
type Config struct {
	// Upstream connects to the kcp, as the cluster's own syncer or one that may as much.
	Upstream *rest.Config
	// Downstream connects to the physical cluster.
	Downstream *rest.Config
	// Cluster is the name of the Cluster upstream.
	Cluster string
	// Types, as resource.group, narrow what is carried. Empty means all that the
	// Cluster's status names.
	Types []string
	// Workers are how many objects are worked on at once: DefaultWorkers by default. At most
	// three quarters of them are of one type, and half of them of one namespace.
	Workers int
	// HeartbeatInterval is DefaultHeartbeatInterval by default.
	HeartbeatInterval time.Duration
	// Deletes bound how many objects may go at once.
	Deletes DeleteLimit
	// Logger is slog.Default by default.
	Logger *slog.Logger
	// Metrics may be nil. Everything that is registered bears the label cluster, and is
	// unregistered when Run ends.
	Metrics prometheus.Registerer
}

// Validate reports everything that is wrong.
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
