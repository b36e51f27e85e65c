package inventory

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/scheduler/placement"
)

const timeout = 20 * time.Second

var start = time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)

func newInventory() *Inventory { return New(Options{NodeTimeout: timeout}) }

func nodeObject(name string) *rikv1alpha1.Node {
	return &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{rikv1alpha1.LabelHostname: name},
	}}
}

func nodeStatus(cores int64) *rikv1alpha1.NodeStatus {
	return &rikv1alpha1.NodeStatus{Allocatable: rikv1alpha1.ResourceList{
		rikv1alpha1.ResourceCPU:    *resource.NewQuantity(cores, resource.DecimalSI),
		rikv1alpha1.ResourceMemory: *resource.NewQuantity(64<<30, resource.BinarySI),
	}}
}

// template requests one core.
func template(priority int32) *rikv1alpha1.InstanceTemplate {
	return &rikv1alpha1.InstanceTemplate{
		Priority: priority,
		Containers: []rikv1alpha1.Container{{Name: "main", Resources: rikv1alpha1.Resources{
			Requests: rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("1")},
		}}},
	}
}

func facts(uid, revision string) Facts {
	return Facts{UID: uid, Namespace: "ns", Name: "i-" + uid, Workload: revision, Revision: revision}
}

func boundTo(uid, node string) Facts {
	f := facts(uid, "w")
	f.Node = node
	return f
}

// addNode adds a node that the controller has sent and that has joined.
func addNode(v *Inventory, name string, cores int64) {
	v.SetNode(nodeObject(name), start)
	v.Join(name, Registration{Status: nodeStatus(cores)}, "", start)
}

// place runs rounds until there is no more to decide at once.
func place(v *Inventory, now time.Time) Result {
	var all Result
	for {
		r := v.Place(2, now)
		all.Bindings = append(all.Bindings, r.Bindings...)
		all.Unplaced = append(all.Unplaced, r.Unplaced...)
		all.Displaced = append(all.Displaced, r.Displaced...)
		all.SendAt = r.SendAt
		if !r.More {
			return all
		}
	}
}

func bindingUIDs(r Result) []string {
	var uids []string
	for _, b := range r.Bindings {
		uids = append(uids, b.UID)
	}
	return uids
}

func TestNodeTakesInstancesOnlyWhenKnownJoinedAndSynced(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	v.SetTemplate("ns/w", template(0))
	v.SetPending(facts("a", "w"))
	v.SetNode(nodeObject("unjoined"), start)
	v.Join("unknown", Registration{Status: nodeStatus(4)}, "", start)
	v.SetNode(nodeObject("refused"), start)
	v.Join("refused", Registration{Status: nodeStatus(4)}, "it accepts a newer controller", start)
	addNode(v, "good", 4)
	if r := place(v, start); len(r.Bindings) != 0 {
		t.Fatalf("placed before the listing was complete: %+v", r)
	}
	v.Synced()
	r := place(v, start)
	if diff := cmp.Diff([]Binding{{UID: "a", Node: "good"}}, r.Bindings); diff != "" {
		t.Fatalf("bindings (-want +got):\n%s", diff)
	}
	v.Leave("good")
	v.SetPending(facts("b", "w"))
	if r := place(v, start); len(r.Bindings) != 0 || len(r.Unplaced) != 1 || r.Unplaced[0].Reason != "NodesNotReady" {
		t.Fatalf("placing without a connected node = %+v, want NodesNotReady", r)
	}
	v.Join("good", Registration{Status: nodeStatus(4)}, "", start)
	if got := bindingUIDs(place(v, start)); !slices.Equal(got, []string{"b"}) {
		t.Fatalf("placed after the node came back = %v, want b", got)
	}
}

// TestNodeTakesAsManyAsItHasAddresses: a node accepts no more instances than its address range
// allows, even if it reports a higher limit.
func TestNodeTakesAsManyAsItHasAddresses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		podCIDR string
		network bool
		want    int
	}{
		"a small range":       {"10.62.0.8/29", true, 5},
		"a large range":       {"10.62.0.0/24", true, 7},
		"none yet":            {"", true, 7},
		"no network":          {"10.62.0.8/29", false, 7},
		"an unreadable range": {"fd00::/125", true, 7},
	} {
		v := newInventory()
		v.Begin()
		node := nodeObject("node")
		node.Spec.PodCIDR = c.podCIDR
		v.SetNode(node, start)
		status := nodeStatus(64)
		status.Allocatable[rikv1alpha1.ResourceInstances] = *resource.NewQuantity(7, resource.DecimalSI)
		v.Join("node", Registration{Status: status, NoNetwork: !c.network}, "", start)
		v.SetTemplate("ns/w", template(0))
		v.Synced()
		for i := range 9 {
			v.SetPending(facts(fmt.Sprint(i), "w"))
		}
		if got := len(place(v, start).Bindings); got != c.want {
			t.Errorf("%s: %d of 9 instances were placed, want %d", name, got, c.want)
		}
	}
}

// TestANodeThatTheControllerRefusesGetsNoInstance: the node reports it, and reports its end.
func TestANodeThatTheControllerRefusesGetsNoInstance(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	addNode(v, "node", 4)
	v.SetTemplate("ns/w", template(0))
	v.SetPending(facts("a", "w"))
	v.Synced()
	v.SetTroubles("node", map[nodestate.TroubleKind]string{nodestate.TroubleController: "deleted"})
	if got := len(place(v, start).Bindings); got != 0 {
		t.Errorf("%d instances were placed on a node that the controller refuses", got)
	}
	v.SetTroubles("node", nil)
	if got := len(place(v, start).Bindings); got != 1 {
		t.Errorf("%d instances were placed on the node when the controller accepts it, want 1", got)
	}
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	for _, name := range []string{"silent", "lively"} {
		addNode(v, name, 4)
	}
	v.SetNode(nodeObject("absent"), start)
	v.Synced()
	v.Seen("lively", start.Add(15*time.Second))
	if lost := v.Expire(start.Add(timeout - 1)); len(lost) != 0 {
		t.Fatalf("lost before the deadline: %v", lost)
	}
	lost := v.Expire(start.Add(timeout))
	slices.Sort(lost)
	if want := []string{"absent", "silent"}; !slices.Equal(lost, want) {
		t.Fatalf("lost = %v, want %v", lost, want)
	}
	if again := v.Expire(start.Add(timeout + 1)); len(again) != 0 {
		t.Fatalf("lost twice: %v", again)
	}
	if next, ok := v.NextDeadline(); !ok || !next.Equal(start.Add(35*time.Second)) {
		t.Fatalf("next deadline = %v %v, want that of lively", next, ok)
	}
	// Dead nodes do not delay placement.
	v.SetTemplate("ns/w", template(0))
	v.SetPending(facts("a", "w"))
	if r := place(v, start); len(r.Bindings) != 1 || r.Bindings[0].Node != "lively" {
		t.Fatalf("placing = %+v, want lively", r)
	}
	if !v.Seen("silent", start.Add(time.Minute)) {
		t.Fatal("Heard(silent) = false, want that it was lost")
	}
	got := map[string]bool{}
	for _, c := range v.Connectivities() {
		got[c.Name] = c.Connected
	}
	if diff := cmp.Diff(map[string]bool{"silent": true, "lively": true, "absent": false}, got); diff != "" {
		t.Fatalf("connectivity (-want +got):\n%s", diff)
	}
}

// TestDeletedNodeIsForgotten: a node without a Node and a connection is removed. It is not in
// explanations and is not reported as lost later. Its instances keep their places.
func TestDeletedNodeIsForgotten(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Inventory){
		"deleted, then sent away": func(v *Inventory) { v.RemoveNode("second"); v.Leave("second") },
		"left, then deleted":      func(v *Inventory) { v.Leave("second"); v.RemoveNode("second") },
		"lost, then deleted": func(v *Inventory) {
			v.Leave("second")
			v.Seen("first", start.Add(timeout))
			v.Expire(start.Add(timeout))
			v.RemoveNode("second")
		},
		"deleted while the controller was away": func(v *Inventory) {
			v.Leave("second")
			v.Begin()
			v.SetNode(nodeObject("first"), start)
			v.SetTemplate("ns/w", template(0))
			v.SetBound(boundTo("a", "second"))
			v.SetBound(boundTo("b", "first"))
			v.Synced()
		},
		"deleted during a listing": func(v *Inventory) {
			v.Begin()
			v.SetNode(nodeObject("first"), start)
			v.SetNode(nodeObject("second"), start)
			v.SetTemplate("ns/w", template(0))
			v.SetBound(boundTo("a", "second"))
			v.SetBound(boundTo("b", "first"))
			v.RemoveNode("second")
			v.Leave("second")
			v.Synced()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newInventory()
			v.Begin()
			addNode(v, "first", 1)
			addNode(v, "second", 1)
			v.SetTemplate("ns/w", template(0))
			v.SetBound(boundTo("a", "second"))
			v.SetBound(boundTo("b", "first"))
			v.Synced()
			end(v)
			v.SetPending(facts("c", "w"))
			r := place(v, start)
			if want := "0 of 1 nodes fit: 1 with too little cpu"; len(r.Unplaced) != 1 || r.Unplaced[0].Message != want {
				t.Errorf("placing = %+v, want %q", r.Unplaced, want)
			}
			if s := v.Stats(); s.Nodes != 1 || s.Bound != 2 {
				t.Errorf("stats = %+v, want one node and two bound", s)
			}
			e, ok := v.Explain("c")
			if !ok || len(e.Results) != 1 || e.Results[0].Node != "first" {
				t.Errorf("Explain(c) = %+v, %v, want a result for first only", e.Results, ok)
			}
			v.Seen("first", start.Add(3*timeout))
			if lost := v.Expire(start.Add(3 * timeout)); len(lost) != 0 {
				t.Errorf("lost = %v, want none", lost)
			}
			if c := v.Connectivities(); len(c) != 1 {
				t.Errorf("connectivities = %+v, want that of first only", c)
			}
			addNode(v, "second", 2)
			if got := bindingUIDs(place(v, start)); !slices.Equal(got, []string{"c"}) {
				t.Errorf("placed after the node joined anew = %v, want c", got)
			}
		})
	}
}

// TestUnlistedNodeMayBeListedYet: a node that disconnects before the controller has listed it
// is kept until the listing is complete.
func TestUnlistedNodeMayBeListedYet(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	for _, name := range []string{"listed", "deleted"} {
		v.Join(name, Registration{Status: nodeStatus(1)}, "", start)
		v.Leave(name)
	}
	if s := v.Stats(); s.Nodes != 2 {
		t.Errorf("%d nodes during the listing, want 2", s.Nodes)
	}
	v.SetNode(nodeObject("listed"), start)
	v.Synced()
	if c := v.Connectivities(); len(c) != 1 || c[0].Name != "listed" || !c[0].Connected {
		t.Errorf("connectivities = %+v, want listed to be connected", c)
	}
}

func TestRefusedAckFreesAndForgets(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	addNode(v, "n", 1)
	v.SetTemplate("ns/w", template(0))
	v.Synced()
	v.SetPending(facts("a", "w"))
	v.SetPending(facts("b", "w"))
	if got := bindingUIDs(place(v, start)); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("proposed %v, want a", got)
	}
	if in := v.Ack("a", false); in != nil {
		t.Fatalf("refused proposal gave %+v to dispatch", in)
	}
	if got := bindingUIDs(place(v, start)); !slices.Equal(got, []string{"b"}) {
		t.Fatalf("proposed %v after the refusal, want b", got)
	}
	if in := v.Ack("b", true); in == nil || in.State != Bound || in.Node != "n" {
		t.Fatalf("Ack(b) = %+v, want bound to n", in)
	}
	if in := v.Ack("b", true); in != nil {
		t.Fatalf("second Ack(b) = %+v, want nothing to dispatch", in)
	}
}

func TestEndedInstanceFreesItsPlace(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	addNode(v, "n", 1)
	v.SetTemplate("ns/w", template(0))
	f := facts("a", "w")
	f.Node = "n"
	v.SetBound(f)
	v.SetPending(facts("b", "w"))
	v.Synced()
	if r := place(v, start); len(r.Bindings) != 0 {
		t.Fatalf("placed on a full node: %+v", r)
	}
	f.Ended = true
	if _, news := v.SetBound(f); !news {
		t.Fatal("SetBound(ended) is no news")
	}
	if got := bindingUIDs(place(v, start)); !slices.Equal(got, []string{"b"}) {
		t.Fatalf("placed %v after a ended, want b", got)
	}
	if on := v.OnNode("n"); len(on) != 1 || !on[0].Ended {
		t.Fatalf("OnNode = %+v, want a as ended", on)
	}
}

func TestExplanationsAreSentWhenTheyChange(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	v.SetTemplate("ns/w", template(0))
	v.Synced()
	for i := range 3 {
		v.SetPending(facts(fmt.Sprint(i), "w"))
	}
	r := place(v, start)
	if len(r.Unplaced) != 3 || r.Unplaced[0].Reason != "NoNodes" {
		t.Fatalf("first explanation = %+v, want NoNodes for all three", r.Unplaced)
	}
	if r = place(v, start); len(r.Unplaced) != 0 {
		t.Fatalf("sent again: %+v", r.Unplaced)
	}
	v.SetPending(facts("late", "w"))
	if r = place(v, start); len(r.Unplaced) != 1 || r.Unplaced[0].UID != "late" {
		t.Fatalf("sent after a newcomer: %+v, want late only", r.Unplaced)
	}
	addNode(v, "tiny", 0)
	if r = place(v, start.Add(time.Second)); len(r.Unplaced) != 0 || r.SendAt.IsZero() {
		t.Fatalf("changed explanation = %+v, want it to be sent later", r)
	}
	if r = place(v, r.SendAt); len(r.Unplaced) != 4 || r.Unplaced[0].Reason != "InsufficientCPU" {
		t.Fatalf("changed explanation = %+v, want InsufficientCPU for all four", r)
	}
}

func TestInvalidTemplateIsExplained(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	addNode(v, "n", 4)
	bad := template(0)
	bad.Affinity = &rikv1alpha1.Affinity{InstanceForbidden: []rikv1alpha1.InstanceTerm{{
		Selector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Odd"}}},
	}}}
	v.SetTemplate("ns/bad", bad)
	v.SetTemplate("ns/w", template(0))
	v.Synced()
	v.SetPending(facts("a", "bad"))
	v.SetPending(facts("b", "w"))
	r := place(v, start)
	if len(r.Unplaced) != 1 || r.Unplaced[0].Reason != "InvalidTemplate" || len(r.Bindings) != 1 {
		t.Fatalf("placing = %+v, want a refused and b placed", r)
	}
	v.Remove("a")
	if s := v.Stats(); s.Pending != 0 || s.Proposed != 1 {
		t.Fatalf("stats = %+v", s)
	}
}

func TestOrderIsPriorityThenAge(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	v.SetTemplate("ns/low", template(0))
	v.SetTemplate("ns/high", template(7))
	add := func(uid, revision string, created int64) {
		f := facts(uid, revision)
		f.CreatedUnixNano = created
		v.SetPending(f)
	}
	add("young", "low", 30)
	add("old", "low", 10)
	add("middle", "low", 20)
	add("urgent", "high", 99)
	addNode(v, "n", 8)
	v.Synced()
	if got, want := bindingUIDs(place(v, start)), []string{"urgent", "old", "middle", "young"}; !slices.Equal(got, want) {
		t.Fatalf("placed %v, want %v", got, want)
	}
}

func TestPreemptionHoldsThePlace(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	addNode(v, "n", 2)
	v.SetTemplate("ns/low", template(0))
	v.SetTemplate("ns/high", template(7))
	for _, uid := range []string{"a", "b"} {
		f := facts(uid, "low")
		f.Node = "n"
		v.SetBound(f)
	}
	v.Synced()
	v.SetPending(facts("urgent", "high"))
	r := place(v, start)
	if len(r.Displaced) != 1 || r.Displaced[0].For != "urgent" || len(r.Bindings) != 0 {
		t.Fatalf("placing = %+v, want one displaced", r)
	}
	victim := r.Displaced[0].UID
	if r = place(v, start); len(r.Displaced) != 0 {
		t.Fatalf("displaced again: %+v", r)
	}
	// A new instance of lower priority must not take the reserved place.
	v.SetPending(facts("late", "low"))
	v.Remove(victim)
	r = place(v, start)
	if got := bindingUIDs(r); !slices.Equal(got, []string{"urgent"}) {
		t.Fatalf("placed %v, want urgent", got)
	}
	if s := v.Stats(); s.Pending != 1 || s.Proposed != 1 || s.Bound != 1 {
		t.Fatalf("stats = %+v, want one each", s)
	}
}

func TestNominationEndsWithItsNodeOrInstance(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Inventory){
		"node leaves":   func(v *Inventory) { v.Leave("n") },
		"instance gone": func(v *Inventory) { v.Remove("urgent") },
		"new listing":   func(v *Inventory) { v.Begin() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newInventory()
			v.Begin()
			addNode(v, "n", 1)
			v.SetTemplate("ns/low", template(0))
			v.SetTemplate("ns/high", template(7))
			f := facts("a", "low")
			f.Node = "n"
			v.SetBound(f)
			v.Synced()
			v.SetPending(facts("urgent", "high"))
			if r := place(v, start); len(r.Displaced) != 1 {
				t.Fatalf("placing = %+v, want a displaced", r)
			}
			end(v)
			if len(v.nominees) != 0 || v.snapshot.Occupants() != 1 {
				t.Fatalf("%d places held, %d occupants, want 0 and 1", len(v.nominees), v.snapshot.Occupants())
			}
		})
	}
}

func TestTemplateMayComeLate(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	addNode(v, "n", 1)
	f := facts("bound", "w")
	f.Node = "n"
	v.SetBound(f)
	v.SetPending(facts("a", "w"))
	v.Synced()
	if r := place(v, start); len(r.Bindings) != 0 {
		t.Fatalf("placed without a template: %+v", r)
	}
	v.SetTemplate("ns/w", template(0))
	if r := place(v, start); len(r.Unplaced) != 1 {
		t.Fatalf("placing = %+v, want no room next to the bound one", r)
	}
	v.Remove("bound")
	if got := bindingUIDs(place(v, start)); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("placed %v, want a", got)
	}
}

func TestStoppedPendingIsNotPlaced(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	addNode(v, "n", 4)
	v.SetTemplate("ns/w", template(0))
	v.Synced()
	v.SetPending(facts("a", "w"))
	v.SetStop("a", Stop{GraceSeconds: -1})
	if r := place(v, start); len(r.Bindings) != 0 {
		t.Fatalf("placed %+v, want nothing", r)
	}
}

// TestFreedNodeWakesOnlyThoseItCanHelp: when an instance leaves a node, only the waiting
// instances that could fit there are evaluated again.
func TestFreedNodeWakesOnlyThoseItCanHelp(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	addNode(v, "n", 1)
	v.SetTemplate("ns/w", template(0))
	large := template(0)
	large.Containers[0].Resources.Requests[rikv1alpha1.ResourceCPU] = resource.MustParse("2")
	v.SetTemplate("ns/large", large)
	v.Synced()
	v.SetPending(facts("a", "w"))
	v.SetPending(facts("b", "w"))
	v.SetPending(facts("c", "large"))
	if got := bindingUIDs(place(v, start)); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("placed %v, want a", got)
	}
	v.Remove("a")
	v.reconsider()
	if g := v.queue.first(); len(v.queue.blocked) != 1 || g == nil || g.waiting[0].UID != "b" {
		t.Errorf("%d groups are still blocked, want that of c alone", len(v.queue.blocked))
	}
	if got := bindingUIDs(place(v, start)); !slices.Equal(got, []string{"b"}) {
		t.Errorf("placed %v, want b", got)
	}
}

// TestNothingFittingStaysBlocked: after any sequence of events, the queue agrees with a new
// decision for each waiting instance.
func TestNothingFittingStaysBlocked(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		v := newInventory()
		v.Begin()
		apart := template(0)
		apart.Affinity = &rikv1alpha1.Affinity{InstanceForbidden: []rikv1alpha1.InstanceTerm{{TopologyKey: rikv1alpha1.LabelHostname}}}
		near := template(0)
		near.Affinity = &rikv1alpha1.Affinity{InstanceRequired: []rikv1alpha1.InstanceTerm{{
			Selector:    metav1.LabelSelector{MatchLabels: map[string]string{"app": "w"}},
			TopologyKey: rikv1alpha1.LabelHostname,
		}}}
		v.SetTemplate("ns/w", template(0))
		v.SetTemplate("ns/apart", apart)
		v.SetTemplate("ns/near", near)
		v.SetTemplate("ns/high", template(3))
		v.Synced()
		for i := range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"node", "leave", "new", "new", "new", "gone", "place"}).Draw(rt, "op") {
			case "node":
				addNode(v, fmt.Sprint("n", rapid.IntRange(1, 3).Draw(rt, "n")), 2)
			case "leave":
				v.Leave(fmt.Sprint("n", rapid.IntRange(1, 3).Draw(rt, "n")))
			case "new":
				f := facts(fmt.Sprint(i), rapid.SampledFrom([]string{"w", "apart", "near", "high"}).Draw(rt, "revision"))
				f.Labels = map[string]string{"app": f.Workload}
				v.SetPending(f)
			case "gone":
				if uids := slices.Sorted(maps.Keys(v.instances)); len(uids) > 0 {
					v.Remove(rapid.SampledFrom(uids).Draw(rt, "uid"))
				}
			case "place":
				place(v, start)
			}
		}
		place(v, start)
		for _, in := range v.instances {
			if in.heap < 0 {
				continue
			}
			if d := placement.Place(v.snapshot, placement.Request{Shape: in.group.shape}); d.Node != "" {
				rt.Fatalf("%s of %s waits although %s has room", in.UID, in.Workload, d.Node)
			}
		}
	})
}
