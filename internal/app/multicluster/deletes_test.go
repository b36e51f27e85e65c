package multicluster

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/multicluster/syncer"
)

// TestDeleteFlagsReachTheController tests that the flags of a kcp for deletions reach the
// controller that runs its syncers, and that invalid values are rejected.
func TestDeleteFlagsReachTheController(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args    []string
		want    syncer.DeleteLimit
		refused bool
	}{
		"defaults": {nil, syncer.DeleteLimit{Count: syncer.DefaultDeleteCount, Fraction: syncer.DefaultDeleteFraction, Window: syncer.DefaultDeleteWindow}, false},
		"others": {[]string{"--max-deletes", "7", "--max-delete-fraction", "0.5", "--delete-window", "1h"},
			syncer.DeleteLimit{Count: 7, Fraction: 0.5, Window: time.Hour}, false},
		"more than all": {[]string{"--max-delete-fraction", "1.5"},
			syncer.DeleteLimit{Count: syncer.DefaultDeleteCount, Fraction: 1.5, Window: syncer.DefaultDeleteWindow}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c controllers
			flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
			c.addFlags(flags)
			if err := flags.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			if config := c.clusterConfig(&rest.Config{}); config.Deletes != tc.want {
				t.Errorf("the controller receives %+v, want %+v", config.Deletes, tc.want)
			}
			if err := c.validate(); (err != nil) != tc.refused {
				t.Errorf("validate() = %v, want refused: %v", err, tc.refused)
			}
		})
	}
}
