package controller

import "testing"

// Without the flag, a controller skips the election only if no other server can use its datastore.
func TestElects(t *testing.T) {
	t.Parallel()
	for c, want := range map[struct{ elected, shared bool }]bool{{}: false, {elected: true}: true, {shared: true}: true, {true, true}: true} {
		config := Config{LeaderElection: c.elected, SharedDatastore: c.shared}
		if got := config.elects(); got != want {
			t.Errorf("elects() with %+v = %v, want %v", c, got, want)
		}
	}
}
