package runner

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/state"
)

func TestResolver(t *testing.T) {
	t.Parallel()
	const begin = "# written by rik; changes are lost when the instance ends\nnameserver 10.62.7.1\n"
	const own = "search team-a.rik.local short_names.rik.local"
	const end = "\noptions ndots:2\n"
	long := "nameserver 192.0.2.1\nsearch"
	var all strings.Builder
	for i := range 40 {
		long += fmt.Sprintf(" d%d.example", i)
		if i < 30 {
			fmt.Fprintf(&all, " d%d.example", i)
		}
	}
	cases := []struct{ name, namespace, domain, host, want string }{
		{"all", "team-a", "rik.local", "", begin + own + end},
		{"no domain", "team-a", "", "search corp.example", begin},
		{"hostile namespace", "a\nnameserver 192.0.2.1", "rik.local", "", begin},
		{"host", "team-a", "rik.local", "search corp.example lab.corp.example. .\n", begin + own + " corp.example lab.corp.example" + end},
		{"last line", "team-a", "rik.local", "search a.example\ndomain b.example\n", begin + own + " b.example" + end},
		{"twice", "team-a", "rik.local", "search team-a.rik.local b.example b.example", begin + own + " b.example" + end},
		{"many", "team-a", "rik.local", long, begin + own + all.String() + end},
		{"large", "team-a", "rik.local", "search a.example " + strings.Repeat("x", 2040), begin + own + " a.example" + end},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "resolv.conf")
			if err := os.WriteFile(path, []byte(tc.host), 0o600); err != nil {
				t.Fatal(err)
			}
			got := resolver(instance.Attachment{DNS: netip.MustParseAddr("10.62.7.1"), Domain: tc.domain}, tc.namespace, hostSearch(path))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("resolver() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDrainDelay(t *testing.T) {
	t.Parallel()
	cases := []struct{ configured, grace, want time.Duration }{
		{3 * time.Second, 30 * time.Second, 3 * time.Second},
		{3 * time.Second, 9 * time.Second, 3 * time.Second},
		{3 * time.Second, 6 * time.Second, 2 * time.Second},
		{3 * time.Second, 0, 0},
		{0, time.Minute, 0},
		{-1, time.Minute, 0},
	}
	for _, tc := range cases {
		if got := drainDelay(tc.configured, tc.grace); got != tc.want {
			t.Errorf("drainDelay(%s, %s) = %s, want %s", tc.configured, tc.grace, got, tc.want)
		}
	}
}

// stoppedClock is a clock that the test sets.
type stoppedClock struct {
	systemClock
	now *time.Time
}

func (c stoppedClock) Now() time.Time { return *c.now }

// serving returns a machine whose instance is Running and ready, and its clock, which the test
// sets.
func serving(ports ...rikv1alpha1.Port) (*machine, *time.Time) {
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	d := unopened(Config{DrainDelay: 3 * time.Second, Clock: stoppedClock{now: &now}}.withDefaults())
	m := newMachine(d, state.Record{
		Instance: podOf("u1", rikv1alpha1.RestartAlways, rikv1alpha1.Container{Name: "main", Ports: ports}),
	})
	c := m.rec.Containers["main"]
	c.State, c.StartedAt, c.Begun, c.Ready = rikv1alpha1.ContainerRunning, now, true, true
	m.rec.Containers["main"] = c
	return m, &now
}

func TestStopSignalWaitsForTheConnections(t *testing.T) {
	t.Parallel()
	m, now := serving(rikv1alpha1.Port{Port: 80})
	begin := *now
	m.stop(30 * time.Second)
	if got := m.signalAt.Sub(begin); got != 3*time.Second {
		t.Errorf("the signal is sent after %s, want 3s", got)
	}
	*now = begin.Add(time.Second)
	m.stop(28 * time.Second) // the rest of the grace period, ordered again
	if got := m.signalAt.Sub(begin); got != 3*time.Second {
		t.Errorf("after the same order: %s, want 3s", got)
	}
	m.stop(3 * time.Second)
	if got := m.signalAt.Sub(begin); got != 2*time.Second {
		t.Errorf("after a shorter grace: %s, want 2s", got)
	}
	m.stop(0)
	if got := m.signalAt.Sub(begin); got != time.Second {
		t.Errorf("after no grace: %s, want at once", got)
	}
	if got := m.render(); got.Phase != rikv1alpha1.InstanceDestroying || got.Ready {
		t.Errorf("status = %+v, want Destroying and not ready", got)
	}
}

func TestStopSignalIsSentAtOnceToWhatServesNothing(t *testing.T) {
	t.Parallel()
	m, now := serving()
	m.stop(30 * time.Second)
	if !m.signalAt.Equal(*now) {
		t.Errorf("without ports the signal waits %s", m.signalAt.Sub(*now))
	}
	m, now = serving(rikv1alpha1.Port{Port: 80})
	c := m.rec.Containers["main"]
	c.State = rikv1alpha1.ContainerExited
	m.rec.Containers["main"] = c
	m.stop(30 * time.Second)
	if !m.signalAt.Equal(*now) {
		t.Errorf("when it is not ready the signal waits %s", m.signalAt.Sub(*now))
	}
}

// TestPreparationErrorIsNoFailedStop checks that a preparation failure describes how the instance
// ended, and not an obstacle to its teardown.
func TestPreparationErrorIsNoFailedStop(t *testing.T) {
	t.Parallel()
	m, _ := serving()
	m.prepared, m.trouble, m.reason = false, "another checksum", reasonInvalidImage
	m.finish(outcome{rikv1alpha1.InstanceFailed, m.reason, m.trouble})
	if got := m.render(); got.Reason == reasonStopFailed || got.Message != "" {
		t.Errorf("status = %s: %q before it is taken away", got.Reason, got.Message)
	}
	m.trouble = "the root is busy"
	if got := m.render(); got.Reason != reasonStopFailed || got.Message != "the root is busy" {
		t.Errorf("status = %s: %q, want what keeps it", got.Reason, got.Message)
	}
}
