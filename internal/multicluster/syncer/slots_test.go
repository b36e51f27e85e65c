package syncer

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestSlots tests that no type and no namespace takes all workers. Waiting objects are returned,
// and long waits are reported.
func TestSlots(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	maps, secrets := schema.GroupResource{Resource: "configmaps"}, schema.GroupResource{Resource: "secrets"}
	s := newSlots(8) // 6 of a type, 4 of a namespace
	take := func(resource schema.GroupResource, namespace, name string, want bool) Key {
		t.Helper()
		key := Key{Type: resource, Namespace: namespace, Name: name}
		if got := s.take(key, start); got != want {
			t.Fatalf("take(%v) = %v, want %v", key, got, want)
		}
		return key
	}
	var taken []Key
	for _, name := range []string{"a", "b", "c", "d"} {
		taken = append(taken, take(maps, "team", name, true))
	}
	parked := take(maps, "team", "e", false)
	take(secrets, "team", "e", false)
	taken = append(taken, take(maps, "other", "a", true), take(maps, "other", "b", true))
	third := take(maps, "third", "a", false)
	taken = append(taken, take(secrets, "fourth", "a", true))
	// The last slots are for namespaces that have none.
	open := take(secrets, "other", "a", false)
	taken = append(taken, take(secrets, "fifth", "a", true))
	if got := s.waiting(start.Add(time.Second)); len(got) > 0 {
		t.Errorf("after a second it reports %v", got)
	}
	if got := s.waiting(start.Add(slotTimeout)); len(got) != 2 || got["configmaps"].message == "" || got["secrets"].message == "" {
		t.Errorf("after a while it reports %v", got)
	}
	if got := s.give(taken[0]); !slices.Equal(got, []Key{third, parked, open}) {
		t.Errorf("give() = %v, want one that waits for the type, one for the namespace and one for an open slot", got)
	}
	if got := s.waiting(start.Add(slotTimeout)); len(got) > 0 {
		t.Errorf("after a slot came free it reports %v", got)
	}
	for _, key := range taken[1:] {
		for _, next := range s.give(key) {
			if s.take(next, start) {
				s.give(next)
			}
		}
	}
	if len(s.types)+len(s.namespaces)+len(s.parked)+len(s.full) > 0 {
		t.Errorf("at rest it holds %+v", s)
	}
}
