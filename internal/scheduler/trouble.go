package scheduler

import (
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// maxTrouble bounds a node's message, which becomes that of a condition.
const maxTrouble = 1024

// troublesOf keeps of what a node tells the kinds that are known, each once.
func troublesOf(told []*schedulerv1.NodeTrouble) map[rikv1alpha1.TroubleKind]string {
	all := map[rikv1alpha1.TroubleKind]string{}
	for _, t := range told {
		switch kind := rikv1alpha1.TroubleKind(t.Kind); kind {
		case rikv1alpha1.TroubleNetwork, rikv1alpha1.TroubleNames, rikv1alpha1.TroublePorts:
			all[kind] = strings.ToValidUTF8(t.Message[:min(len(t.Message), maxTrouble)], "")
		}
	}
	return all
}

// troubles are the same for the controller, in a fixed order.
func troubles(all map[rikv1alpha1.TroubleKind]string) (told []*schedulerv1.NodeTrouble) {
	for _, kind := range []rikv1alpha1.TroubleKind{rikv1alpha1.TroubleNetwork, rikv1alpha1.TroubleNames, rikv1alpha1.TroublePorts} {
		if message, there := all[kind]; there {
			told = append(told, &schedulerv1.NodeTrouble{Kind: string(kind), Message: message})
		}
	}
	return told
}
