package placement

import (
	"fmt"
	"math"
)

// Request requests a node for one instance.
type Request struct {
	// UID is that of the instance, if it has one. Explain and Preempt ignore the current node of
	// an instance. Place is only for instances without a node.
	UID   string
	Shape *Shape
}

// Decision is the answer to a Request.
type Decision struct {
	// Node is the chosen node. It is empty if no node fits.
	Node string
	// Score is the score of the node. It is only comparable within one decision.
	Score int64
	// HostPorts are the ports that the instance reserves. The slice is shared and must not be
	// changed.
	HostPorts []int32
	// Reason (one CamelCase word) and Message say why no node fits.
	Reason, Message string
}

// Place chooses a node. It changes nothing: the caller calls Put if the decision is to take
// effect.
func Place(s *Snapshot, r Request) Decision {
	st := s.state(r.Shape)
	v := s.viewOf(st)
	if p, taken := s.clusterPortTaken(st); taken {
		return Decision{
			Reason:  reasons[portTaken],
			Message: fmt.Sprintf("port %s is reserved by another workload", p),
		}
	}
	lows := v.lows()
	var best *entry
	var bestScore int64
	for _, g := range v.groups {
		if len(g.heap) == 0 || v.checkGroup(g, lows) != fits {
			continue
		}
		top := &g.heap[0]
		score := top.score + v.scoreGroup(g, lows)
		if best == nil || score > bestScore || score == bestScore && top.tie < best.tie {
			best, bestScore = top, score
		}
	}
	if best == nil {
		return s.nowhere(v, lows)
	}
	return Decision{Node: s.nodes[best.node].Name, Score: bestScore, HostPorts: r.Shape.hostPorts}
}

// CouldHelp reports whether an instance that left the node can make room for the shape, which
// did not fit on any node before. The answer may be true by mistake, but never false by
// mistake.
func CouldHelp(s *Snapshot, shape *Shape, nodeName string) bool {
	st := s.state(shape)
	if len(st.required)+len(st.forbidden)+len(st.repelled)+len(st.spread)+len(shape.hostPorts) > 0 {
		return true
	}
	at, ok := s.byName[nodeName]
	if !ok {
		return false
	}
	n := s.nodes[at]
	return shape.checkStatic(n) == fits && s.checkPlaced(st, n) == fits
}

// nowhere explains why no node fits, from the counts in the view.
func (s *Snapshot) nowhere(v *view, lows []int32) Decision {
	rejected := v.rejected
	rejected[fits] = 0
	for _, g := range v.groups {
		rejected[v.checkGroup(g, lows)] += int32(len(g.heap))
	}
	reason, message := summary(s.known, &rejected)
	if rejected[portForeign] > 0 {
		message += s.foreignPorts(v)
	}
	return Decision{Reason: reason, Message: message}
}

// foreignPorts names a port that kept the shape off a node, because the number of such nodes
// alone does not help the user.
func (s *Snapshot) foreignPorts(v *view) string {
	var first *node
	for at := range v.slots {
		n := s.nodes[at]
		if v.slots[at].present && v.slots[at].outcome == portForeign && (first == nil || n.Name < first.Name) {
			first = n
		}
	}
	p, _ := v.state.shape.foreignPort(first)
	return fmt.Sprintf(" (port %s on %s)", p, first.Name)
}

// lows finds the smallest count for every constraint that compares domains. It considers
// domains with a node that passes the static filters.
func (v *view) lows() []int32 {
	if v.lowest == nil {
		v.lowest = make([]int32, len(v.constraints))
	}
	lows := v.lowest
	for i := range v.constraints {
		if v.constraints[i].role > spreadSoft {
			continue
		}
		low := int32(math.MaxInt32)
		for _, g := range v.groups {
			if g.eligible > 0 && g.cells[i] != nil {
				low = min(low, g.cells[i].matching)
			}
		}
		lows[i] = low
	}
	return lows
}

// checkGroup applies the filters that depend on the domains.
func (v *view) checkGroup(g *group, lows []int32) outcome {
	for i := range v.constraints {
		if said := v.checkConstraint(&v.constraints[i], g.cells[i], lows[i]); said != fits {
			return said
		}
	}
	return fits
}

// checkConstraint checks one domain. The cell at is nil if the nodes lack the label.
func (v *view) checkConstraint(c *constraint, at *cell, low int32) outcome {
	switch c.role {
	case requires:
		if at == nil || at.matching == 0 && !v.first(c.term) {
			return apart
		}
	case forbids:
		if at != nil && at.matching > 0 {
			return repels
		}
	case repelledBy:
		if at != nil && at.repelling > 0 {
			return repels
		}
	case spreadHard:
		if at == nil || at.matching+1-low > c.maxSkew {
			return skewed
		}
	}
	return fits
}

// first reports whether the shape's instance would be the first that its own required term
// matches. Such an instance may go anywhere, because otherwise it could never start.
func (v *view) first(t *term) bool { return t.total == 0 && t.matches(v.state.shape) }

// scoreGroup is the part of the score that depends on the domain.
func (v *view) scoreGroup(g *group, lows []int32) int64 {
	var score int64
	for i := range v.constraints {
		at := g.cells[i]
		switch v.constraints[i].role {
		case zoneScore:
			score += weightZones * evenness(at, lows[i])
		case spreadSoft:
			score += weightSpread * evenness(at, lows[i])
		}
	}
	return score
}

// evenness is highest for the domains with the lowest count. It is zero if the nodes lack the
// key.
func evenness(at *cell, low int32) int64 {
	if at == nil {
		return 0
	}
	// A domain without an eligible node may have a count below low.
	return scale / (1 + max(0, int64(at.matching)-int64(low)))
}
