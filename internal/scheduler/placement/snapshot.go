package placement

import (
	"maps"
	"slices"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Strategy decides how nodes are filled.
type Strategy string

const (
	// Spread prefers nodes with more free resources. It is the default.
	Spread Strategy = "Spread"
	// BinPack prefers nodes with fewer free resources, so that others stay empty.
	BinPack Strategy = "BinPack"
)

// Options configures a Snapshot.
type Options struct {
	// Strategy is Spread when empty.
	Strategy Strategy
	// Salt decides between nodes of equal score. The same salt gives the same choice.
	Salt uint64
}

// Occupant is an instance that holds resources of a node.
type Occupant struct {
	UID   string
	Shape *Shape
	Node  string
	// CreatedUnixNano is the creation time. Preempt spares older instances.
	CreatedUnixNano int64
}

// Snapshot is the state of a cluster that placement uses: the nodes and the instances that hold
// their resources. It is not safe for concurrent use: one goroutine owns it. Use Clone to try
// out changes.
type Snapshot struct {
	options Options

	// nodes keep their index until they are removed. A removed node leaves nil, and the next new
	// node gets its index.
	nodes  []*node
	byName map[string]int32
	free   []int32
	known  int
	// oddHostnames counts nodes whose host name label differs from their name.
	oddHostnames int

	placed    map[string]*occupant
	states    map[*Shape]*shapeState
	workloads map[string]*workloadState
	terms     map[string]*term
	// clusterPorts counts the instances that reserve each port on all nodes, by workload.
	// ownPorts counts those that use it in their node's own network, on any node.
	clusterPorts map[Port]map[*workloadState]int32
	ownPorts     map[Port]map[*workloadState]int32

	// changed holds the indexes of nodes in the order in which they changed. Its first entry has
	// the number changedFrom.
	changed     []int32
	changedFrom uint64
	views       []*view
	clock       uint64
}

// NewSnapshot creates an empty snapshot.
func NewSnapshot(o Options) *Snapshot {
	return &Snapshot{
		options: o, byName: map[string]int32{}, placed: map[string]*occupant{},
		states: map[*Shape]*shapeState{}, workloads: map[string]*workloadState{}, terms: map[string]*term{},
		clusterPorts: map[Port]map[*workloadState]int32{}, ownPorts: map[Port]map[*workloadState]int32{},
	}
}

// Nodes returns the number of nodes set by SetNode.
func (s *Snapshot) Nodes() int { return s.known }

// Occupants returns the number of instances that hold resources.
func (s *Snapshot) Occupants() int { return len(s.placed) }

// Where returns the node whose resources an instance holds.
func (s *Snapshot) Where(uid string) (node string, ok bool) {
	o := s.placed[uid]
	if o == nil {
		return "", false
	}
	return s.nodes[o.node].Name, true
}

// SetNode adds or updates a node. The instances on it stay.
func (s *Snapshot) SetNode(n Node) {
	at := s.index(n.Name)
	if !s.nodes[at].known {
		s.nodes[at].known = true
		s.known++
	}
	s.replace(at, n)
}

// replace updates a node and corrects all counts that depended on its old state.
func (s *Snapshot) replace(at int32, n Node) {
	old := s.nodes[at]
	moved := !maps.Equal(old.Labels, n.Labels)
	if moved {
		s.countAll(old, -1)
	}
	if o := odd(&n) - odd(&old.Node); o != 0 {
		s.oddHostnames += o
		s.dropViews()
	}
	old.free.subtract(old.Allocatable)
	old.Node = n
	old.free.add(n.Allocatable)
	if moved {
		s.countAll(old, 1)
	}
	old.static++
	s.touch(at)
}

// odd is 1 for a node whose host name label is another name.
func odd(n *Node) int {
	if host, ok := n.Labels[rikv1alpha1.LabelHostname]; ok && host != n.Name {
		return 1
	}
	return 0
}

// RemoveNode removes a node. Instances on it keep their place until they are removed, since
// they may still run. The node's labels are dropped, so those instances count in no domain.
func (s *Snapshot) RemoveNode(name string) {
	at, ok := s.byName[name]
	if !ok || !s.nodes[at].known {
		return
	}
	s.nodes[at].known = false
	s.known--
	s.replace(at, Node{Name: name})
	s.dropRemoved(at)
}

// dropRemoved frees the index of a node that was removed and has no instances.
func (s *Snapshot) dropRemoved(at int32) {
	n := s.nodes[at]
	if n.known || len(n.occupants) > 0 {
		return
	}
	delete(s.byName, n.Name)
	s.nodes[at] = nil
	s.free = append(s.free, at)
}

// index returns the index of a node. It creates the node if necessary.
func (s *Snapshot) index(name string) int32 {
	if at, ok := s.byName[name]; ok {
		return at
	}
	n := &node{Node: Node{Name: name}, hash: hashOf(name)}
	var at int32
	if last := len(s.free) - 1; last >= 0 {
		at = s.free[last]
		s.free = s.free[:last]
		s.nodes[at] = n
	} else {
		at = int32(len(s.nodes))
		s.nodes = append(s.nodes, n)
	}
	s.byName[name] = at
	// Versions keep rising across all nodes that had the same index, so that a view never
	// mistakes a new node for an old one.
	s.clock++
	n.version = s.clock
	n.static = uint32(s.clock)
	return at
}

// Put places an instance on a node, after a decision or because it already runs there. It
// replaces an earlier place of the same UID. It does not check whether there is room.
func (s *Snapshot) Put(o Occupant) {
	st := s.state(o.Shape)
	if old := s.placed[o.UID]; old != nil {
		if old.state == st && s.nodes[old.node].Name == o.Node {
			return
		}
		s.Remove(o.UID)
	}
	s.put(&occupant{uid: o.UID, state: st, node: s.index(o.Node), created: o.CreatedUnixNano})
}

func (s *Snapshot) put(o *occupant) {
	n := s.nodes[o.node]
	o.index = int32(len(n.occupants))
	n.occupants = append(n.occupants, o)
	s.placed[o.uid] = o
	n.free.subtract(o.state.shape.requests)
	o.state.byNode[o.node]++
	s.count(n, o.state, 1)
	s.takePorts(n, o.state, 1)
	s.touch(o.node)
}

// Remove removes an instance and frees its resources. It does nothing for an unknown UID.
func (s *Snapshot) Remove(uid string) {
	o := s.placed[uid]
	if o == nil {
		return
	}
	s.remove(o)
	s.dropRemoved(o.node)
}

func (s *Snapshot) remove(o *occupant) {
	n := s.nodes[o.node]
	last := len(n.occupants) - 1
	n.occupants[o.index] = n.occupants[last]
	n.occupants[o.index].index = o.index
	n.occupants[last] = nil
	n.occupants = n.occupants[:last]
	delete(s.placed, o.uid)
	n.free.add(o.state.shape.requests)
	if o.state.byNode[o.node]--; o.state.byNode[o.node] == 0 {
		delete(o.state.byNode, o.node)
	}
	s.count(n, o.state, -1)
	s.takePorts(n, o.state, -1)
	s.touch(o.node)
}

// count adds n instances of a shape on a node to every term that counts them.
func (s *Snapshot) count(at *node, st *shapeState, n int32) {
	for _, t := range st.counted {
		t.total += n
		if domain, ok := at.Labels[t.key]; ok {
			t.cell(domain).matching += n
		}
	}
	for _, t := range st.forbidden {
		if domain, ok := at.Labels[t.key]; ok {
			t.cell(domain).repelling += n
		}
	}
}

func (s *Snapshot) countAll(at *node, n int32) {
	for _, o := range at.occupants {
		s.count(at, o.state, n)
	}
}

func (s *Snapshot) takePorts(at *node, st *shapeState, n int32) {
	for _, p := range st.shape.clusterPorts {
		take(s.clusterPorts, p, st.workload, n)
	}
	for _, p := range st.shape.nodePorts {
		take(s.ownPorts, p, st.workload, n)
		if at.ports == nil {
			at.ports = map[Port]int32{}
		}
		if at.ports[p] += n; at.ports[p] == 0 {
			delete(at.ports, p)
		}
	}
}

func take(ports map[Port]map[*workloadState]int32, p Port, w *workloadState, n int32) {
	takers := ports[p]
	if takers == nil {
		takers = map[*workloadState]int32{}
		ports[p] = takers
	}
	if takers[w] += n; takers[w] == 0 {
		delete(takers, w)
	}
	if len(takers) == 0 {
		delete(ports, p)
	}
}

// touch records that a node changed.
func (s *Snapshot) touch(at int32) {
	s.clock++
	s.nodes[at].version = s.clock
	// If a view is more than a few rounds over all nodes behind, it is cheaper to rebuild it. The
	// log therefore need not be longer.
	if len(s.changed) > 4*len(s.nodes)+1024 {
		half := len(s.changed) / 2
		s.changed = slices.Delete(s.changed, 0, half)
		s.changedFrom += uint64(half)
	}
	s.changed = append(s.changed, at)
}

// Clone creates an independent copy, to try out changes.
func (s *Snapshot) Clone() *Snapshot {
	c := NewSnapshot(s.options)
	for _, n := range s.nodes {
		if n != nil && n.known {
			c.SetNode(n.Node)
		}
	}
	for _, n := range s.nodes {
		if n == nil {
			continue
		}
		for _, o := range n.occupants {
			c.Put(Occupant{UID: o.uid, Shape: o.state.shape, Node: n.Name, CreatedUnixNano: o.created})
		}
	}
	return c
}
