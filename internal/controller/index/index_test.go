package index_test

import (
	"fmt"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

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
		t.Errorf("heard %v, want %s", seen, want)
	}
	if v.ByUID("u1") != nil || len(v.All()) != 1 {
		t.Error("the earlier object is still there")
	}
}

// TestEveryOrder: the watch and the responses to writes may arrive in any order. The view ends
// in the state of the store.
func TestEveryOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := index.NewInstances()
		// The history of one object: created, changed, perhaps deleted.
		length := rapid.IntRange(1, 6).Draw(t, "versions")
		deleted := rapid.Bool().Draw(t, "deleted")
		watched, answered := 0, 0
		for watched < length || answered < length {
			if answered == length || watched < length && rapid.Bool().Draw(t, "watch first") {
				watched++
				v.Observe(object("a", "u", watched, "n"))
				if watched == length && deleted {
					v.Remove(object("a", "u", length+1, "n"))
				}
				continue
			}
			answered++
			v.Put(object("a", "u", answered, "n"))
		}
		in := v.ByUID("u")
		switch {
		case deleted && in != nil:
			t.Fatalf("version %s outlived its deletion", in.ResourceVersion)
		case !deleted && (in == nil || in.ResourceVersion != strconv.Itoa(length)):
			t.Fatalf("the view has %+v, want version %d", in, length)
		}
		if want := len(v.All()); len(v.OnNode("n")) != want {
			t.Fatalf("the index has %d, the view %d", len(v.OnNode("n")), want)
		}
	})
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
