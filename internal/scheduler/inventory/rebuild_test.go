package inventory

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestRebuildFault07: a restart of either side loses nothing. A second inventory that receives
// what the controller has made durable ends with the same places, and every other instance
// waits again.
func TestRebuildFault07(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		v := newInventory()
		v.Begin()
		v.SetTemplate("ns/w", template(0))
		v.Synced()
		durable := map[string]string{} // uid -> node; "" means pending
		unacked := map[string]string{}
		next := 0
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"node", "new", "new", "place", "ack", "refuse", "gone"}).Draw(rt, "op") {
			case "node":
				addNode(v, fmt.Sprint("n", rapid.IntRange(1, 4).Draw(rt, "n")), 3)
			case "new":
				next++
				durable[fmt.Sprint(next)] = ""
				v.SetPending(facts(fmt.Sprint(next), "w"))
			case "place":
				for _, b := range place(v, start).Bindings {
					unacked[b.UID] = b.Node
				}
			case "ack":
				for uid, node := range unacked {
					durable[uid] = node
					v.Ack(uid, true)
				}
				clear(unacked)
			case "refuse":
				for uid := range unacked {
					delete(durable, uid)
					v.Ack(uid, false)
				}
				clear(unacked)
			case "gone":
				for uid := range durable {
					if _, waits := unacked[uid]; !waits {
						delete(durable, uid)
						v.Remove(uid)
						break
					}
				}
			}
		}
		restarted := newInventory()
		for i := 1; i <= 4; i++ {
			restarted.Join(fmt.Sprint("n", i), Registration{Status: nodeStatus(3)}, "", start)
		}
		for name, w := range map[string]*Inventory{"same scheduler": v, "restarted": restarted} {
			if err := relist(w, durable); err != nil {
				rt.Fatalf("%s: %v", name, err)
			}
		}
	})
}

// relist sends an inventory a whole listing and checks its state afterward.
func relist(v *Inventory, durable map[string]string) error {
	v.Begin()
	v.SetTemplate("ns/w", template(0))
	for i := 1; i <= 4; i++ {
		v.SetNode(nodeObject(fmt.Sprint("n", i)), start)
	}
	bound := 0
	for uid, node := range durable {
		if node == "" {
			v.SetPending(facts(uid, "w"))
			continue
		}
		bound++
		f := facts(uid, "w")
		f.Node = node
		v.SetBound(f)
	}
	v.Synced()
	s := v.Stats()
	if s.Bound != bound || s.Pending != len(durable)-bound || s.Proposed != 0 {
		return fmt.Errorf("after the listing %+v, want %d bound of %d", s, bound, len(durable))
	}
	for uid, node := range durable {
		if at, _ := v.snapshot.Where(uid); at != node {
			return fmt.Errorf("%s is on %q, want %q", uid, at, node)
		}
	}
	return overfull(v)
}

// overfull places all waiting instances and returns an error for a node with more instances
// than it can hold.
func overfull(v *Inventory) error {
	place(v, start)
	on := map[string]int{}
	for uid := range v.instances {
		if at, ok := v.snapshot.Where(uid); ok {
			on[at]++
		}
	}
	for node, n := range on {
		if n > 3 {
			return errors.New(node + " is over its capacity")
		}
	}
	return nil
}

func TestSweepForgetsWhatTheListingLacks(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	addNode(v, "n", 2)
	addNode(v, "old", 2)
	v.SetTemplate("ns/w", template(0))
	v.SetTemplate("ns/unused", template(0))
	for _, uid := range []string{"a", "b"} {
		f := facts(uid, "w")
		f.Node = "n"
		v.SetBound(f)
	}
	v.SetPending(facts("c", "w"))
	v.Synced()
	v.Begin()
	v.SetNode(nodeObject("n"), start)
	v.SetTemplate("ns/w", template(0))
	f := facts("a", "w")
	f.Node = "n"
	if _, news := v.SetBound(f); news {
		t.Error("an unchanged binding is news")
	}
	var gone []string
	for _, in := range v.Synced() {
		gone = append(gone, in.UID)
	}
	slices.Sort(gone)
	if !slices.Equal(gone, []string{"b", "c"}) {
		t.Errorf("forgotten = %v, want b and c", gone)
	}
	if s := v.Stats(); s.Bound != 1 || s.Pending != 0 || s.ReadyNodes != 1 {
		t.Errorf("stats = %+v, want 1 bound on 1 ready node", s)
	}
	if _, ok := v.revisions["ns/unused"]; ok {
		t.Error("the unused template is still there")
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	v := newInventory()
	v.Begin()
	addNode(v, "n", 1)
	v.SetTemplate("ns/w", template(0))
	v.Synced()
	v.SetPending(facts("a", "w"))
	v.SetPending(facts("b", "w"))
	v.SetPending(facts("c", "missing"))
	place(v, start)
	for uid, want := range map[string]string{"a": "bound to n", "b": "too little cpu", "c": "ns/missing"} {
		e, ok := v.Explain(uid)
		if !ok || !strings.Contains(e.Summary, want) {
			t.Errorf("Explain(%s) = %q, %v, want %q", uid, e.Summary, ok, want)
		}
	}
	if _, ok := v.Explain("nobody"); ok {
		t.Error("Explain(unknown) is known")
	}
}
