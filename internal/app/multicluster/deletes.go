package multicluster

import (
	"github.com/spf13/pflag"

	"rik.dev/rik/internal/multicluster/syncer"
)

// addDeleteFlags adds the flags that limit how many objects a syncer deletes at once.
func addDeleteFlags(s *pflag.FlagSet, limit *syncer.DeleteLimit) {
	s.IntVar(&limit.Count, "max-deletes", syncer.DefaultDeleteCount, "number of deletions of one namespace within --delete-window that need no confirmation; all namespaces together may delete twice as many")
	s.Float64Var(&limit.Fraction, "max-delete-fraction", syncer.DefaultDeleteFraction, "the same as --max-deletes, as a fraction (0 to 1) of all objects in the cluster; the larger one applies")
	s.DurationVar(&limit.Window, "delete-window", syncer.DefaultDeleteWindow, "time window in which deletions are counted")
}
