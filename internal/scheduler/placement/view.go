package placement

import (
	"slices"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// viewBudget bounds the memory of all views: the number of views times the number of nodes. A
// slot and a heap entry use about 80 bytes, so the maximum is 48 MB.
const viewBudget = 600_000

// view is a shape's heap of nodes. Nodes form a group if they are in the same domain for every
// topology key that the shape uses. Each group has a heap, ordered by the score of the node
// itself. Affinity between instances and spread are the same for all nodes of a group and are
// computed per group at every decision.
type view struct {
	state *shapeState
	// keys are the topology keys. constraints are the requirements on their domains.
	keys        []string
	constraints []constraint
	// seen is the number of the first change that the view has not applied.
	seen   uint64
	used   uint64
	slots  []slot
	groups []*group
	byKey  map[string]*group
	// lowest is the result of lows, reused to avoid an allocation.
	lowest []int32
	// rejected counts the nodes by outcome, including fits.
	rejected [outcomes]int32
}

// constraint is a requirement on a domain.
type constraint struct {
	role role
	term *term
	key  int // index in keys
	// for spread:
	maxSkew int32
}

type role uint8

const (
	zoneScore role = iota
	spreadHard
	spreadSoft
	requires
	forbids
	repelledBy
)

// slot is the state of a node in a view.
type slot struct {
	group       *group
	staticScore int64
	version     uint64
	position    int32 // in the heap; -1 if the node does not fit
	static      uint32
	outcome     outcome
	validated   outcome // of the static filters
	present     bool
}

// group is a set of nodes in the same domains.
type group struct {
	// cells holds one cell for each constraint. It is nil if the nodes lack the key.
	cells []*cell
	heap  []entry
	// eligible counts the nodes that pass the static filters.
	eligible int32
}

// entry is a node that fits. It contains the values that order it, so that heap operations read
// no other memory.
type entry struct {
	score int64
	tie   uint64
	node  int32
}

func (e *entry) before(o *entry) bool {
	if e.score != o.score {
		return e.score > o.score
	}
	return e.tie < o.tie
}

// viewOf returns the current view of the shape.
func (s *Snapshot) viewOf(st *shapeState) *view {
	v := st.view
	if v == nil || v.seen < s.changedFrom {
		s.dropView(st)
		v = s.newView(st)
	}
	s.clock++
	v.used = s.clock
	for end := s.changedFrom + uint64(len(s.changed)); v.seen < end; v.seen++ {
		s.refresh(v, s.changed[v.seen-s.changedFrom])
	}
	return v
}

func (s *Snapshot) newView(st *shapeState) *view {
	for len(s.views) > 0 && (len(s.views)+1)*len(s.nodes) > viewBudget {
		oldest := slices.MinFunc(s.views, func(a, b *view) int { return int(a.used) - int(b.used) })
		s.dropView(oldest.state)
	}
	v := &view{state: st, byKey: map[string]*group{}, seen: s.changedFrom + uint64(len(s.changed))}
	v.constrain(s)
	v.slots = make([]slot, 0, len(s.nodes))
	for at := range s.nodes {
		s.refresh(v, int32(at))
	}
	st.view = v
	s.views = append(s.views, v)
	return v
}

func (s *Snapshot) dropView(st *shapeState) {
	if st.view == nil {
		return
	}
	at := slices.Index(s.views, st.view)
	s.views = slices.Delete(s.views, at, at+1)
	st.view = nil
}

func (s *Snapshot) dropViews() {
	for _, v := range s.views {
		v.state.view = nil
	}
	s.views = nil
}

// constrain adds the shape's requirements on domains to the view.
func (v *view) constrain(s *Snapshot) {
	st := v.state
	if s.options.Strategy != BinPack {
		v.ask(constraint{role: zoneScore, term: st.zone})
	}
	for i, t := range st.spread {
		c := constraint{role: spreadSoft, term: t, maxSkew: st.shape.spread[i].maxSkew}
		if st.shape.spread[i].hard {
			c.role = spreadHard
		}
		v.ask(c)
	}
	for _, t := range st.required {
		v.ask(constraint{role: requires, term: t})
	}
	for _, t := range st.forbidden {
		if !s.perNode(t.key) {
			v.ask(constraint{role: forbids, term: t})
		}
	}
	for _, t := range st.repelled {
		if !s.perNode(t.key) {
			v.ask(constraint{role: repelledBy, term: t})
		}
	}
}

func (v *view) ask(c constraint) {
	c.key = slices.Index(v.keys, c.term.key)
	if c.key < 0 {
		c.key = len(v.keys)
		v.keys = append(v.keys, c.term.key)
	}
	v.constraints = append(v.constraints, c)
}

// refresh updates the view's state of one node.
func (s *Snapshot) refresh(v *view, at int32) {
	for int(at) >= len(v.slots) {
		v.slots = append(v.slots, slot{position: -1})
	}
	sl, n := &v.slots[at], s.nodes[at]
	if n == nil {
		v.forget(sl)
		return
	}
	if sl.present && sl.version == n.version {
		return
	}
	if !sl.present || sl.static != n.static {
		v.forget(sl)
		v.learn(sl, n)
	}
	sl.version = n.version
	said := sl.validated
	if said == fits {
		said = s.checkPlaced(v.state, n)
	}
	if said != sl.outcome {
		v.rejected[sl.outcome]--
		v.rejected[said]++
		sl.outcome = said
	}
	if said != fits {
		v.take(sl)
		return
	}
	e := entry{score: sl.staticScore + s.scorePlaced(v.state, n, at), node: at}
	e.tie = mix(n.hash ^ v.state.shape.salt ^ s.options.Salt)
	v.give(sl, e)
}

// forget removes a node from the view.
func (v *view) forget(sl *slot) {
	if !sl.present {
		return
	}
	v.take(sl)
	v.rejected[sl.outcome]--
	if sl.validated == fits {
		sl.group.eligible--
	}
	*sl = slot{position: -1}
}

// learn computes the parts that do not depend on placed instances.
func (v *view) learn(sl *slot, n *node) {
	sl.present, sl.static = true, n.static
	sl.group = v.groupOf(n)
	sl.validated = v.state.shape.checkStatic(n)
	sl.outcome = sl.validated
	v.rejected[sl.outcome]++
	if sl.validated == fits {
		sl.group.eligible++
		sl.staticScore = v.state.shape.scoreStatic(n)
	}
}

// groupOf returns the group of the nodes in the same domains. It creates it if necessary.
func (v *view) groupOf(n *node) *group {
	key := v.groupKey(n)
	g := v.byKey[key]
	if g != nil {
		return g
	}
	g = &group{cells: make([]*cell, len(v.constraints))}
	for i := range v.constraints {
		if domain, ok := n.Labels[v.keys[v.constraints[i].key]]; ok {
			g.cells[i] = v.constraints[i].term.cell(domain)
		}
	}
	v.byKey[key] = g
	v.groups = append(v.groups, g)
	return g
}

func (v *view) groupKey(n *node) string {
	if len(v.keys) == 1 && v.keys[0] == rikv1alpha1.LabelZone {
		if zone, ok := n.Labels[rikv1alpha1.LabelZone]; ok {
			return zone
		}
		return "\x01"
	}
	var b strings.Builder
	for _, key := range v.keys {
		domain, ok := n.Labels[key]
		if !ok {
			// No label value contains a control character.
			domain = "\x01"
		}
		b.WriteString(domain)
		b.WriteByte(0)
	}
	return b.String()
}

// take removes a node from its group's heap.
func (v *view) take(sl *slot) {
	if sl.position < 0 {
		return
	}
	h, at := sl.group.heap, int(sl.position)
	last := len(h) - 1
	sl.position = -1
	moved := h[last]
	sl.group.heap = h[:last]
	if at == last {
		return
	}
	h[at] = moved
	v.slots[moved.node].position = int32(at)
	v.fix(sl.group, at)
}

// give adds a node to its group's heap, or moves it there.
func (v *view) give(sl *slot, e entry) {
	g := sl.group
	if sl.position < 0 {
		sl.position = int32(len(g.heap))
		g.heap = append(g.heap, e)
	} else {
		g.heap[sl.position] = e
	}
	v.fix(g, int(sl.position))
}

// fix restores the heap order after one entry changed.
func (v *view) fix(g *group, at int) {
	h, e := g.heap, g.heap[at]
	start := at
	for at > 0 {
		parent := (at - 1) / 2
		if !e.before(&h[parent]) {
			break
		}
		h[at] = h[parent]
		v.slots[h[at].node].position = int32(at)
		at = parent
	}
	if at == start {
		at = v.sink(h, at, e)
	}
	h[at] = e
	v.slots[e.node].position = int32(at)
}

// sink finds the position of an entry below at and moves better entries up.
func (v *view) sink(h []entry, at int, e entry) int {
	for {
		child := 2*at + 1
		if child >= len(h) {
			return at
		}
		if right := child + 1; right < len(h) && h[right].before(&h[child]) {
			child = right
		}
		if !h[child].before(&e) {
			return at
		}
		h[at] = h[child]
		v.slots[h[at].node].position = int32(at)
		at = child
	}
}
