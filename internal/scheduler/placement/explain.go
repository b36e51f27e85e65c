package placement

import (
	"fmt"
	"slices"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Verdict is what placement said of one node.
type Verdict struct {
	Node string
	// Filter that rejected the node; empty when it fits.
	Filter string
	// Reason in words; empty when it fits.
	Reason string
	// Score and its parts by scorer, weights included, when it fits.
	Score  int64
	Scores map[string]int64
}

// Explanation is a Decision with the verdict on every node, by name.
type Explanation struct {
	Decision
	Summary  string
	Verdicts []Verdict
}

// Explain places the request in thought and says what every filter and scorer
// said of every node. It looks at each node, so it is for people, not for
// batches.
func Explain(s *Snapshot, r Request) Explanation {
	defer s.lift(r.UID)()
	st := s.state(r.Shape)
	e := Explanation{Decision: Place(s, r)}
	v := s.viewOf(st)
	lows := v.lows()
	for at, n := range s.nodes {
		if n != nil && n.known {
			e.Verdicts = append(e.Verdicts, s.explainNode(v, int32(at), lows))
		}
	}
	slices.SortFunc(e.Verdicts, func(a, b Verdict) int { return strings.Compare(a.Node, b.Node) })
	e.Summary = e.Message
	if e.Node != "" {
		fitting := 0
		for i := range e.Verdicts {
			if e.Verdicts[i].Filter == "" {
				fitting++
			}
		}
		e.Summary = fmt.Sprintf("%d of %d nodes fit; %s scores best", fitting, s.known, e.Node)
	}
	return e
}

// lift takes an instance from its place and returns what puts it back.
func (s *Snapshot) lift(uid string) (restore func()) {
	o := s.placed[uid]
	if o == nil {
		return func() {}
	}
	s.remove(o)
	return func() { s.put(o) }
}

func (s *Snapshot) explainNode(v *view, at int32, lows []int32) Verdict {
	n, st := s.nodes[at], v.state
	out := Verdict{Node: n.Name}
	said := st.shape.judgeStatic(n)
	if said == fits {
		said = s.judgePlaced(st, n)
	}
	g := v.slots[at].group
	if said == fits {
		said = v.judgeGroup(g, lows)
	}
	if p, taken := s.clusterPortTaken(st); taken && said == fits {
		out.Filter, out.Reason = filters[portTaken], fmt.Sprintf("port %s is reserved by another workload", p)
		return out
	}
	if said != fits {
		out.Filter, out.Reason = filters[said], s.because(st, n, said)
		return out
	}
	out.Scores = s.scores(v, g, at, lows)
	for _, score := range out.Scores {
		out.Score += score
	}
	return out
}

func (s *Snapshot) scores(v *view, g *group, at int32, lows []int32) map[string]int64 {
	n, st := s.nodes[at], v.state
	out := map[string]int64{
		"Resources":         weightResources * s.scoreResources(st.shape, n),
		"ImageLocality":     weightImages * st.shape.scoreImages(n),
		"PreferredAffinity": weightPreferred * st.shape.scorePreferred(n),
		"Taints":            weightTaints * st.shape.scoreTaints(n),
		"TopologySpread":    v.scoreGroup(g, lows),
	}
	if s.options.Strategy != BinPack {
		out["WorkloadSpread"] = weightApart * scoreApart(st, at)
	}
	return out
}

// because says in words why a node was rejected.
func (s *Snapshot) because(st *shapeState, n *node, said verdict) string {
	shape := st.shape
	switch said {
	case notReady:
		if n.NotReady != "" {
			return n.NotReady
		}
	case tainted:
		taint := shape.untolerated(n, rikv1alpha1.TaintNoSchedule, rikv1alpha1.TaintNoExecute)
		return "taint " + taint.Text() + " is not tolerated"
	case selectorMismatch:
		return "labels do not match the node selector " + labelText(shape.nodeSelector)
	case kindMissing:
		return "the node does not run kind " + string(shape.kind)
	case machineMissing:
		return "the node cannot run microVMs"
	case runtimeMissing:
		return "the node does not have the runtime " + shape.runtime
	case lacksCPU:
		return fmt.Sprintf("needs %dm cpu, %dm free", shape.requests.MilliCPU, n.free.MilliCPU)
	case lacksMemory:
		return fmt.Sprintf("needs %d bytes of memory, %d free", shape.requests.MemoryBytes, n.free.MemoryBytes)
	case lacksDisk:
		return fmt.Sprintf("needs %d bytes of disk, %d free", shape.requests.DiskBytes, n.free.DiskBytes)
	case lacksInstances:
		return fmt.Sprintf("the node takes at most %d instances", n.Allocatable.Instances)
	case portForeign:
		p, _ := shape.foreignPort(n)
		return fmt.Sprintf("port %s is used by the machine itself", p)
	case portTaken:
		return "a host port is in use on the node"
	}
	return "node is " + words[said]
}

func labelText(set map[string]string) string {
	var parts []string
	for key, value := range set {
		parts = append(parts, key+"="+value)
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}
