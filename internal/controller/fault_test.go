package controller_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// TestUnknownInstancesFault02: messages of the scheduler about unknown instances, and invalid
// messages, have no effect.
func TestUnknownInstancesFault02(t *testing.T) {
	c := start(t, nil, "node-a")
	c.manual("web", 1)
	known := c.wantRunning("web", 1)[0]
	garbage := []byte{0xff, 0xff, 0xff}
	c.scheduler.do(func() {
		for _, uid := range []string{"", "no-such-uid", string(known.UID)} {
			for _, m := range []*schedulerv1.SyncResponse{
				{},
				{Message: &schedulerv1.SyncResponse_Binding{Binding: &schedulerv1.Binding{Uid: uid, NodeName: "no-such-node"}}},
				{Message: &schedulerv1.SyncResponse_Unplaced{Unplaced: &schedulerv1.Unplaced{Uid: uid, Reason: "X"}}},
				{Message: &schedulerv1.SyncResponse_Observation{Observation: &schedulerv1.Observation{
					Uid: uid, Sequence: 1 << 40, Phase: "Running", NodeName: "another-node", Status: garbage,
				}}},
				{Message: &schedulerv1.SyncResponse_Observation{Observation: &schedulerv1.Observation{
					Uid: uid, Sequence: 1 << 40, Phase: "NoSuchPhase", NodeName: "node-a", Status: garbage,
				}}},
				{Message: &schedulerv1.SyncResponse_Observation{Observation: &schedulerv1.Observation{
					Uid: uid, Sequence: -1, Phase: "Failed", NodeName: "node-a",
				}}},
				{Message: &schedulerv1.SyncResponse_Node{Node: &schedulerv1.NodeReport{Name: "", Connected: true, Info: garbage, Taints: garbage}}},
				{Message: &schedulerv1.SyncResponse_Node{Node: &schedulerv1.NodeReport{Name: "node-b", Taints: []byte("{")}}},
			} {
				c.scheduler.say(m)
			}
		}
	})
	c.manual("later", 1)
	c.wantRunning("later", 1)
	if now := c.wantRunning("web", 1)[0]; now.UID != known.UID || now.ResourceVersion != known.ResourceVersion {
		t.Errorf("a known instance was changed by nonsense: %+v", now.Status)
	}
	c.scheduler.do(func() {
		if c.scheduler.sessions != 1 {
			t.Errorf("%d sessions, want one that lives on", c.scheduler.sessions)
		}
	})
}

// TestNodeLossFault06: the instances of a lost node, including Manual ones, are each replaced
// once by new ones of the same revision. The old ones are stopped when the node returns.
func TestNodeLossFault06(t *testing.T) {
	c := start(t, nil, "node-a", "node-b", "node-c")
	c.manual("hand", 6)
	c.create(automatic(c.namespace, "auto", 6))
	old := append(c.wantRunning("hand", 6), c.wantRunning("auto", 6)...)
	lost := map[types.UID]string{}
	for i := range old {
		if old[i].Spec.NodeName == "node-a" {
			lost[old[i].UID] = old[i].Spec.Revision
		}
	}
	if len(lost) == 0 {
		t.Fatal("nothing runs on node-a")
	}
	c.scheduler.disconnect("node-a")
	c.eventually("every lost instance is replaced elsewhere", func() string {
		live, replaced := 0, map[string]int{}
		list := c.instances()
		for i := range list {
			in := &list[i]
			if in.DeletionTimestamp != nil {
				continue
			}
			if in.Status.Phase == rikv1alpha1.InstanceRunning && in.Spec.NodeName != "node-a" {
				live++
			}
			if r := in.Spec.Replaces; r != "" {
				replaced[r]++
				if in.Spec.Revision != lost[types.UID(r)] {
					t.Errorf("%s runs %s in place of %s", in.Name, in.Spec.Revision, lost[types.UID(r)])
				}
			}
		}
		for uid := range lost {
			if replaced[string(uid)] > 1 {
				t.Errorf("%s was replaced %d times", uid, replaced[string(uid)])
			}
		}
		if live != 12 || len(replaced) != len(lost) {
			return fmt.Sprintf("%d run, %d of %d replaced: %s", live, len(replaced), len(lost), describe(list))
		}
		return ""
	})
	c.eventually("the node's condition", func() string {
		var n rikv1alpha1.Node
		if err := c.client.Get(t.Context(), types.NamespacedName{Name: "node-a"}, &n); err != nil {
			return err.Error()
		}
		ready := meta.FindStatusCondition(n.Status.Conditions, rikv1alpha1.NodeReady)
		if ready.Status != metav1.ConditionUnknown || len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != rikv1alpha1.TaintUnreachable {
			return fmt.Sprintf("%+v %+v", n.Spec, n.Status.Conditions)
		}
		return ""
	})
	c.scheduler.connect("node-a")
	c.wantRunning("hand", 6)
	c.wantRunning("auto", 6)
	c.scheduler.do(func() {
		for uid := range lost {
			if c.scheduler.running[string(uid)] != "" {
				t.Errorf("the replaced instance %s still runs", uid)
			}
		}
		if len(c.scheduler.running) != 12 {
			t.Errorf("%d run on the nodes, want 12", len(c.scheduler.running))
		}
	})
}

// TestManySilentNodes: if more than a third of the nodes are lost at once, no instance is
// replaced. The instances are shown as Unknown until the nodes return.
func TestManySilentNodes(t *testing.T) {
	// The time is one hour because the reports arrive one after the other, and the first lost
	// node alone would not pause replacement.
	c := start(t, func(cfg *controller.Config) { cfg.ReplaceAfter = time.Hour }, "node-a", "node-b", "node-c")
	c.create(automatic(c.namespace, "auto", 6))
	before := c.wantRunning("auto", 6)
	c.scheduler.do(func() {
		c.scheduler.nodes["node-a"], c.scheduler.nodes["node-b"], c.scheduler.nodes["node-c"] = false, false, false
		for _, n := range []string{"node-a", "node-b", "node-c"} {
			c.scheduler.reportLocked(n, false)
		}
	})
	c.eventually("all are Unknown and the nodes say that replacement is paused", func() string {
		list := c.instances()
		for i := range list {
			if list[i].Status.Phase != rikv1alpha1.InstanceUnknown {
				return describe(list)
			}
		}
		var nodes rikv1alpha1.NodeList
		if err := c.client.List(t.Context(), &nodes); err != nil {
			return err.Error()
		}
		for i := range nodes.Items {
			if !meta.IsStatusConditionTrue(nodes.Items[i].Status.Conditions, "ReplacementPaused") {
				return nodes.Items[i].Name + " does not say it"
			}
		}
		return ""
	})
	for _, n := range []string{"node-a", "node-b", "node-c"} {
		c.scheduler.connect(n)
	}
	after := c.wantRunning("auto", 6)
	same := map[types.UID]bool{}
	for i := range before {
		same[before[i].UID] = true
	}
	for i := range after {
		if !same[after[i].UID] {
			t.Errorf("%s is new", after[i].Name)
		}
	}
}

// TestRestartsFault07: a restart of the scheduler or the controller loses nothing and starts no
// instance twice.
func TestRestartsFault07(t *testing.T) {
	c := start(t, nil, "node-a", "node-b")
	c.create(automatic(c.namespace, "auto", 5))
	c.wantRunning("auto", 5)
	first := int64(0)
	c.scheduler.do(func() { first, c.scheduler.hold = c.scheduler.term, true })
	c.manual("hand", 5)
	doomed := c.workload("auto")
	c.eventually("the scheduler receives the pending ones", func() string {
		out := ""
		c.scheduler.do(func() {
			if len(c.scheduler.pending) != 5 {
				out = fmt.Sprintf("%d pending", len(c.scheduler.pending))
			}
		})
		return out
	})
	c.stop()
	// While no controller runs, a workload is deleted, and the scheduler loses its state.
	if err := c.client.Delete(t.Context(), doomed); err != nil {
		t.Fatal(err)
	}
	c.scheduler.do(func() { c.scheduler.hold = false })
	c.run()
	c.wantRunning("hand", 5)
	c.wantRunning("auto", 0)
	c.scheduler.do(func() {
		if c.scheduler.term <= first {
			t.Errorf("the second controller has term %d after %d", c.scheduler.term, first)
		}
		for uid, n := range c.scheduler.starts {
			if n != 1 {
				t.Errorf("%s was started %d times", uid, n)
			}
		}
		if len(c.scheduler.running) != 5 {
			t.Errorf("%d run on the nodes, want 5", len(c.scheduler.running))
		}
	})
	c.settled()
}

// TestStreamBreaks: the controller reconnects by itself.
func TestStreamBreaks(t *testing.T) {
	c := start(t, nil, "node-a")
	c.manual("web", 2)
	c.wantRunning("web", 2)
	for round := range 3 {
		c.scheduler.do(func() { close(c.scheduler.session.cut) })
		c.create(&rikv1alpha1.Instance{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, GenerateName: "web-"},
			Spec:       rikv1alpha1.InstanceSpec{Workload: "web"},
		})
		c.eventually("a new session", func() string {
			out := ""
			c.scheduler.do(func() {
				if got, want := c.scheduler.sessions, round+2; got != want || !c.scheduler.synced {
					out = fmt.Sprintf("%d sessions, want %d; synced: %v", got, want, c.scheduler.synced)
				}
			})
			return out
		})
		c.wantRunning("web", 3+round)
	}
}

// TestSchedulerAway: without a scheduler, nodes and instances are shown as Unknown. No instance
// is replaced or deleted because of that. When the scheduler is back, all continues as before.
func TestSchedulerAway(t *testing.T) {
	c := start(t, func(cfg *controller.Config) { cfg.NodeTimeout = 200 * time.Millisecond }, "node-a", "node-b")
	c.create(automatic(c.namespace, "auto", 4))
	before := uids(c.wantRunning("auto", 4))
	c.loseScheduler()
	c.manual("hand", 1)
	c.eventually("everything says that there is no scheduler", func() string {
		for _, in := range c.instances() {
			want := rikv1alpha1.InstanceUnknown
			if in.Spec.Workload == "hand" {
				want = rikv1alpha1.InstancePending
			}
			if in.Status.Phase != want || in.Status.Reason != "SchedulerUnavailable" || in.Status.Ready {
				return fmt.Sprintf("%s: %+v", in.Name, in.Status)
			}
		}
		for _, name := range []string{"node-a", "node-b"} {
			var n rikv1alpha1.Node
			if err := c.client.Get(t.Context(), types.NamespacedName{Name: name}, &n); err != nil {
				return err.Error()
			}
			ready := meta.FindStatusCondition(n.Status.Conditions, rikv1alpha1.NodeReady)
			if ready.Status != metav1.ConditionUnknown || ready.Reason != "SchedulerUnavailable" || len(n.Spec.Taints) > 0 {
				return fmt.Sprintf("%s: %+v %+v", name, ready, n.Spec.Taints)
			}
		}
		if s := c.workload("auto").Status; s.ReadyReplicas != 0 || s.Replicas != 4 {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	pending := slices.DeleteFunc(c.instances(), func(in rikv1alpha1.Instance) bool { return in.Spec.Workload != "hand" })[0]
	answer := httptest.NewRecorder()
	c.controller.WhyHandler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/rik/why/"+c.namespace+"/"+pending.Name, nil))
	var why metav1.Status
	if err := json.Unmarshal(answer.Body.Bytes(), &why); err != nil || answer.Code != http.StatusServiceUnavailable ||
		!apierrors.HasStatusCause(apierrors.FromObject(&why), schedulerv1.CauseUnavailable) ||
		!strings.Contains(why.Message, "no scheduler has been connected to the controller since 20") {
		t.Errorf("why = %d %s (%v)", answer.Code, answer.Body, err)
	}
	c.serveScheduler()
	if diff := cmp.Diff(before, uids(c.wantRunning("auto", 4))); diff != "" {
		t.Errorf("instances were replaced because the scheduler was away (-before +after):\n%s", diff)
	}
	c.wantRunning("hand", 1)
	c.scheduler.do(func() {
		for uid, n := range c.scheduler.starts {
			if n != 1 {
				t.Errorf("%s was started %d times", uid, n)
			}
		}
	})
	c.settled()
}

// TestStoppedWhileTheSchedulerWasAway: the last observation of an instance from before the loss
// of the scheduler does not count as new when its node reconnects.
func TestStoppedWhileTheSchedulerWasAway(t *testing.T) {
	c := start(t, func(cfg *controller.Config) { cfg.NodeTimeout = 200 * time.Millisecond }, "node-a")
	c.manual("web", 1)
	in := c.wantRunning("web", 1)[0]
	uid := string(in.UID)
	phase := func(want rikv1alpha1.InstancePhase) func() string {
		return func() string {
			if list := c.instances(); list[0].Status.Phase != want {
				return describe(list)
			}
			return ""
		}
	}
	c.loseScheduler()
	c.eventually("it is not known any more", phase(rikv1alpha1.InstanceUnknown))
	c.scheduler.do(func() { c.scheduler.running[uid] = "nobody" }) // a silent node
	c.serveScheduler()
	c.eventually("the node reports", func() string {
		var n rikv1alpha1.Node
		if err := c.client.Get(t.Context(), types.NamespacedName{Name: "node-a"}, &n); err != nil {
			return err.Error()
		}
		if !meta.IsStatusConditionTrue(n.Status.Conditions, rikv1alpha1.NodeReady) {
			return fmt.Sprintf("%+v", n.Status.Conditions)
		}
		return ""
	})
	// A new workload runs through all steps. By then, the other instance would be wrongly shown
	// as running.
	other := automatic("other-"+c.namespace, "later", 1)
	c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other.Namespace}})
	c.create(other)
	c.eventually("another runs", func() string {
		var list rikv1alpha1.InstanceList
		if err := c.client.List(t.Context(), &list, client.InNamespace(other.Namespace)); err != nil {
			return err.Error()
		}
		if len(list.Items) != 1 || list.Items[0].Status.Phase != rikv1alpha1.InstanceRunning {
			return describe(list.Items)
		}
		return ""
	})
	if last := phase(rikv1alpha1.InstanceUnknown)(); last != "" {
		t.Errorf("no node has reported it, and it is %s", last)
	}
	c.scheduler.do(func() {
		c.scheduler.running[uid] = "node-a"
		c.scheduler.observeLocked(uid, rikv1alpha1.InstanceTerminated)
		delete(c.scheduler.running, uid)
	})
	c.eventually("its node says that it has ended", phase(rikv1alpha1.InstanceFailed))
}

func uids(list []rikv1alpha1.Instance) []string {
	var out []string
	for i := range list {
		out = append(out, string(list[i].UID))
	}
	slices.Sort(out)
	return out
}

// TestReplicaArithmeticFault08: the number of instances is the requested number after any
// sequence of changes, and never negative.
func TestReplicaArithmeticFault08(t *testing.T) {
	c := start(t, nil, "node-a", "node-b")
	key := types.NamespacedName{Namespace: c.namespace, Name: "web"}
	c.create(automatic(c.namespace, "web", 3))
	for _, n := range []int32{3, 0, 7, 1, 0, 2} {
		change(c, key, &rikv1alpha1.Workload{}, func(w *rikv1alpha1.Workload) { w.Spec.Replicas = &n })
		c.wantRunning("web", int(n))
		c.eventually("the status counts", func() string {
			if s := c.workload("web").Status; s.Replicas != n || s.ReadyReplicas != n || s.UpdatedReplicas != n {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
	}
}

// TestForceLeavesATombstone: a forced deletion removes an instance on a lost node. The node
// must not run the instance when it returns.
func TestForceLeavesATombstone(t *testing.T) {
	c := start(t, func(cfg *controller.Config) { cfg.ReplaceAfter = time.Hour }, "node-a", "node-b", "node-c")
	c.manual("web", 1)
	in := c.wantRunning("web", 1)[0]
	c.scheduler.disconnect(in.Spec.NodeName)
	zero := int64(0)
	if err := c.client.Delete(t.Context(), &in, &client.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	c.wantRunning("web", 0)
	tombstones := func() int {
		var list corev1.ConfigMapList
		err := c.client.List(t.Context(), &list, client.InNamespace(controller.Namespace), client.HasLabels{"rik.dev/tombstones"})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for i := range list.Items {
			n += len(list.Items[i].Data)
		}
		return n
	}
	if got := tombstones(); got != 1 {
		t.Fatalf("%d tombstones, want 1", got)
	}
	// The tombstone outlives the controller.
	c.stop()
	c.scheduler.do(func() { clear(c.scheduler.tombstoned) })
	c.run()
	c.eventually("the scheduler receives the tombstone", func() string {
		out := ""
		c.scheduler.do(func() {
			if c.scheduler.tombstoned[string(in.UID)] != in.Spec.NodeName {
				out = fmt.Sprintf("%v", c.scheduler.tombstoned)
			}
		})
		return out
	})
	c.scheduler.connect(in.Spec.NodeName)
	c.eventually("the tombstone goes when the node confirms", func() string {
		if n := tombstones(); n > 0 {
			return fmt.Sprintf("%d left", n)
		}
		return ""
	})
	c.scheduler.do(func() {
		if len(c.scheduler.running) > 0 {
			t.Errorf("nodes still run %v", c.scheduler.running)
		}
	})
}

// TestNodeDeletionFreesInstances: deleting a Node replaces the instances of the node at once.
func TestNodeDeletionFreesInstances(t *testing.T) {
	c := start(t, func(cfg *controller.Config) { cfg.ReplaceAfter = time.Hour }, "node-a", "node-b", "node-c")
	c.create(automatic(c.namespace, "auto", 3))
	c.manual("hand", 3)
	c.wantRunning("auto", 3)
	c.wantRunning("hand", 3)
	c.scheduler.disconnect("node-a")
	if err := c.client.Delete(t.Context(), &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}); err != nil {
		t.Fatal(err)
	}
	c.eventually("the node is gone", func() string {
		var n rikv1alpha1.Node
		err := c.client.Get(t.Context(), types.NamespacedName{Name: "node-a"}, &n)
		if client.IgnoreNotFound(err) == nil && err != nil {
			return ""
		}
		return fmt.Sprintf("%v %v", n.Finalizers, err)
	})
	// Before that, all three may still run on their old nodes.
	for _, name := range []string{"auto", "hand"} {
		for _, in := range c.wantRunning(name, 3) {
			if in.Spec.NodeName == "node-a" {
				t.Errorf("%s is still on the node", in.Name)
			}
		}
	}
}

// TestDeletedNodeStaysAway: the scheduler's last report of a connected node does not create the
// deleted Node again. Only a new report does.
func TestDeletedNodeStaysAway(t *testing.T) {
	c := start(t, nil, "node-a", "node-b", "node-c")
	c.create(automatic(c.namespace, "auto", 3))
	c.wantRunning("auto", 3)
	if err := c.client.Delete(t.Context(), &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}); err != nil {
		t.Fatal(err)
	}
	gone := func() string {
		var n rikv1alpha1.Node
		err := c.client.Get(t.Context(), types.NamespacedName{Name: "node-a"}, &n)
		if err != nil && client.IgnoreNotFound(err) == nil {
			return ""
		}
		return fmt.Sprintf("%v %v", n.Finalizers, err)
	}
	c.eventually("the node is gone", gone)
	c.wantRunning("auto", 3)
	// The change of another node is visible after all effects of the deletion.
	c.scheduler.disconnect("node-b")
	c.eventually("node-b is silent", func() string {
		var n rikv1alpha1.Node
		if err := c.client.Get(t.Context(), types.NamespacedName{Name: "node-b"}, &n); err != nil {
			return err.Error()
		}
		if ready := meta.FindStatusCondition(n.Status.Conditions, rikv1alpha1.NodeReady); ready == nil || ready.Reason != "NodeSilent" {
			return fmt.Sprint(n.Status.Conditions)
		}
		return ""
	})
	if back := gone(); back != "" {
		t.Errorf("the node is back: %s", back)
	}
}

// TestNoExecuteTaintReplaces: instances that do not tolerate a NoExecute taint are replaced.
func TestNoExecuteTaintReplaces(t *testing.T) {
	c := start(t, nil, "node-a", "node-b")
	tolerant := automatic(c.namespace, "tolerant", 2)
	tolerant.Spec.Tolerations = []rikv1alpha1.Toleration{{Key: "broken", Operator: rikv1alpha1.TolerationExists}}
	c.create(tolerant)
	c.create(automatic(c.namespace, "plain", 2))
	stays := c.wantRunning("tolerant", 2)
	c.wantRunning("plain", 2)
	// The scripted scheduler ignores taints, so it gets only the other nodes.
	c.scheduler.do(func() { delete(c.scheduler.objects, "node-a") })
	change(c, types.NamespacedName{Name: "node-a"}, &rikv1alpha1.Node{}, func(n *rikv1alpha1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, rikv1alpha1.Taint{Key: "broken", Effect: rikv1alpha1.TaintNoExecute})
		c.scheduler.do(func() { c.scheduler.hold = true })
	})
	c.eventually("the intolerant ones have left", func() string {
		for _, in := range c.instances() {
			if in.Spec.Workload == "plain" && in.Spec.NodeName == "node-a" {
				return in.Name + " is still there"
			}
		}
		return ""
	})
	now := map[types.UID]bool{}
	for _, in := range c.wantRunning("tolerant", 2) {
		now[in.UID] = true
	}
	for _, in := range stays {
		if !now[in.UID] {
			t.Errorf("%s left although it tolerates the taint", in.Name)
		}
	}
}

// TestPreemption: the event of a preempted instance names the instance for which it makes room.
func TestPreemption(t *testing.T) {
	c := start(t, nil, "node-a")
	c.manual("low", 1)
	c.manual("high", 1)
	victim, winner := c.wantRunning("low", 1)[0], c.wantRunning("high", 1)[0]
	c.scheduler.do(func() {
		c.scheduler.say(&schedulerv1.SyncResponse{Message: &schedulerv1.SyncResponse_Displace{
			Displace: &schedulerv1.Displace{Uid: string(victim.UID), ForUid: string(winner.UID)},
		}})
	})
	c.eventually("the event", func() string {
		var list corev1.EventList
		if err := c.client.List(t.Context(), &list, client.InNamespace(c.namespace)); err != nil {
			return err.Error()
		}
		var seen []string
		for i := range list.Items {
			e := &list.Items[i]
			if e.Reason == "Preempted" && e.InvolvedObject.UID == victim.UID && strings.HasSuffix(e.Message, ", "+winner.Name) {
				return ""
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Sprintf("%q", seen)
	})
	c.eventually("another in its place", func() string {
		if now := c.wantRunning("low", 1)[0]; now.UID == victim.UID {
			return "it is still there"
		}
		return ""
	})
}
