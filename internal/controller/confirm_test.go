package controller_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// hold makes a node report that it waits for a confirmation, or that it does not if h is nil.
func (c *cluster) hold(name string, h *schedulerv1.Hold) {
	c.scheduler.do(func() {
		c.scheduler.holds[name] = h
		c.scheduler.reportLocked(name, true)
	})
}

func (c *cluster) node(name string) *rikv1alpha1.Node {
	c.Helper()
	n := &rikv1alpha1.Node{}
	if err := c.client.Get(c.Context(), types.NamespacedName{Name: name}, n); err != nil {
		return n
	}
	return n
}

// waits checks the confirmation that the Node shows.
func (c *cluster) waits(name, reason string) {
	c.Helper()
	c.eventually(fmt.Sprintf("node %s shows %q", name, reason), func() string {
		n := c.node(name)
		condition := meta.FindStatusCondition(n.Status.Conditions, rikv1alpha1.NodeConfirmationNeeded)
		ready := meta.FindStatusCondition(n.Status.Conditions, rikv1alpha1.NodeReady)
		switch {
		case ready == nil:
			return "it has no status yet"
		case reason == "" && (condition != nil || n.Status.Confirmation != nil || ready.Status != metav1.ConditionTrue):
			return fmt.Sprintf("%v", n.Status.Conditions)
		case reason != "" && (condition == nil || condition.Reason != reason || n.Status.Confirmation == nil || ready.Status != metav1.ConditionFalse):
			return fmt.Sprintf("%v", n.Status.Conditions)
		}
		return ""
	})
}

// TestHeldNodesShowWhatTheyWaitFor: a Node shows the confirmation that its node waits for. An
// operator's confirmation reaches the scheduler and counts once.
func TestHeldNodesShowWhatTheyWaitFor(t *testing.T) {
	c := start(t, nil, "node-a")
	c.waits("node-a", "")
	c.hold("node-a", &schedulerv1.Hold{Id: "h1", Reason: rikv1alpha1.ConfirmUnknownInstances, Instances: 5})
	c.waits("node-a", rikv1alpha1.ConfirmUnknownInstances)
	c.eventually("an event says it", func() string {
		events := &corev1.EventList{}
		if err := c.client.List(c.Context(), events); err != nil {
			return err.Error()
		}
		for i := range events.Items {
			if events.Items[i].Reason == rikv1alpha1.NodeConfirmationNeeded {
				return ""
			}
		}
		return "there is none"
	})
	change(c, types.NamespacedName{Name: "node-a"}, &rikv1alpha1.Node{}, func(n *rikv1alpha1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, rikv1alpha1.AnnotationConfirmed, "h1")
	})
	c.eventually("the scheduler receives it", func() string {
		var got string
		c.scheduler.do(func() { got = c.scheduler.confirmed["node-a"] })
		if got != "h1" {
			return fmt.Sprintf("it knows %q", got)
		}
		return ""
	})
	c.hold("node-a", nil)
	c.waits("node-a", "")
	c.eventually("the confirmation is forgotten", func() string {
		if got := c.node("node-a").Annotations[rikv1alpha1.AnnotationConfirmed]; got != "" {
			return got
		}
		return ""
	})
	// The event that the node is ready again is the last one. All earlier events have been
	// written by then.
	var said []string
	c.eventually("an event says that the node is ready again", func() string {
		events := &corev1.EventList{}
		if err := c.client.List(c.Context(), events); err != nil {
			return err.Error()
		}
		said = nil
		back := false
		for i := range events.Items {
			e := &events.Items[i]
			back = back || strings.Contains(e.Message, "changed from "+rikv1alpha1.NodeConfirmationNeeded)
			if e.Reason == rikv1alpha1.NodeConfirmationNeeded {
				said = append(said, e.Message)
			}
		}
		if !back {
			return fmt.Sprintf("there are %d events", len(events.Items))
		}
		return ""
	})
	if len(said) != 1 {
		t.Errorf("%d events say that the node waits, want one: %q", len(said), said)
	}
}

// TestALowerTermIsLeftWhenThatIsConfirmed: the controller of a restored datastore continues
// with a term above that of all nodes. A far higher term is used only after it was confirmed.
func TestALowerTermIsLeftWhenThatIsConfirmed(t *testing.T) {
	c := start(t, nil, "near", "nearer", "far")
	c.waits("far", "") // by then the scheduler has the term
	var term int64
	c.scheduler.do(func() { term = c.scheduler.term })
	lower := func(above int64) *schedulerv1.Hold {
		return &schedulerv1.Hold{Id: fmt.Sprint("t", above), Reason: rikv1alpha1.ConfirmLowerTerm, Term: term + above}
	}
	c.hold("near", lower(7))
	c.hold("nearer", lower(3))
	c.hold("far", lower(1_000_000))
	for _, name := range []string{"near", "nearer", "far"} {
		c.waits(name, rikv1alpha1.ConfirmLowerTerm)
	}
	confirm := func(name, id string) {
		change(c, types.NamespacedName{Name: name}, &rikv1alpha1.Node{}, func(n *rikv1alpha1.Node) {
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, rikv1alpha1.AnnotationConfirmed, id)
		})
	}
	above := func(what string, least, most int64) {
		c.eventually(what, func() string {
			var now int64
			c.scheduler.do(func() { now = c.scheduler.term })
			if now <= least || now > most {
				return fmt.Sprintf("the term is %d, want above %d", now, least)
			}
			return ""
		})
	}
	confirm("nearer", "t3")
	above("a term above that of the other near node", term+7, term+1000)
	c.hold("near", nil)
	c.hold("nearer", nil)
	c.waits("near", "")
	confirm("far", "t1000000")
	above("a term above that of the node that was named", term+1_000_000, term+2_000_000)
	c.hold("far", nil)
	c.waits("far", "")
	// A controller that starts later continues above that term.
	c.stop()
	c.run()
	above("a term above all before", term+1_000_001, term+2_000_000)
}

// TestAnUnknownNodeIsShown: an unknown node gets a Node that names the node's certificate.
// Deleting the Node revokes that certificate.
func TestAnUnknownNodeIsShown(t *testing.T) {
	c := start(t, nil, "node-a")
	c.waits("node-a", "")
	var cluster string
	c.scheduler.do(func() {
		cluster = c.scheduler.cluster
		c.scheduler.nodes["lost"] = true
	})
	system := &corev1.Namespace{}
	if err := c.client.Get(c.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil || string(system.UID) != cluster {
		t.Errorf("the scheduler received cluster %q, want the UID of kube-system, %q (%v)", cluster, system.UID, err)
	}
	c.hold("lost", &schedulerv1.Hold{Id: "h1", Reason: rikv1alpha1.ConfirmUnknownNode, Instances: 2, Certificate: "old-uid"})
	c.waits("lost", rikv1alpha1.ConfirmUnknownNode)
	n := c.node("lost")
	if n.Annotations[rikv1alpha1.AnnotationUnconfirmedCertificate] != "old-uid" || n.Status.Confirmation.Certificate != "old-uid" {
		t.Errorf("the Node is %v, want the certificate's UID in it", n)
	}
	if err := c.client.Delete(c.Context(), n); err != nil {
		t.Fatal(err)
	}
	c.scheduler.do(func() { delete(c.scheduler.nodes, "lost") })
	c.eventually("the Node is gone", func() string {
		if c.node("lost").UID == n.UID {
			return "it is there"
		}
		return ""
	})
	c.stop()
	c.scheduler.do(func() { clear(c.scheduler.deleted) })
	c.run()
	c.eventually("the next controller still sends it", func() string {
		out := "it does not"
		c.scheduler.do(func() {
			if c.scheduler.deleted["old-uid"] && c.scheduler.deleted[string(n.UID)] {
				out = ""
			}
		})
		return out
	})
}
