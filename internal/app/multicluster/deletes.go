package multicluster

import (
	"github.com/spf13/pflag"

	"rik.dev/rik/internal/multicluster/syncer"
)

// addDeleteFlags adds the flags that limit how many objects a syncer deletes at once.
func addDeleteFlags(s *pflag.FlagSet, limit *syncer.DeleteLimit) {
	s.IntVar(&limit.Count, "max-deletes", syncer.DefaultDeleteCount, "deletions within --delete-window that need no go-ahead")
	s.Float64Var(&limit.Fraction, "max-delete-fraction", syncer.DefaultDeleteFraction, "as --max-deletes, as a part of all objects in the cluster; the larger counts")
	s.DurationVar(&limit.Window, "delete-window", syncer.DefaultDeleteWindow, "time within which deletions are counted")
}
