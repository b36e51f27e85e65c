package index_test

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
)

func object(name, uid string, version int, node string) *rikv1alpha1.Instance {
	return &rikv1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid), ResourceVersion: strconv.Itoa(version)},
		Spec:       rikv1alpha1.InstanceSpec{Workload: "w", NodeName: node},
	}
}

func TestOverlay(t *testing.T) {
	t.Parallel()
	key := types.NamespacedName{Namespace: "ns", Name: "a"}
	v := index.NewInstances()
	v.Put(object("a", "u1", 5, ""))
	if v.Get(key) == nil || len(v.OfWorkload(types.NamespacedName{Namespace: "ns", Name: "w"})) != 1 {
		t.Fatal("the answer to a create is not there before the watch delivers it")
	}
	v.Put(object("a", "u1", 7, "n"))
	v.Observe(object("a", "u1", 5, ""))
	if in := v.Get(key); in.Spec.NodeName != "n" || len(v.OnNode("n")) != 1 {
		t.Errorf("the watch took a write of ours back: %+v", in)
	}
	v.Remove(object("a", "u1", 9, "n"))
	v.Put(object("a", "u1", 8, "n"))
	if in := v.Get(key); in != nil || len(v.OnNode("n")) != 0 || v.ByUID("u1") != nil {
		t.Errorf("a late answer raised the dead: %+v", in)
	}
	v.Observe(object("a", "u2", 11, "m"))
	v.Remove(object("a", "u1", 9, "n"))
	if in := v.Get(key); in == nil || in.UID != "u2" {
		t.Errorf("the end of an earlier object took the later one of its name: %+v", in)
	}
}

func TestReplacedUnderItsName(t *testing.T) {
	t.Parallel()
	var seen []string
	v := index.NewInstances()
	v.Subscribe(func(before, after *rikv1alpha1.Instance) {
		switch {
		case before == nil:
			seen = append(seen, "new "+string(after.UID))
		case after == nil:
			seen = append(seen, "gone "+string(before.UID))
		default:
			seen = append(seen, "changed "+string(after.UID))
		}
	})
	v.Observe(object("a", "u1", 1, ""))
	v.Observe(object("a", "u2", 3, "n"))
	v.Observe(object("a", "u2", 4, "n"))
	if want := "[new u1 gone u1 new u2 changed u2]"; fmt.Sprint(seen) != want {
		t.Errorf("received %v, want %s", seen, want)
	}
	if v.ByUID("u1") != nil || len(v.All()) != 1 {
		t.Error("the earlier object is still there")
	}
}

// model is the API server: the state after each revision, and the events that led to it.
type model struct {
	objects map[string]*rikv1alpha1.Instance
	events  []modelEvent
	uids    int
}

type modelEvent struct {
	object  *rikv1alpha1.Instance
	deleted bool
}

func (m *model) revision() int { return len(m.events) }

// write creates, changes or deletes an object, and returns the response to the write.
func (m *model) write(t *rapid.T) *rikv1alpha1.Instance {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	have, version := m.objects[name], m.revision()+1
	if have != nil && rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
		gone := object(name, string(have.UID), version, have.Spec.NodeName)
		delete(m.objects, name)
		m.events = append(m.events, modelEvent{gone, true})
		return nil
	}
	var next *rikv1alpha1.Instance
	if have == nil {
		m.uids++
		next = object(name, fmt.Sprint("u", m.uids), version, "")
	} else {
		next = object(name, string(have.UID), version, "n")
	}
	m.objects[name] = next
	m.events = append(m.events, modelEvent{next, false})
	return next
}

// shadow is what a listener knows.
type shadow map[types.UID]string

func (s shadow) listen(before, after *rikv1alpha1.Instance) {
	if after == nil {
		delete(s, before.UID)
	} else {
		s[after.UID] = after.ResourceVersion
	}
}

// TestEveryOrder: the watch, lists and the responses to writes may arrive in any order. The index
// ends in the state of the store, and so do its listeners, also those that began later.
func TestEveryOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &model{objects: map[string]*rikv1alpha1.Instance{}}
		v, first, later := index.NewInstances(), shadow{}, shadow{}
		v.Subscribe(first.listen)
		scope := v.Scope()
		scope.Subscribe(later.listen)
		var late []*rikv1alpha1.Instance
		watched, begins := 0, rapid.IntRange(0, 40).Draw(t, "scope begins")
		watch := func() {
			if e := m.events[watched]; e.deleted {
				v.Remove(e.object.DeepCopy())
			} else {
				v.Observe(e.object.DeepCopy())
			}
			watched++
		}
		for step := range 40 {
			if step == begins {
				scope.Begin()
			}
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0, 1:
				if response := m.write(t); response != nil {
					late = append(late, response.DeepCopy())
				}
			case 2:
				if watched < m.revision() {
					watch()
				}
			case 3, 4:
				if len(late) > 0 {
					at := rapid.IntRange(0, len(late)-1).Draw(t, "response")
					v.Put(late[at])
					late = append(late[:at], late[at+1:]...)
				}
			case 5: // the watch begins again
				var list []*rikv1alpha1.Instance
				for _, in := range m.objects {
					list = append(list, in.DeepCopy())
				}
				watched = m.revision()
				v.Replace(list, uint64(watched))
			}
		}
		for watched < m.revision() {
			watch()
		}
		for _, in := range late {
			v.Put(in)
		}
		want, onNode := shadow{}, 0
		for _, in := range m.objects {
			want.listen(nil, in)
			if in.Spec.NodeName != "" {
				onNode++
			}
			if got := v.Get(index.Key(in)); got == nil || got.UID != in.UID || v.ByUID(in.UID) != got {
				t.Fatalf("%s is %+v, want %s", in.Name, got, in.UID)
			}
		}
		got := shadow{}
		for _, in := range v.All() {
			got.listen(nil, in)
		}
		if !maps.Equal(got, want) || !maps.Equal(first, want) || begins < 40 && !maps.Equal(later, want) {
			t.Fatalf("the index has %v, its listeners %v and %v, want %v", got, first, later, want)
		}
		workload := types.NamespacedName{Namespace: "ns", Name: "w"}
		if len(v.OnNode("n")) != onNode || v.CountOfWorkload(workload) != len(want) || len(v.OfWorkload(workload)) != len(want) || v.CountIn("ns") != len(want) {
			t.Fatalf("%d on the node, %d of the workload, want %d and %d", len(v.OnNode("n")), v.CountOfWorkload(workload), onNode, len(want))
		}
	})
}

// TestReplaceKeepsLaterWrites: a list that began before a write of the controller does not take
// the write back, and what the list does not have is deleted.
func TestReplaceKeepsLaterWrites(t *testing.T) {
	t.Parallel()
	v := index.NewInstances()
	select {
	case <-v.Synced():
		t.Fatal("an index is synced before its first list")
	default:
	}
	v.Observe(object("a", "u1", 3, ""))
	v.Observe(object("b", "u2", 4, ""))
	v.Put(object("a", "u1", 9, "n"))
	v.Put(object("c", "u3", 10, "n"))
	v.Replace([]*rikv1alpha1.Instance{object("a", "u1", 3, "")}, 8)
	if v.ByUID("u1").Spec.NodeName != "n" || v.ByUID("u3") == nil || v.ByUID("u2") != nil {
		t.Errorf("after the list: %v", v.All())
	}
	<-v.Synced()
}

// TestReplaceAfterARestore: after the datastore was restored from a backup, versions count again
// from an earlier one. The index then has the state of the datastore, not the later one.
func TestReplaceAfterARestore(t *testing.T) {
	t.Parallel()
	v, received := index.NewInstances(), shadow{}
	v.Subscribe(received.listen)
	v.Observe(object("a", "u1", 30, "n"))
	v.Observe(object("b", "u2", 31, "n"))
	v.Put(object("c", "u3", 33, "n"))
	v.Replace([]*rikv1alpha1.Instance{object("a", "u1", 5, ""), object("b", "u0", 6, "")}, 20)
	if want := (shadow{"u1": "5", "u0": "6"}); !maps.Equal(received, want) || len(v.OnNode("n")) != 0 || len(v.All()) != 2 {
		t.Errorf("received %v, want %v; the index has %v", received, want, v.All())
	}
	v.Observe(object("a", "u1", 21, "m"))
	v.Put(object("d", "u4", 22, "m"))
	if len(v.OnNode("m")) != 2 {
		t.Errorf("after the restore the index does not follow: %v", v.All())
	}
}

// TestScopes: a scope receives the instances that are there when it begins, then of all changes
// until it ends.
func TestScopes(t *testing.T) {
	t.Parallel()
	v := index.NewInstances()
	v.Observe(object("a", "u1", 1, ""))
	s, received := v.Scope(), 0
	s.Subscribe(func(_, _ *rikv1alpha1.Instance) { received++ })
	v.Observe(object("b", "u2", 2, ""))
	if received != 0 {
		t.Fatalf("received %d changes before it began", received)
	}
	s.Begin()
	s.Put(object("c", "u3", 3, ""))
	v.Put(object("d", "u4", 4, ""))
	if received != 4 || len(s.All()) != 4 || len(v.All()) != 4 {
		t.Errorf("received %d changes, the scope has %d and the index %d, want 4 each", received, len(s.All()), len(v.All()))
	}
	s.End()
	s.End()
	if v.Observe(object("e", "u5", 5, "")); received != 4 {
		t.Errorf("received %d changes after its end", received)
	}
}

// TestOneCopy: the index holds an own write once. The watch delivers the same version in another
// object, which the index does not keep.
func TestOneCopy(t *testing.T) {
	t.Parallel()
	v := index.NewInstances()
	written, watched := object("a", "u", 7, "n"), object("a", "u", 7, "n")
	watched.ManagedFields, written.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}, []metav1.ManagedFieldsEntry{{Manager: "m"}}
	v.Put(written)
	v.Observe(watched)
	for _, got := range append(append(append(v.All(), v.OnNode("n")...), v.OfWorkload(index.WorkloadKey(written))...), v.ByUID("u"), v.Get(index.Key(written))) {
		if got != written || got.ManagedFields != nil {
			t.Errorf("the index holds %p, want %p, without managed fields", got, written)
		}
	}
}

// listing is a client whose server cannot send a list as a watch, as the fake client.
type listing struct{ client.WithWatch }

// IsWatchListSemanticsUnSupported is the method by which client-go recognizes such a client.
func (listing) IsWatchListSemanticsUnSupported() bool { return true }

// TestFollow: the index is the store of the watch of the API server.
func TestFollow(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := rikv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	first := object("a", "u1", 0, "")
	first.ResourceVersion = ""
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(first).Build()
	v := index.NewInstances()
	received := make(chan string, 10)
	v.Subscribe(func(before, after *rikv1alpha1.Instance) {
		switch {
		case after == nil:
			received <- "gone " + before.Name
		case before == nil:
			received <- "new " + after.Name
		default:
			received <- "changed " + after.Name
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Follow(ctx, listing{c}) }()
	next := func(timeout time.Duration) string {
		select {
		case s := <-received:
			return s
		case <-time.After(timeout):
			return "nothing"
		}
	}
	if got := next(time.Minute); got != "new a" {
		t.Fatalf("received %q, want the list", got)
	}
	<-v.Synced()
	// The fake client drops the events between the list and the watch, so change it until the
	// watch is there.
	changed := v.Get(index.Key(first)).DeepCopy()
	changed.Spec.NodeName = "n"
	said := "nothing"
	for deadline := time.Now().Add(time.Minute); said == "nothing" && time.Now().Before(deadline); said = next(20 * time.Millisecond) {
		if err := c.Update(t.Context(), changed); err != nil {
			t.Fatal(err)
		}
	}
	if said != "changed a" || len(v.OnNode("n")) != 1 {
		t.Errorf("received %q, want the change", said)
	}
	if err := c.Delete(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	for said = "changed a"; said == "changed a"; {
		said = next(time.Minute)
	}
	if said != "gone a" || len(v.All()) != 0 {
		t.Errorf("received %q, want the deletion", said)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Follow = %v", err)
	}
}

func TestObjects(t *testing.T) {
	t.Parallel()
	node := func(uid string, version int) *rikv1alpha1.Node {
		return &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: types.UID(uid), ResourceVersion: strconv.Itoa(version)}}
	}
	key := types.NamespacedName{Name: "n"}
	v := index.NewObjects[*rikv1alpha1.Node]()
	if v.Get(key) != nil {
		t.Error("an empty view has something")
	}
	v.Put(node("u1", 4))
	v.Observe(node("u1", 3))
	if got := v.Get(key).ResourceVersion; got != "4" {
		t.Errorf("version %s, want 4", got)
	}
	v.Observe(node("u2", 8))
	v.Remove(node("u1", 6))
	if v.Get(key) == nil || len(v.All()) != 1 {
		t.Error("the later object went with the earlier")
	}
	v.Remove(node("u2", 9))
	v.Put(node("u2", 7))
	if v.Get(key) != nil {
		t.Error("a late answer raised the dead")
	}
}
