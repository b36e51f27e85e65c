package node

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Reasons why an instance cannot stay on its node.
const (
	ReasonGone        = "NodeGone"
	ReasonUnreachable = "NodeUnreachable"
	ReasonTainted     = "NodeTainted"
)

// Disposition is what happens to an instance because of its node.
type Disposition struct {
	// Lost means that the instance is to be replaced and removed. Reason says why.
	Lost   bool
	Reason string
	// Again is the time until Disposition should be called again. Zero means at the next change.
	Again time.Duration
}

// situation is the input of dispositionOf.
type situation struct {
	node *rikv1alpha1.Node
	// silent means that the scheduler reported the node as lost in the current session.
	silent, paused bool
	tolerations    []rikv1alpha1.Toleration
	replaceAfter   time.Duration
	now            time.Time
}

func dispositionOf(s situation) Disposition {
	if s.node == nil || s.node.DeletionTimestamp != nil {
		return Disposition{Lost: true, Reason: ReasonGone}
	}
	for i := range s.node.Spec.Taints {
		t := &s.node.Spec.Taints[i]
		if t.Effect == rikv1alpha1.TaintNoExecute && !t.Tolerated(s.tolerations) {
			return Disposition{Lost: true, Reason: ReasonTainted}
		}
	}
	if !s.silent || s.paused {
		return Disposition{}
	}
	ready := meta.FindStatusCondition(s.node.Status.Conditions, rikv1alpha1.NodeReady)
	if ready == nil || ready.Reason != reasonSilent {
		// The condition with the start of the time is being written.
		return Disposition{Again: s.replaceAfter}
	}
	left := ready.LastTransitionTime.Add(s.replaceAfter).Sub(s.now)
	if left > 0 {
		return Disposition{Again: left}
	}
	return Disposition{Lost: true, Reason: ReasonUnreachable}
}
