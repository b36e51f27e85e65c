package placement

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// termSpec names a set of instances and a node label over which they are
// counted. Equal terms of different shapes have the same id and share one
// count in a snapshot.
type termSpec struct {
	id        string
	namespace string
	// selector of instances; nil means all of one workload.
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

// cell counts, for one term in one place (a value of the term's node label).
type cell struct {
	// matching instances.
	matching int32
	// repelling counts instances that forbid those that match.
	repelling int32
}

// term is a termSpec with its counts in one snapshot.
type term struct {
	*termSpec
	cells map[string]*cell
	// total of matching instances, on nodes without the label too.
	total int32
	// users and forbidders count the shapes that name the term, and those that
	// name it in instanceForbidden.
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
	// byNode counts the shape's instances per node index.
	byNode map[int32]int32

	required, forbidden []*term
	spread              []*term
	zone                *term
	// counted are all terms that match the shape's instances, repelled those
	// of them by which another shape keeps them away.
	counted, repelled []*term

	view *view
}

// workloadState groups the shapes of one workload: one for each revision and
// set of labels.
type workloadState struct {
	shapes []*shapeState
}

// on counts the workload's instances on a node.
func (w *workloadState) on(node int32) int64 {
	var n int64
	for _, s := range w.shapes {
		n += int64(s.byNode[node])
	}
	return n
}

// state finds or makes the snapshot's counts for a shape.
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

// count notes that a term counts the shape's instances, if it does.
func (st *shapeState) count(t *term) {
	if !t.matches(st.shape) {
		return
	}
	st.counted = append(st.counted, t)
	if t.forbidders > 0 {
		st.repelled = append(st.repelled, t)
	}
}

// useTerm finds the term or makes it, counting the instances that are there.
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

// forbidTerm is useTerm for instanceForbidden: those that match are from now on
// repelled by the shape's instances.
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

// Forget drops what the snapshot keeps for a shape of which no instance is
// placed. It does nothing while there is one.
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

// perNode says whether every node is a place of its own for a label, so that
// counts over it change only together with the node itself.
func (s *Snapshot) perNode(key string) bool {
	return key == rikv1alpha1.LabelHostname && s.oddHostnames == 0
}
