package placement

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// NodeResult is the result of placement for one node.
type NodeResult struct {
	Node string
	// Filter is the filter that rejected the node. It is empty if the node fits.
	Filter string
	// Reason says in words why the filter rejected the node. It is empty if the node fits.
	Reason string
	// Score is the score of a node that fits. Scores are its parts by scorer, with weights
	// applied.
	Score  int64
	Scores map[string]int64
}

// Explanation is a Decision with the result for every node, sorted by name.
type Explanation struct {
	Decision
	Summary string
	Results []NodeResult
}

// Explain decides a placement and returns the result of every filter and scorer for every node.
// It places nothing. It evaluates each node, so it is for people and not for batches.
func Explain(s *Snapshot, r Request) Explanation {
	defer s.lift(r.UID)()
	st := s.state(r.Shape)
	e := Explanation{Decision: Place(s, r)}
	v := s.viewOf(st)
	lows := v.lows()
	for at, n := range s.nodes {
		if n != nil && n.known {
			e.Results = append(e.Results, s.explainNode(v, int32(at), lows))
		}
	}
	slices.SortFunc(e.Results, func(a, b NodeResult) int { return strings.Compare(a.Node, b.Node) })
	e.Summary = e.Message
	if e.Node != "" {
		fitting := 0
		for i := range e.Results {
			if e.Results[i].Filter == "" {
				fitting++
			}
		}
		e.Summary = fmt.Sprintf("%d of %d nodes fit; %s scores best", fitting, s.known, e.Node)
	}
	return e
}

// lift removes an instance from its node and returns a function that puts it back.
func (s *Snapshot) lift(uid string) (restore func()) {
	o := s.placed[uid]
	if o == nil {
		return func() {}
	}
	s.remove(o)
	return func() { s.put(o) }
}

func (s *Snapshot) explainNode(v *view, at int32, lows []int32) NodeResult {
	n, st := s.nodes[at], v.state
	out := NodeResult{Node: n.Name}
	said := st.shape.checkStatic(n)
	if said == fits {
		said = s.checkPlaced(st, n)
	}
	g := v.slots[at].group
	if said == fits {
		said = v.checkGroup(g, lows)
	}
	if p, taken := s.clusterPortTaken(st); taken && said == fits {
		out.Filter, out.Reason = filters[portTaken], fmt.Sprintf("port %s is reserved by another workload", p)
		return out
	}
	if said != fits {
		out.Filter, out.Reason = filters[said], s.because(st, n, said)
		if said == apart || said == repels || said == skewed {
			out.Reason = v.constraintText(s, at, lows, said)
		}
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
func (s *Snapshot) because(st *shapeState, n *node, said outcome) string {
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
		return "labels do not match the node selector " + shortened(labelText(shape.nodeSelector))
	case affinityMismatch:
		return "labels do not match any of the node terms: " + termsText(shape.nodeRequired)
	case kindMissing:
		return "the node does not run kind " + string(shape.kind)
	case machineMissing:
		return "the node cannot run microVMs"
	case runtimeMissing:
		return "the node does not have the runtime " + shape.runtime
	case networkMissing:
		return "the node has no network for instances, and this workload serves ports"
	case networkBroken:
		return "the node's network does not work: " + n.NetworkTrouble
	case lacksCPU:
		return fmt.Sprintf("needs %dm cpu, %dm free", shape.requests.MilliCPU, n.free.MilliCPU)
	case lacksMemory:
		return fmt.Sprintf("needs %s of memory, %s free", needText(shape.requests.MemoryBytes), freeText(n.free.MemoryBytes))
	case lacksDisk:
		return fmt.Sprintf("needs %s of disk, %s free", needText(shape.requests.DiskBytes), freeText(n.free.DiskBytes))
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

// constraintText says in words which constraint the node's domain violates.
func (v *view) constraintText(s *Snapshot, at int32, lows []int32, said outcome) string {
	n, st := s.nodes[at], v.state
	if said == repels {
		for _, t := range st.forbidden {
			if s.perNode(t.key) && matchingAt(t, n) > 0 {
				return (&constraint{role: forbids, term: t}).text()
			}
		}
		for _, t := range st.repelled {
			if s.perNode(t.key) && repellingAt(t, n) > 0 {
				return (&constraint{role: repelledBy, term: t}).text()
			}
		}
	}
	cells := v.slots[at].group.cells
	for i := range v.constraints {
		c := &v.constraints[i]
		if v.checkConstraint(c, cells[i], lows[i]) != said {
			continue
		}
		if cells[i] == nil {
			return "the node has no label " + c.term.key + ": " + c.text()
		}
		return c.text()
	}
	return "node is " + words[said]
}

// text says in words what a constraint requires.
func (c *constraint) text() string {
	switch c.role {
	case requires:
		return words[apart] + ", " + c.term.text()
	case forbids:
		return words[repels] + ", " + c.term.text()
	case repelledBy:
		return "with instances that must be apart from " + c.term.text()
	default:
		return fmt.Sprintf("one more would break the topology spread: maxSkew %d over %s", c.maxSkew, c.term.key)
	}
}

func (t *termSpec) text() string {
	return "those with " + shortened(selectorText(t.selector)) + " over " + t.key
}

func termsText(terms []labels.Selector) string {
	var parts []string
	for _, t := range terms {
		parts = append(parts, selectorText(t))
	}
	return shortened(strings.Join(parts, ", or "))
}

func selectorText(s labels.Selector) string {
	if s == nil || s.Empty() {
		return "any labels"
	}
	return s.String()
}

// maxText is the maximum length of a user's text in an explanation, in characters. The text
// must fit into one line of a table.
const maxText = 200

func shortened(text string) string {
	if r := []rune(text); len(r) > maxText {
		return string(r[:maxText]) + "…"
	}
	return text
}

// needText and freeText format bytes as a quantity with one decimal. A need is rounded up and
// free space is rounded down, so that a shortage stays visible.
func needText(bytes int64) string { return bytesText(bytes, math.Ceil) }

func freeText(bytes int64) string { return bytesText(bytes, math.Floor) }

func bytesText(bytes int64, round func(float64) float64) string {
	value, unit := float64(bytes), ""
	for _, larger := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if math.Abs(value) < 1024 {
			break
		}
		value, unit = value/1024, larger
	}
	return strconv.FormatFloat(round(value*10)/10, 'f', -1, 64) + unit
}

func labelText(set map[string]string) string {
	var parts []string
	for key, value := range set {
		parts = append(parts, key+"="+value)
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}
