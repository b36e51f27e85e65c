package manager

import (
	"fmt"
	"strings"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance/instancefake"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// send sends a complete list of a cluster.
func (n *node) send(cluster string, term int64, gone []string, uids ...string) {
	n.t.Helper()
	list := &schedulerv1.Allowed{Gone: gone}
	for _, uid := range uids {
		list.Instances = append(list.Instances, runOf(uid, "r1"))
	}
	n.order(&schedulerv1.Order{Term: term, Cluster: cluster, Message: &schedulerv1.Order_Allowed{Allowed: list}})
}

// sendRestored sends a complete list of a cluster that was restored from a backup.
func (n *node) sendRestored(cluster string, term int64, uids ...string) {
	n.t.Helper()
	list := &schedulerv1.Allowed{KeepUnknown: true}
	for _, uid := range uids {
		list.Instances = append(list.Instances, runOf(uid, "r1"))
	}
	n.order(&schedulerv1.Order{Term: term, Cluster: cluster, Message: &schedulerv1.Order_Allowed{Allowed: list}})
}

// with runs instances by the list of a cluster.
func (n *node) with(cluster string, term int64, uids ...string) {
	n.t.Helper()
	n.send(cluster, term, nil, uids...)
	n.deliver()
	n.wantRunning(uids...)
}

func (n *node) confirm(id string) {
	n.t.Helper()
	n.order(&schedulerv1.Order{Message: &schedulerv1.Order_Confirmed{Confirmed: &schedulerv1.Confirmed{Id: id}}})
}

func (n *node) wantHold(reason string, instances int32) *schedulerv1.Hold {
	n.t.Helper()
	hold := n.manager.Hold()
	if hold.GetReason() != reason || hold.GetInstances() != instances {
		n.t.Fatalf("the node waits for %v, want %q with %d instances", hold, reason, instances)
	}
	return hold
}

// The number of unknown instances that stop without a confirmation.
func TestShareStoppedWithoutConfirmation(t *testing.T) {
	for _, c := range []struct {
		unknown, all int
		many         bool
	}{{0, 0, false}, {0, 5, false}, {1, 1, true}, {1, 3, true}, {1, 4, false}, {2, 4, true}, {5, 5, true}, {25, 100, false}, {26, 100, true}} {
		if got := tooMany(c.unknown, c.all); got != c.many {
			t.Errorf("tooMany(%d, %d) = %v, want %v", c.unknown, c.all, got, c.many)
		}
	}
}

// An empty datastore sends an empty list. Nothing stops, new work still starts, and a restart of
// the riklet changes nothing. Only the confirmation with the right ID stops the instances.
func TestAnEmptyListStopsNothingUnconfirmed(t *testing.T) {
	bubble(t, instancefake.Config{}, func(_ *testing.T, n *node) {
		n.with("c1", 1, "a", "b", "c", "d", "e")
		n.send("c1", 2, nil)
		n.wantRunning("a", "b", "c", "d", "e")
		n.stop()
		n.boot(instancefake.Config{})
		n.send("c1", 3, nil, "f")
		n.deliver()
		n.wantRunning("a", "b", "c", "d", "e", "f")
		hold := n.wantHold(rikv1alpha1.ConfirmUnknownInstances, 5)
		n.confirm("something else")
		n.wantRunning("a", "b", "c", "d", "e", "f")
		n.confirm(hold.GetId())
		n.wantRunning("f")
		n.wantHold("", 0)
	})
}

// When the datastore is restored, the hold ends. No instance was stopped or started again.
func TestConfirmedListReleasesTheHold(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.with("c1", 1, "a", "b")
		n.send("c1", 2, nil)
		first := n.wantHold(rikv1alpha1.ConfirmUnknownInstances, 2).GetId()
		// One of them ends by a separate order: the hold keeps its ID.
		n.order(&schedulerv1.Order{Term: 2, Cluster: "c1", Message: &schedulerv1.Order_Stop{Stop: &schedulerv1.StopOrder{Uid: "b"}}})
		n.send("c1", 2, nil)
		if again := n.wantHold(rikv1alpha1.ConfirmUnknownInstances, 1).GetId(); again != first {
			t.Errorf("the id changed from %s to %s with fewer instances", first, again)
		}
		n.send("c1", 3, nil, "a")
		n.wantHold("", 0)
		n.wantRunning("a")
		if n.host.Starts("a") != 1 {
			t.Errorf("a was started %d times, want once", n.host.Starts("a"))
		}
	})
}

// Deleted instances stop at once, however many there are, because the cluster has a record of
// their deletion.
func TestDeletedInstancesNeedNoConfirmation(t *testing.T) {
	bubble(t, instancefake.Config{}, func(_ *testing.T, n *node) {
		n.with("c1", 1, "a", "b", "c")
		n.send("c1", 2, []string{"a", "b", "c"})
		n.wantRunning()
		n.wantHold("", 0)
		n.with("c1", 2, "d", "e")
		n.order(&schedulerv1.Order{Term: 2, Cluster: "c1", Message: &schedulerv1.Order_Dismissed{Dismissed: &schedulerv1.Dismissed{}}})
		n.wantRunning()
	})
}

// Every order of another cluster is refused until an operator moves the node.
func TestAnotherClusterIsRefused(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.with("c1", 7, "a", "b")
		n.send("c2", 1, []string{"a"}, "x")
		n.order(&schedulerv1.Order{Term: 9, Cluster: "c2", Message: &schedulerv1.Order_Stop{Stop: &schedulerv1.StopOrder{Uid: "a"}}})
		n.order(&schedulerv1.Order{Term: 9, Cluster: "c2", Message: &schedulerv1.Order_Dismissed{Dismissed: &schedulerv1.Dismissed{}}})
		n.order(&schedulerv1.Order{Term: 9, Cluster: "c2", Message: &schedulerv1.Order_Run{Run: runOf("y", "r1")}})
		n.deliver()
		n.wantRunning("a", "b")
		hold := n.wantHold(rikv1alpha1.ConfirmOtherCluster, 1)
		if hold.GetCluster() != "c1" || n.checkpoints.Term() != 7 {
			t.Errorf("hold %v and term %d, want the own cluster and its term", hold, n.checkpoints.Term())
		}
		n.confirm(hold.GetId())
		if n.moved != 1 {
			t.Errorf("the node registers again %d times, want once: its term was of the other cluster", n.moved)
		}
		n.send("c2", 1, []string{"a"}, "x")
		n.deliver()
		n.wantRunning("x")
		n.wantHold("", 0)
		// The node now belongs to the other cluster, also after a restart.
		n.stop()
		n.boot(instancefake.Config{})
		n.send("c1", 8, nil)
		n.wantRunning("x")
		n.wantHold(rikv1alpha1.ConfirmOtherCluster, 1)
		n.send("c2", 1, nil, "x")
		n.wantHold("", 0)
	})
}

// A node that does not know its cluster's identity yet does not adopt that of an empty cluster.
// It adopts the right one when it returns.
func TestClusterIdentityIsSavedWithAnAppliedList(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.with("", 1, "a", "b")
		n.send("empty", 2, nil)
		n.wantHold(rikv1alpha1.ConfirmUnknownInstances, 2)
		n.send("right", 3, nil, "a", "b")
		n.wantHold("", 0)
		if n.checkpoints.Cluster() != "right" {
			t.Errorf("the node belongs to %q, want right", n.checkpoints.Cluster())
		}
	})
}

// A restored cluster continues from an older term. The node reports that, and obeys again when
// the term is higher than the last one.
func TestALowerTermIsReported(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.with("c1", 41, "a")
		n.send("c1", 38, nil)
		n.wantRunning("a")
		hold := n.wantHold(rikv1alpha1.ConfirmLowerTerm, 0)
		if hold.GetTerm() != 41 {
			t.Errorf("hold %v, want the node's term", hold)
		}
		n.confirm(hold.GetId()) // the controller must handle this
		n.wantHold(rikv1alpha1.ConfirmLowerTerm, 0)
		n.send("c1", 42, nil, "a", "b")
		n.deliver()
		n.wantRunning("a", "b")
		n.wantHold("", 0)
	})
}

// A node that joined another cluster on purpose stops the instances of the former cluster.
func TestAMoveByJoiningNeedsNoConfirmation(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		if _, err := n.checkpoints.SetCluster([]string{"authority 1"}); err != nil {
			t.Fatal(err)
		}
		n.with("c1", 1, "a", "b", "c")
		if moved, err := n.checkpoints.SetCluster([]string{"authority 2"}); err != nil || !moved {
			t.Fatalf("Belong() = %v, %v, want a move", moved, err)
		}
		n.send("c2", 1, nil, "d")
		n.deliver()
		n.wantRunning("d")
		n.send("c2", 1, nil)
		n.wantHold(rikv1alpha1.ConfirmUnknownInstances, 1)
		time.Sleep(time.Minute)
		n.settle()
		n.wantRunning("d")
	})
}

// One lost record among many does not mean that the datastore is lost.
func TestAFewUnknownInstancesStop(t *testing.T) {
	bubble(t, instancefake.Config{}, func(_ *testing.T, n *node) {
		var uids []string
		for i := range 8 {
			uids = append(uids, fmt.Sprint("i", i))
		}
		n.with("c1", 1, uids...)
		n.send("c1", 1, nil, uids[:6]...)
		n.wantRunning(uids[:6]...)
		n.wantHold("", 0)
	})
}

// TestARestoredClusterStopsNothingUnconfirmed: after a restore, the node keeps even a single
// instance of many that the cluster has no record of, and names it.
func TestARestoredClusterStopsNothingUnconfirmed(t *testing.T) {
	bubble(t, instancefake.Config{}, func(_ *testing.T, n *node) {
		n.with("c1", 5, "u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8")
		n.sendRestored("c1", 1_000_006, "u1", "u2", "u3", "u4", "u5", "u6", "u7")
		hold := n.wantHold(rikv1alpha1.ConfirmUnknownInstances, 1)
		if len(hold.GetUnknown()) != 1 || !strings.Contains(hold.GetUnknown()[0], "u8") {
			t.Errorf("the hold names %v, want u8", hold.GetUnknown())
		}
		n.wantRunning("u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8")
		n.confirm(hold.GetId())
		n.wantRunning("u1", "u2", "u3", "u4", "u5", "u6", "u7")
	})
}
