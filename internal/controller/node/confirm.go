package node

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Explain says why a node waits for a confirmation and what confirming does.
func Explain(node string, c *rikv1alpha1.NodeConfirmation) string {
	next := fmt.Sprintf("`rikctl node confirm %s`", node)
	other := ""
	if c.Certificate != "" && c.Reason != rikv1alpha1.ConfirmUnknownNode {
		other = "; this also accepts the node's certificate, of which the cluster has no record"
	}
	switch c.Reason {
	case rikv1alpha1.ConfirmUnknownInstances:
		return fmt.Sprintf("the node runs %d instances that the cluster has no record of, for example after the datastore was restored or lost; they continue to run. "+
			"Restore the right datastore, or let %s stop them%s", c.Instances, next, other)
	case rikv1alpha1.ConfirmOtherCluster:
		return fmt.Sprintf("the node belongs to the cluster %s and refuses the orders of this cluster; its %d instances that this cluster has no record of continue to run. "+
			"Start the server with the datastore of that cluster, or let %s move the node here and stop them%s", c.Cluster, c.Instances, next, other)
	case rikv1alpha1.ConfirmLowerTerm:
		return fmt.Sprintf("the node has accepted a controller of term %d, and this controller has term %d, for example after an older copy of the datastore was restored; "+
			"it refuses all orders. Let %s choose a term above the terms of all nodes%s", c.Term, c.ControllerTerm, next, other)
	case rikv1alpha1.ConfirmUnknownNode:
		return fmt.Sprintf("the node has a certificate of this cluster, which has no record of it, for example after the datastore was restored or lost; it runs %d instances. "+
			"Let %s accept it, or remove it with `rikctl delete node %s`", c.Instances, next, node)
	}
	return "the node waits for " + next
}

// confirmable sets the confirmation that the node waits for in its status, or removes it.
func confirmable(s *rikv1alpha1.NodeStatus, node string, r *Report, now metav1.Time) {
	if !r.Connected || r.Hold == nil {
		s.Confirmation = nil
		meta.RemoveStatusCondition(&s.Conditions, rikv1alpha1.NodeConfirmationNeeded)
		return
	}
	s.Confirmation = r.Hold.DeepCopy()
	set(s, now, rikv1alpha1.NodeConfirmationNeeded, metav1.ConditionTrue, r.Hold.Reason, Explain(node, r.Hold))
}

// announceHold emits an event when a node starts to wait for a confirmation, and when it waits
// for a different one.
func (r *Reconciler) announceHold(before, after *rikv1alpha1.Node) {
	was, is := before.Status.Confirmation, after.Status.Confirmation
	if is == nil || was != nil && was.ID == is.ID {
		return
	}
	r.config.Logger.Warn("a node waits for a confirmation by an operator", "node", after.Name, "reason", is.Reason, "instances", is.Instances)
	r.config.Events.Eventf(after, nil, corev1.EventTypeWarning, rikv1alpha1.NodeConfirmationNeeded, "Watching", "%s", Explain(after.Name, is))
}

// Held is a node that waits for a confirmation.
type Held struct {
	Confirmed    bool
	Confirmation *rikv1alpha1.NodeConfirmation
}

// TermAbove returns the highest term to exceed once an operator has confirmed one of the nodes
// that refuse a lower term. It returns 0 if no node is confirmed. The terms of all confirmed
// nodes count, and those of other nodes that are at most FarTerm above the controller's term.
func TermAbove(ours int64, nodes []Held) int64 {
	var highest, near int64
	for _, n := range nodes {
		c := n.Confirmation
		if c == nil || c.Reason != rikv1alpha1.ConfirmLowerTerm || c.Term < ours {
			continue
		}
		if n.Confirmed {
			highest = max(highest, c.Term)
		}
		if c.Term-ours <= rikv1alpha1.FarTerm {
			near = max(near, c.Term)
		}
	}
	if highest == 0 {
		return 0
	}
	return max(highest, near)
}

// raise switches to a higher term if an operator has confirmed that.
func (r *Reconciler) raise(ctx context.Context) error {
	var nodes []Held
	for _, n := range r.config.Nodes.All() {
		report := r.report(n.Name)
		if report == nil || report.Hold == nil {
			continue
		}
		nodes = append(nodes, Held{
			Confirmation: report.Hold, Confirmed: n.Annotations[rikv1alpha1.AnnotationConfirmed] == report.Hold.ID,
		})
	}
	term := TermAbove(r.config.Term, nodes)
	if term == 0 {
		return nil
	}
	r.config.Logger.Warn("an operator has confirmed a higher term", "ours", r.config.Term, "above", term)
	return r.config.Raise(ctx, term)
}

// settle acts on a confirmation. It removes a confirmation that is no longer needed, so that it
// does not count for a later hold.
func (r *Reconciler) settle(ctx context.Context, n *rikv1alpha1.Node, report *Report) error {
	confirmed, ok := n.Annotations[rikv1alpha1.AnnotationConfirmed]
	switch {
	case !ok || report == nil || !report.Connected:
		return nil
	case report.Hold != nil && report.Hold.Reason == rikv1alpha1.ConfirmLowerTerm && confirmed == report.Hold.ID:
		return r.raise(ctx)
	case report.Hold != nil:
		return nil
	}
	want := n.DeepCopy()
	delete(want.Annotations, rikv1alpha1.AnnotationConfirmed)
	if err := r.config.Client.Patch(ctx, want, client.MergeFrom(n)); err != nil {
		return fmt.Errorf("removing the confirmation of node %q: %w", n.Name, err)
	}
	return nil
}
