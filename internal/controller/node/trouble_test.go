package node

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// TestTroublesAreConditions: a node has a condition for each trouble while it reports the
// trouble.
func TestTroublesAreConditions(t *testing.T) {
	t.Parallel()
	n := &rikv1alpha1.Node{}
	at := metav1.NewTime(noon)
	look := func(r *Report, noRange string) map[string]string {
		n.Status = Status(n, r, false, time.Time{}, at)
		networked(&n.Status, noRange, at)
		got := map[string]string{}
		for _, c := range n.Status.Conditions {
			if c.Type != rikv1alpha1.NodeReady && c.Type != rikv1alpha1.NodeDiskPressure {
				got[c.Type] = string(c.Status) + " " + c.Reason + ": " + c.Message
			}
		}
		return got
	}
	broken := report(true)
	broken.Troubles = map[nodestate.TroubleKind]string{
		nodestate.TroubleNetwork: "a clash", nodestate.TroubleNames: "port 53 is taken", nodestate.TroublePorts: "TCP 30080", nodestate.TroubleOverlay: "no packet", nodestate.TroubleImages: "a.tar is damaged",
	}
	all := map[string]string{
		"NetworkUnavailable": "True NetworkNotSetUp: a clash", "NamesUnavailable": "True NameServerNotRunning: port 53 is taken",
		"OverlayUnavailable":   "True PacketsDoNotPass: no packet",
		"PortConflict":         "True PortInUse: TCP 30080",
		"ImageArchivesRefused": "True ArchiveRefused: a.tar is damaged",
	}
	for _, step := range []struct {
		name    string
		report  *Report
		noRange string
		want    map[string]string
	}{
		{"broken", broken, "", all},
		{"broken still", broken, "", all},
		{"silent", report(false), "", all},
		{"whole", report(true), "", map[string]string{}},
		{"without a range", report(true), "none left", map[string]string{"NetworkUnavailable": "True NoPodCIDR: none left"}},
		{"with one", report(true), "", map[string]string{}},
	} {
		if diff := cmp.Diff(step.want, look(step.report, step.noRange)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
	// Two troubles have the same condition, one at a time.
	blocked, stopped := report(true), report(true)
	blocked.Troubles = map[nodestate.TroubleKind]string{nodestate.TroubleNamesBlocked: "a firewall"}
	stopped.Troubles = map[nodestate.TroubleKind]string{nodestate.TroubleNames: "port 53 is taken"}
	for _, step := range []struct {
		report *Report
		want   map[string]string
	}{
		{blocked, map[string]string{"NamesUnavailable": "True QuestionsDoNotArrive: a firewall"}},
		{stopped, map[string]string{"NamesUnavailable": "True NameServerNotRunning: port 53 is taken"}},
		{blocked, map[string]string{"NamesUnavailable": "True QuestionsDoNotArrive: a firewall"}},
		{report(true), map[string]string{}},
	} {
		if diff := cmp.Diff(step.want, look(step.report, "")); diff != "" {
			t.Errorf("%v (-want +got):\n%s", step.report.Troubles, diff)
		}
	}
	if !meta.IsStatusConditionTrue(n.Status.Conditions, rikv1alpha1.NodeReady) {
		t.Error("the node is not Ready")
	}
}

// TestCarries: packets of other nodes do not reach instances on a node without a network.
func TestCarries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		report Report
		want   bool
	}{
		"whole":                  {Report{}, true},
		"without names":          {Report{Troubles: map[nodestate.TroubleKind]string{nodestate.TroubleNames: "no"}}, true},
		"closed ways":            {Report{Troubles: map[nodestate.TroubleKind]string{nodestate.TroubleOverlay: "no"}}, true},
		"a network not set up":   {Report{Troubles: map[nodestate.TroubleKind]string{nodestate.TroubleNetwork: "no"}}, false},
		"loopback of each alone": {Report{NoNetwork: true}, false},
	} {
		if got := c.report.carries(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
