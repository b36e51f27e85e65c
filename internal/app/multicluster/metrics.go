package multicluster

import (
	"github.com/spf13/pflag"

	"rik.dev/rik/internal/multicluster/metrics"
)

// addMetricsFlag adds the flag for the address of the metrics of a command without an API.
func addMetricsFlag(s *pflag.FlagSet, server *metrics.Server) {
	s.StringVar(&server.Address, metrics.Flag, "", "loopback address and port of the metrics, such as 127.0.0.1:9090; every user of this machine can read them; none by default")
}
