package controller

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/multicluster/splitter/follower"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

const (
	// DefaultWorkers is the number of concurrent passes. They mostly wait for the kcp.
	DefaultWorkers = 4
	// DefaultReleaseDelay is how long an object stays in a cluster where nothing seems to need
	// it.
	DefaultReleaseDelay = 2 * time.Second
	// NoTypes as the name of a type selects no types.
	NoTypes = "none"
)

// Config is the configuration of a [Controller].
type Config struct {
	// Rest connects to the kcp as a user who may send objects to every cluster. It is required.
	// New does not change it.
	Rest *rest.Config
	// Types are the types to divide, as plural.group or plural. If it is empty, all possible
	// types are divided.
	Types []string
	// Workers is how many roots are processed at once. 0 means DefaultWorkers.
	Workers int
	// ReleaseDelay is how long an unneeded object stays. 0 means DefaultReleaseDelay.
	ReleaseDelay time.Duration
	// Logger receives the logs. nil means slog.Default.
	Logger *slog.Logger
	// Metrics registers the metrics of the controller. nil means no metrics.
	Metrics prometheus.Registerer
}

// Validate reports every problem.
func (c *Config) Validate() error {
	var problems []error
	if c.Rest == nil {
		problems = append(problems, errors.New("a connection to the kcp is required"))
	}
	if c.Workers < 0 {
		problems = append(problems, fmt.Errorf("the number of workers is negative: %d", c.Workers))
	}
	if c.ReleaseDelay < 0 {
		problems = append(problems, fmt.Errorf("the delay before something is released is negative: %v", c.ReleaseDelay))
	}
	return errors.Join(append(problems, ValidateTypes(c.Types))...)
}

// IsOff reports whether the names select no types. The controller then has nothing to do.
func IsOff(names []string) bool { return slices.Equal(names, []string{NoTypes}) }

// ValidateTypes reports every name that is not the name of a type that can be divided.
func ValidateTypes(names []string) error {
	var problems []error
	for _, name := range names {
		resource := schema.ParseGroupResource(name)
		switch {
		case name == "" || name != strings.TrimSpace(name):
			problems = append(problems, fmt.Errorf("%q is not the name of a type: use plural.group, such as deployments.apps", name))
		case name == NoTypes:
			problems = append(problems, fmt.Errorf("%q stands alone", NoTypes))
		case follower.Is(resource):
			problems = append(problems, fmt.Errorf("%s are not divided: they follow the objects that need them", name))
		}
	}
	return errors.Join(problems...)
}

func (c Config) withDefaults() Config {
	c.Workers = cmp.Or(c.Workers, DefaultWorkers)
	c.ReleaseDelay = cmp.Or(c.ReleaseDelay, DefaultReleaseDelay)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// divides reports whether the configuration includes a type.
func (c *Config) divides(t loader.Type) bool {
	if len(c.Types) == 0 {
		return true
	}
	for _, name := range c.Types {
		if name == t.Resource || name == t.GroupResource().String() {
			return true
		}
	}
	return false
}
