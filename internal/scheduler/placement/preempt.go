package placement

import (
	"cmp"
	"slices"
)

// preemptTries bounds the number of nodes on which Preempt tries a removal in full. Candidates
// are tried in the order of their estimated cost, so the bound matters only if ports or
// affinity rule out the first ones.
const preemptTries = 64

// Preemption is a node and the instances whose removal would make room on it.
type Preemption struct {
	Node    string
	Victims []string
}

// cost orders preemptions: the lowest priority of the victims first, then the fewest victims,
// then the youngest.
type cost struct {
	priority int32
	victims  int
	oldest   int64
	tie      uint64
}

func (c cost) compare(o cost) int {
	return cmp.Or(
		cmp.Compare(c.priority, o.priority), cmp.Compare(c.victims, o.victims),
		cmp.Compare(o.oldest, c.oldest), cmp.Compare(c.tie, o.tie),
	)
}

type candidate struct {
	node int32
	cost
}

// Preempt finds the node on which the request would fit if instances of lower priority were
// removed, and the victims. It prefers victims of the lowest priority, then the fewest victims.
// It removes nothing. ok is false when no such node exists.
func Preempt(s *Snapshot, r Request) (p Preemption, ok bool) {
	defer s.lift(r.UID)()
	st := s.state(r.Shape)
	if _, taken := s.clusterPortTaken(st); taken {
		return Preemption{}, false
	}
	v := s.viewOf(st)
	var best cost
	for _, c := range s.preemptCandidates(v) {
		victims, actual := s.tryVictims(v, c.node)
		if len(victims) == 0 || ok && actual.compare(best) >= 0 {
			continue
		}
		p, best, ok = Preemption{Node: s.nodes[c.node].Name, Victims: victims}, actual, true
	}
	return p, ok
}

// preemptCandidates lists nodes on which the resources alone would suffice, the lowest
// estimated cost first.
func (s *Snapshot) preemptCandidates(v *view) []candidate {
	var out []candidate
	for at := range v.slots {
		sl := &v.slots[at]
		if !sl.present || sl.validated != fits {
			continue
		}
		if c, ok := s.estimate(v.state, int32(at)); ok {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b candidate) int { return a.compare(b.cost) })
	return out[:min(len(out), preemptTries)]
}

// estimate counts the victims by resources alone.
func (s *Snapshot) estimate(st *shapeState, at int32) (candidate, bool) {
	n := s.nodes[at]
	c := candidate{node: at, cost: cost{tie: mix(n.hash ^ s.options.Salt)}}
	if !couldFree(st.shape, n) {
		return c, false
	}
	lower := s.lower(st.shape, n)
	free := n.free
	for _, o := range lower {
		if free.lacking(&st.shape.requests) == fits && c.victims > 0 {
			break
		}
		free.add(o.state.shape.requests)
		c.priority = o.state.shape.priority
		c.oldest = o.created
		c.victims++
	}
	return c, free.lacking(&st.shape.requests) == fits
}

// couldFree reports whether the node would have enough resources if all instances of lower
// priority were removed. It runs first because it allocates no memory and rules out most nodes.
func couldFree(shape *Shape, n *node) bool {
	free, any := n.free, false
	for _, o := range n.occupants {
		if o.state.shape.priority < shape.priority {
			free.add(o.state.shape.requests)
			any = true
		}
	}
	return any && free.lacking(&shape.requests) == fits
}

// lower lists the instances of a node that the shape may preempt, the lowest priority and the
// youngest first.
func (s *Snapshot) lower(shape *Shape, n *node) []*occupant {
	var out []*occupant
	for _, o := range n.occupants {
		if o.state.shape.priority < shape.priority {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b *occupant) int {
		return cmp.Or(
			cmp.Compare(a.state.shape.priority, b.state.shape.priority),
			cmp.Compare(b.created, a.created), cmp.Compare(a.uid, b.uid),
		)
	})
	return out
}

// tryVictims removes every instance of lower priority from a node, then puts back those that
// can stay, the highest priority first. The snapshot is unchanged at the end.
func (s *Snapshot) tryVictims(v *view, at int32) (victims []string, c cost) {
	n := s.nodes[at]
	lower := s.lower(v.state.shape, n)
	for _, o := range lower {
		s.remove(o)
	}
	var gone []*occupant
	if s.fitsOn(v, at) {
		for _, o := range slices.Backward(lower) {
			s.put(o)
			if !s.fitsOn(v, at) {
				s.remove(o)
				gone = append(gone, o)
			}
		}
	} else {
		gone = lower
	}
	possible := s.fitsOn(v, at)
	for _, o := range gone {
		s.put(o)
	}
	if !possible {
		return nil, cost{}
	}
	c = cost{tie: mix(n.hash ^ s.options.Salt), victims: len(gone)}
	for i, o := range gone {
		victims = append(victims, o.uid)
		c.priority = max(c.priority, o.state.shape.priority)
		if i == 0 {
			c.priority, c.oldest = o.state.shape.priority, o.created
		}
		c.oldest = min(c.oldest, o.created)
	}
	slices.Sort(victims)
	return victims, c
}

// fitsOn applies all filters to the current state of one node.
func (s *Snapshot) fitsOn(v *view, at int32) bool {
	if s.checkPlaced(v.state, s.nodes[at]) != fits {
		return false
	}
	return v.checkGroup(v.slots[at].group, v.lows()) == fits
}
