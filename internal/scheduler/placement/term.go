package placement

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// termSpec defines a set of instances and a node label over whose values they are counted.
// Equal terms of different shapes have the same id and share one count in a snapshot.
type termSpec struct {
	id        string
	namespace string
	// selector selects instances. If it is nil, the term counts all instances of one workload.
	selector labels.Selector
	workload string
	key      string
}

func newTermSpec(namespace string, selector labels.Selector, key string) *termSpec {
	return &termSpec{
		id:        "labels\x00" + namespace + "\x00" + selector.String() + "\x00" + key,
		namespace: namespace, selector: selector, key: key,
	}
}

func (s *Shape) workloadTerm(key string) *termSpec {
	return &termSpec{
		id:        "workload\x00" + s.namespace + "\x00" + s.workload + "\x00" + key,
		namespace: s.namespace, workload: s.workload, key: key,
	}
}

func (t *termSpec) matches(s *Shape) bool {
	if t.namespace != s.namespace {
		return false
	}
	if t.selector == nil {
		return t.workload == s.workload
	}
	return t.selector.Matches(s.labels)
}

// cell holds the counts of one term in one domain (a value of the term's node label).
type cell struct {
	// matching counts the instances that the term matches.
	matching int32
	// repelling counts the instances that forbid matching instances.
	repelling int32
}

// term is a termSpec with its counts in one snapshot.
type term struct {
	*termSpec
	cells map[string]*cell
	// total counts the matching instances, including those on nodes without the label.
	total int32
	// users counts the shapes that use the term. forbidders counts those that use it in
	// instanceForbidden.
	users, forbidders int
}

func (t *term) cell(domain string) *cell {
	c := t.cells[domain]
	if c == nil {
		c = &cell{}
		t.cells[domain] = c
	}
	return c
}

// shapeState is a Shape with its counts in one snapshot.
type shapeState struct {
	shape    *Shape
	workload *workloadState
	// byNode counts the shape's instances by node index.
	byNode map[int32]int32

	required, forbidden []*term
	spread              []*term
	zone                *term
	// counted holds all terms that match the shape's instances. repelled holds those of them with
	// which another shape forbids these instances.
	counted, repelled []*term

	view *view
}

// workloadState groups the shapes of one workload. There is one for each revision and set of
// labels.
type workloadState struct {
	shapes []*shapeState
}

// on returns the number of the workload's instances on a node.
func (w *workloadState) on(node int32) int64 {
	var n int64
	for _, s := range w.shapes {
		n += int64(s.byNode[node])
	}
	return n
}

// state returns the snapshot's counts for a shape. It creates them if necessary.
func (s *Snapshot) state(shape *Shape) *shapeState {
	if st := s.states[shape]; st != nil {
		return st
	}
	st := &shapeState{shape: shape, byNode: map[int32]int32{}}
	name := shape.namespace + "/" + shape.workload
	w := s.workloads[name]
	if w == nil {
		w = &workloadState{}
		s.workloads[name] = w
	}
	w.shapes = append(w.shapes, st)
	st.workload = w
	s.states[shape] = st
	for _, t := range s.terms {
		st.count(t)
	}
	st.zone = s.useTerm(shape.zone)
	for _, spec := range shape.required {
		st.required = append(st.required, s.useTerm(spec))
	}
	for _, c := range shape.spread {
		st.spread = append(st.spread, s.useTerm(c.term))
	}
	for _, spec := range shape.forbidden {
		st.forbidden = append(st.forbidden, s.forbidTerm(spec))
	}
	return st
}

// count adds a term to those that count the shape's instances, if it matches them.
func (st *shapeState) count(t *term) {
	if !t.matches(st.shape) {
		return
	}
	st.counted = append(st.counted, t)
	if t.forbidders > 0 {
		st.repelled = append(st.repelled, t)
	}
}

// useTerm returns the term. It creates it if necessary and counts the placed instances.
func (s *Snapshot) useTerm(spec *termSpec) *term {
	t := s.terms[spec.id]
	if t == nil {
		t = &term{termSpec: spec, cells: map[string]*cell{}}
		s.terms[spec.id] = t
		for _, st := range s.states {
			st.count(t)
			if !t.matches(st.shape) {
				continue
			}
			for at, n := range st.byNode {
				t.total += n
				if domain, ok := s.nodes[at].Labels[t.key]; ok {
					t.cell(domain).matching += n
				}
			}
		}
	}
	t.users++
	return t
}

// forbidTerm is useTerm for instanceForbidden. From now on, the shape's instances repel the
// matching instances.
func (s *Snapshot) forbidTerm(spec *termSpec) *term {
	t := s.useTerm(spec)
	t.forbidders++
	if t.forbidders > 1 {
		return t
	}
	for _, st := range s.states {
		if t.matches(st.shape) && !slices.Contains(st.repelled, t) {
			st.repelled = append(st.repelled, t)
			s.dropView(st)
		}
	}
	return t
}

// Forget drops the snapshot's state of a shape that has no placed instances. It does nothing if
// there are some.
func (s *Snapshot) Forget(shape *Shape) {
	st := s.states[shape]
	if st == nil || len(st.byNode) > 0 {
		return
	}
	s.dropView(st)
	delete(s.states, shape)
	st.workload.shapes = slices.DeleteFunc(st.workload.shapes, func(o *shapeState) bool { return o == st })
	if len(st.workload.shapes) == 0 {
		delete(s.workloads, shape.namespace+"/"+shape.workload)
	}
	for _, t := range st.forbidden {
		if t.forbidders--; t.forbidders == 0 {
			s.stopRepelling(t)
		}
	}
	for _, t := range slices.Concat(st.required, st.forbidden, st.spread, []*term{st.zone}) {
		s.releaseTerm(t)
	}
}

func (s *Snapshot) stopRepelling(t *term) {
	for _, st := range s.states {
		if slices.Contains(st.repelled, t) {
			st.repelled = slices.DeleteFunc(st.repelled, func(o *term) bool { return o == t })
			s.dropView(st)
		}
	}
}

func (s *Snapshot) releaseTerm(t *term) {
	if t.users--; t.users > 0 {
		return
	}
	delete(s.terms, t.id)
	for _, st := range s.states {
		st.counted = slices.DeleteFunc(st.counted, func(o *term) bool { return o == t })
	}
}

// perNode reports whether every node is its own domain for a label. Counts over that label
// change only together with the node itself.
func (s *Snapshot) perNode(key string) bool {
	return key == rikv1alpha1.LabelHostname && s.oddHostnames == 0
}
