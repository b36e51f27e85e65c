package node

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// reasonNotSetUp is the reason of NetworkUnavailable when the node itself reports it. The other
// cause is a missing address range.
const reasonNotSetUp = "NetworkNotSetUp"

// troubled sets a condition for each trouble that a node reports, and removes the conditions of
// other troubles. A node reports at most one of two troubles that have the same condition.
func troubled(s *rikv1alpha1.NodeStatus, troubles map[nodestate.TroubleKind]string, now metav1.Time) {
	for _, c := range []struct {
		kind            nodestate.TroubleKind
		condition, name string
	}{
		{nodestate.TroubleNetwork, nodestate.NodeNetworkUnavailable, reasonNotSetUp},
		{nodestate.TroubleNames, nodestate.NodeNamesUnavailable, "NameServerNotRunning"},
		{nodestate.TroubleNamesBlocked, nodestate.NodeNamesUnavailable, "QuestionsDoNotArrive"},
		{nodestate.TroubleOverlay, nodestate.NodeOverlayUnavailable, "PacketsDoNotPass"},
		{nodestate.TroublePorts, nodestate.NodePortConflict, "PortInUse"},
		{nodestate.TroubleImages, nodestate.NodeArchivesRefused, "ArchiveRefused"},
	} {
		message, there := troubles[c.kind]
		if there {
			set(s, now, c.condition, metav1.ConditionTrue, c.name, message)
			continue
		}
		if known := meta.FindStatusCondition(s.Conditions, c.condition); known != nil && known.Reason == c.name {
			meta.RemoveStatusCondition(&s.Conditions, c.condition)
		}
	}
}
