package node

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// reasonNotSetUp is that of NetworkUnavailable when the node says it, and not the lack of
// a range of addresses.
const reasonNotSetUp = "NetworkNotSetUp"

// troubled has a condition for each trouble that a node tells of, and none for others.
func troubled(s *rikv1alpha1.NodeStatus, troubles map[rikv1alpha1.TroubleKind]string, now metav1.Time) {
	for _, c := range []struct {
		kind            rikv1alpha1.TroubleKind
		condition, name string
	}{
		{rikv1alpha1.TroubleNetwork, rikv1alpha1.NodeNetworkUnavailable, reasonNotSetUp},
		{rikv1alpha1.TroubleNames, rikv1alpha1.NodeNamesUnavailable, "NameServerNotRunning"},
		{rikv1alpha1.TroublePorts, rikv1alpha1.NodePortConflict, "PortInUse"},
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
