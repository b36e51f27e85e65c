package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/multicluster/splitter/loader"
)

const (
	// DefaultWorkers are passes at once. They wait for the kcp most of the time.
	DefaultWorkers = 4
	// DefaultReleaseDelay is how long something is left where nothing seems to need it.
	DefaultReleaseDelay = 2 * time.Second
	// NoTypes among the names of types stands for none.
	NoTypes = "none"
)

// Config is what the controller is made of.
type Config struct {
	// Rest reaches the kcp as a user who may send objects to every cluster. Required; it
	// is not changed.
	Rest *rest.Config
	// Types are divided, as plural.group or plural; all that can be when empty.
	Types []string
	// Workers are how many roots are worked on at once: DefaultWorkers when 0.
	Workers int
	// ReleaseDelay is DefaultReleaseDelay when 0.
	ReleaseDelay time.Duration
	// Logger is slog.Default when nil.
	Logger *slog.Logger
	// Metrics registers the controller's metrics; none when nil.
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

// ValidateTypes reports every name that cannot be one of a type that is divided.
func ValidateTypes(names []string) error {
	var problems []error
	for _, name := range names {
		resource := schema.ParseGroupResource(name)
		switch {
		case name == "" || name != strings.TrimSpace(name):
			problems = append(problems, fmt.Errorf("%q names no type: give plural.group, such as deployments.apps", name))
		case name == NoTypes:
			problems = append(problems, fmt.Errorf("%q stands alone", NoTypes))
		case isFollower(resource):
			problems = append(problems, fmt.Errorf("%s are not divided: they go where they are needed", name))
		}
	}
	return errors.Join(problems...)
}

func (c Config) withDefaults() Config {
	if c.Workers == 0 {
		c.Workers = DefaultWorkers
	}
	if c.ReleaseDelay == 0 {
		c.ReleaseDelay = DefaultReleaseDelay
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// divides says whether a type is among those that were named.
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
