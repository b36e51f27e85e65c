package renewal_test

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/multicluster/syncer/renewal"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

// TestMayRenew tests one syncer over time.
func TestMayRenew(t *testing.T) {
	t.Parallel()
	r := renewal.Renewals{Trust: 15 * time.Second}
	may := func(seconds float64, want bool, when string) {
		t.Helper()
		if got := r.May(at(seconds)); got != want {
			t.Errorf("%s: May = %v, want %v", when, got, want)
		}
	}
	may(0, false, "at the start")
	r.Settled(at(0))
	may(0, false, "settled before a heartbeat was accepted")
	r.Beaten(at(1), at(2), false)
	may(2, false, "in touch, and not settled")
	r.Settled(at(1.5))
	may(2, false, "a look that began before the answer came")
	r.Settled(at(2))
	may(2, true, "in touch and settled")
	may(15.9, true, "just before the trust ends")
	may(16, false, "when the trust ends")
	r.Beaten(at(15), at(15.5), false)
	may(29, true, "after the next heartbeat")
	if r.MustSettle(at(29)) {
		t.Error("it has to settle without an interruption")
	}
	r.Beaten(at(40), at(40.5), false)
	may(41, false, "after a gap")
	if !r.MustSettle(at(41)) {
		t.Error("it has not to settle after a gap")
	}
	r.Settled(at(41))
	may(41, true, "settled after a gap")
	r.Beaten(at(45), at(45.5), true)
	may(46, false, "called silent")
	r.Beaten(at(47), at(47.5), false)
	may(48, false, "no longer called silent")
	r.Settled(at(48))
	may(48, true, "settled again")
	r.Beaten(at(30), at(49), false)
	may(61.9, true, "an older heartbeat takes nothing back")
	r.Cut()
	may(50, false, "cut")
}

func TestPace(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		shortest     time.Duration
		acknowledged bool
		running      time.Duration
		want         time.Duration
	}{
		{10 * time.Second, true, time.Hour, time.Second},
		{30 * time.Second, false, 0, 3 * time.Second},
		{time.Hour, true, time.Hour, renewal.Patient},
		{time.Millisecond, true, time.Hour, time.Second},
		{0, false, 0, time.Second},
		{0, true, 0, renewal.Patient},
		{0, false, time.Minute, renewal.Patient},
	} {
		if got := renewal.Pace(tc.shortest, tc.acknowledged, tc.running); got != tc.want {
			t.Errorf("Pace(%v, %v, %v) = %v, want %v", tc.shortest, tc.acknowledged, tc.running, got, tc.want)
		}
	}
}

// TestAcknowledgement tests what the syncer reports about a cluster.
func TestAcknowledgement(t *testing.T) {
	t.Parallel()
	type step struct {
		seconds float64
		do      func(*renewal.Acknowledgement, time.Time)
		want    renewal.Verdict
	}
	see := func(challenge string) func(*renewal.Acknowledgement, time.Time) {
		return func(a *renewal.Acknowledgement, now time.Time) { a.Observe(challenge, now) }
	}
	answer := func(a *renewal.Acknowledgement, _ time.Time) { a.Answered() }
	fail := func(a *renewal.Acknowledgement, now time.Time) { a.Failed(now) }
	behind := func(a *renewal.Acknowledgement, now time.Time) { a.Behind(true, now) }
	for name, steps := range map[string][]step{
		"somebody sets challenges": {
			{0, see("a"), renewal.Undecided}, {1, answer, renewal.Undecided}, {2, see("b"), renewal.Fences},
			// the syncer did not answer, so no new challenge is due
			{1000, see("b"), renewal.Fences},
		},
		"an old cluster": {
			{0, see(""), renewal.Undecided}, {29, see(""), renewal.Undecided}, {31, see(""), renewal.Mute},
		},
		"a dead controller": {
			{0, see("a"), renewal.Undecided}, {1, answer, renewal.Undecided}, {2, see("b"), renewal.Fences}, {3, answer, renewal.Fences},
			{4, see("b"), renewal.Fences}, {20, see("b"), renewal.Fences}, {35, see("b"), renewal.Mute}, {36, see("c"), renewal.Fences},
		},
		"a syncer that stood still": {
			{0, see("a"), renewal.Undecided}, {1, answer, renewal.Undecided}, {2, see("b"), renewal.Fences}, {3, answer, renewal.Fences},
			{1000, see("b"), renewal.Fences}, {1001, see("c"), renewal.Fences},
		},
		"a lease that cannot be had": {
			{0, see("a"), renewal.Undecided}, {2, see("b"), renewal.Fences},
			{3, fail, renewal.Fences}, {20, fail, renewal.Fences}, {34, fail, renewal.Unreachable}, {35, see("b"), renewal.Fences},
		},
		"a cluster that cannot be brought to what the kcp wants": {
			{0, see("a"), renewal.Undecided}, {2, see("b"), renewal.Fences}, {3, behind, renewal.Fences}, {20, behind, renewal.Fences}, {34, behind, renewal.Stuck},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var a renewal.Acknowledgement
			for i, s := range steps {
				s.do(&a, at(s.seconds))
				if got := a.Verdict(at(s.seconds), at(s.seconds).Sub(start)); got != s.want {
					t.Errorf("step %d, after %v s: the verdict is %d, want %d", i, s.seconds, got, s.want)
				}
			}
		})
	}
}

const (
	upstream   = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: team, uid: u1, annotations: {workloads.kcp.dev/fence-after: 30s}}, spec: {replicas: 2}}`
	downstream = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: kcp-x, generation: 3, annotations: {workloads.kcp.dev/fence-after: 30s, workloads.kcp.dev/upstream-uid: u1}}, spec: {replicas: 2}, status: {observedGeneration: 3}}`
)

// TestBehind tests what prevents the renewal of a Lease after a disconnection.
func TestBehind(t *testing.T) {
	t.Parallel()
	change := func(text, old, with string) string { return strings.Replace(text, old, with, 1) }
	for name, tc := range map[string]struct {
		up, down string
		yields   bool
		want     string
	}{
		"the same":                     {up: upstream, down: downstream},
		"fewer downstream":             {up: upstream, down: change(downstream, "replicas: 2", "replicas: 1")},
		"more downstream":              {up: change(upstream, "replicas: 2", "replicas: 0"), down: downstream, want: "2 replicas and should have 0"},
		"more, and the cluster's say":  {up: upstream, down: change(downstream, "replicas: 2", "replicas: 5"), yields: true},
		"not there downstream":         {up: upstream},
		"gone upstream":                {down: downstream, want: "should have 0"},
		"gone upstream, and at 0":      {down: change(downstream, "replicas: 2", "replicas: 0")},
		"another one upstream":         {up: change(upstream, "u1", "u2"), down: downstream, want: "should have 0"},
		"being deleted upstream":       {up: change(upstream, "uid: u1", "uid: u1, deletionTimestamp: '2026-01-02T03:04:05Z'"), down: downstream, want: "should have 0"},
		"deleted upstream, yielded":    {up: change(upstream, "uid: u1", "uid: u1, deletionTimestamp: '2026-01-02T03:04:05Z'"), down: downstream, yields: true, want: "should have 0"},
		"not observed":                 {up: upstream, down: change(downstream, "observedGeneration: 3", "observedGeneration: 2"), want: "has not been looked at"},
		"never observed":               {up: upstream, down: change(downstream, "observedGeneration: 3", "phase: New"), want: "has not been looked at"},
		"the default of replicas is 1": {up: change(upstream, "replicas: 2", "a: 1"), down: change(downstream, "replicas: 2", "a: 1")},
		"no fence":                     {up: change(upstream, "workloads.kcp.dev/fence-after: 30s", "a: b"), down: change(change(downstream, "workloads.kcp.dev/fence-after: 30s, ", ""), "replicas: 2", "replicas: 5")},
		"a fence that is new upstream": {up: upstream, down: change(change(downstream, "workloads.kcp.dev/fence-after: 30s, ", ""), "replicas: 2", "replicas: 5"), want: "should have 2"},
		"somebody else's downstream":   {down: change(downstream, ", workloads.kcp.dev/upstream-uid: u1", "")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := renewal.Behind(parse(t, tc.up), parse(t, tc.down), func(_, _ *unstructured.Unstructured) bool { return tc.yields })
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("Behind = %q, want %q", got, tc.want)
			}
		})
	}
}

func parse(t *testing.T, text string) []unstructured.Unstructured {
	t.Helper()
	if text == "" {
		return nil
	}
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var o unstructured.Unstructured
	if err := o.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return []unstructured.Unstructured{o}
}
