package scheduler

import (
	"slices"

	"rik.dev/rik/api/rik/nodestate"
	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// maxTrouble bounds the length of a node's message in bytes. The message becomes that of a
// condition.
const maxTrouble = 1024

// troublesOf returns the troubles of known kinds that a node reported, each kind once.
func troublesOf(sent []*schedulerv1.NodeTrouble) map[nodestate.TroubleKind]string {
	all := map[nodestate.TroubleKind]string{}
	for _, t := range sent {
		if kind := nodestate.TroubleKind(t.Kind); slices.Contains(nodestate.TroubleKinds(), kind) {
			all[kind] = excerpt.Prefix(t.Message, maxTrouble)
		}
	}
	return all
}

// troubles converts troubles to messages for the controller, in a fixed order.
func troubles(all map[nodestate.TroubleKind]string) (sent []*schedulerv1.NodeTrouble) {
	for _, kind := range nodestate.TroubleKinds() {
		if message, there := all[kind]; there {
			sent = append(sent, &schedulerv1.NodeTrouble{Kind: string(kind), Message: message})
		}
	}
	return sent
}
