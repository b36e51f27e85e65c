package syncer

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// slotTimeout is how long a limit may be reached, with no slot becoming free, before that is
// reported.
const slotTimeout = 5 * time.Second

// slots limits how many objects of one type, and of one namespace, are processed at once. A
// cluster may answer late for some objects, for example because a webhook hangs. Without a limit,
// they would occupy all workers, and everything else would wait.
type slots struct {
	perType, perNamespace int
	// open is the number of slots for which only these limits count. The rest is for namespaces
	// that have no slot, so that two namespaces whose requests hang do not take all slots.
	open int

	mu sync.Mutex
	// types and namespaces count the slots that are taken. mu guards them and all following
	// fields.
	types      map[schema.GroupResource]int
	taken      int
	namespaces map[string]int
	// parked are the waiting objects, by the limit that was reached. full is since when no slot
	// of a limit has become free.
	parked map[limit][]Key
	full   map[limit]time.Time
}

// limit identifies the limit of a type or of a namespace. The zero value is the limit of the open
// slots.
type limit struct {
	resource  schema.GroupResource
	namespace string
}

// newSlots reserves a quarter of the workers for other types, half of them for other namespaces,
// and a quarter for namespaces that have no slot.
func newSlots(workers int) *slots {
	return &slots{
		perType: max(1, workers*3/4), perNamespace: max(1, workers/2), open: max(1, workers*3/4),
		types: map[schema.GroupResource]int{}, namespaces: map[string]int{},
		parked: map[limit][]Key{}, full: map[limit]time.Time{},
	}
}

// take takes a slot for an object. If no slot is free, it parks the object until give returns it.
func (s *slots) take(key Key, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var reached limit
	switch {
	case s.types[key.Type] >= s.perType:
		reached.resource = key.Type
	case key.Namespace != "" && s.namespaces[key.Namespace] >= s.perNamespace:
		reached.namespace = key.Namespace
	case key.Namespace != "" && s.taken >= s.open && s.namespaces[key.Namespace] > 0:
	default:
		s.taken++
		s.types[key.Type]++
		s.namespaces[key.Namespace]++
		return true
	}
	s.parked[reached] = append(s.parked[reached], key)
	if _, known := s.full[reached]; !known {
		s.full[reached] = now
	}
	return false
}

// give returns a slot. The result is the objects that may try again.
func (s *slots) give(key Key) []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.types[key.Type]--; s.types[key.Type] == 0 {
		delete(s.types, key.Type)
	}
	if s.namespaces[key.Namespace]--; s.namespaces[key.Namespace] == 0 {
		delete(s.namespaces, key.Namespace)
	}
	var next []Key
	for _, reached := range []limit{{resource: key.Type}, {namespace: key.Namespace}, {}} {
		delete(s.full, reached)
		waiting := s.parked[reached]
		if len(waiting) == 0 {
			continue
		}
		next = append(next, waiting[0])
		if s.parked[reached] = waiting[1:]; len(waiting) == 1 {
			delete(s.parked, reached)
		}
	}
	return next
}

// waiting returns the types whose limit has been reached for a while, and since when.
func (s *slots) waiting(now time.Time) map[string]waitingType {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]waitingType{}
	for reached, since := range s.full {
		if now.Sub(since) < slotTimeout {
			continue
		}
		message := fmt.Sprintf("%d requests for objects of this type wait for the cluster's answer; further ones wait for them", s.perType)
		switch {
		case reached == limit{}:
			message = fmt.Sprintf("%d requests wait for the cluster's answer; further ones of their namespaces wait for them", s.open)
		case reached.namespace != "":
			message = fmt.Sprintf("%d requests for objects of the namespace %s wait for the cluster's answer; further ones wait for them", s.perNamespace, reached.namespace)
		}
		for _, key := range s.parked[reached] {
			if before, ok := found[key.Type.String()]; !ok || since.Before(before.since) {
				found[key.Type.String()] = waitingType{since: since, message: message}
			}
		}
	}
	return found
}

// waitingType is a type whose objects wait for a slot.
type waitingType struct {
	since   time.Time
	message string
}

// sortedKeys returns the keys of a map in a stable order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
