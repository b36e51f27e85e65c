package app

import "testing"

// Without the flag, a controller skips the election only if its datastore is in the data
// directory, which is locked.
func TestElects(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]bool{
		"": false, "sqlite://": false, "sqlite:///srv/rik.db": true,
		"https://a:2379,https://b:2379": true, "postgres://rik@db/rik": true, "mysql://rik@tcp(db)/rik": true,
	} {
		if got := (ControlPlane{DatastoreEndpoint: endpoint}).elects(); got != want {
			t.Errorf("a controller on %q takes part in an election: %v, want %v", endpoint, got, want)
		}
		if !(ControlPlane{DatastoreEndpoint: endpoint, LeaderElection: true}).elects() {
			t.Errorf("a controller on %q with --leader-elect takes part in no election", endpoint)
		}
	}
}
