package splitter

import (
	"math/bits"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// maxWeight is the largest weight. It leaves enough room for sums of weights in 64 bits.
const maxWeight = 1 << 40

// weigh sets the weight and the group of each site.
func (st *State) weigh(sites []*site) {
	for _, s := range sites {
		if s.cluster == nil {
			continue
		}
		switch p := &st.Policy; p.strategy {
		case workloadv1alpha1.StrategyCapacity:
			s.weight = room(s.cluster.Allocatable, st.Root.Requests)
		case workloadv1alpha1.StrategyWeighted, workloadv1alpha1.StrategySpread:
			s.weight = 1
			if w, ok := p.weights[s.name]; ok {
				s.weight = w
			}
			if p.strategy == workloadv1alpha1.StrategySpread {
				s.group = named{Set: s.cluster.Labels, name: s.name}.Get(p.topologyKey)
			}
		default:
			s.weight = 1
		}
		if s.weight == 0 {
			s.reasons = append(s.reasons, Reason{Code: NoWeight})
		}
	}
}

// room returns how many replicas fit in the resources of a cluster. If requests is empty, it
// returns the CPUs of the cluster in thousandths.
func room(has, requests corev1.ResourceList) uint64 {
	fit := int64(-1)
	for name, request := range requests {
		if request.MilliValue() <= 0 {
			continue
		}
		available := has[name]
		if n := available.MilliValue() / request.MilliValue(); fit < 0 || n < fit {
			fit = n
		}
	}
	if fit < 0 {
		cpu := has[corev1.ResourceCPU]
		fit = cpu.MilliValue()
	}
	return uint64(min(max(fit, 0), maxWeight))
}

// divide sets the share of each site. The sum of the shares never exceeds whole. No open cluster
// accepts the remainder.
//
// Holding clusters keep their parts, unless the whole is now smaller than the sum of the parts.
// In that case they give up parts above their fair share. The open clusters divide the rest.
func (st *State) divide(whole int64, sites []*site) {
	st.holders(whole, sites)
	rest := whole
	var open []*site
	for _, s := range sites {
		rest -= s.share
		if s.standing == Open && s.weight > 0 {
			open = append(open, s)
		}
	}
	if st.Policy.strategy == workloadv1alpha1.StrategySpread {
		spread(rest, open, sites)
		return
	}
	proportionally(rest, open)
}

// proportionally divides whole over the open sites by their weights.
func proportionally(whole int64, open []*site) {
	seats := make([]seat, len(open))
	for i, s := range open {
		seats[i] = seat{index: i, name: s.name, weight: s.weight, has: s.part}
		if s.isAutoscaled() {
			seats[i].has = -1
		}
	}
	apportion(whole, seats)
	for i := range seats {
		open[seats[i].index].share = seats[i].gets
	}
}

// holders sets the shares of the holding sites.
func (st *State) holders(whole int64, sites []*site) {
	fairShares(whole, sites)
	var parts, held int64
	for _, s := range sites {
		has := s.part
		if s.isAutoscaled() {
			// The share of an open site is not known yet. Counting it as 0 is the safe choice.
			if has = s.fair; s.standing == Open {
				has = 0
			}
		}
		if s.share = 0; s.standing != Out {
			parts += has
		}
		if s.standing == Holding {
			s.share = has
			held += has
		}
	}
	// While parts move, their sum may exceed the whole. That does not mean that the whole shrank.
	give := max(parts-whole-st.Policy.surgeOf(whole), held-whole)
	if give <= 0 {
		return
	}
	beyond := func(s *site) int64 {
		if s.standing != Holding || s.isAutoscaled() {
			return 0
		}
		return s.share - s.fair
	}
	take(give, sites, beyond, func(s *site, n int64) { s.share -= n })
}

// fairShares sets the quota of each site that is not out, rounded down.
func fairShares(whole int64, sites []*site) {
	weights := map[string]uint64{}
	for _, s := range sites {
		if s.standing != Out && s.weight > 0 {
			weights[s.group] += s.weight
		}
	}
	for _, s := range sites {
		if s.fair = 0; s.standing == Out || s.weight == 0 {
			continue
		}
		// A group has an equal part of the whole, and a site has its weighted part of that. If
		// there is one group, that part is the whole.
		hi, lo := bits.Mul64(uint64(whole), s.weight)
		share, _ := bits.Div64(hi, lo, weights[s.group])
		s.fair = int64(share) / int64(len(weights))
	}
}

// group is the sites that have the same value of the topology key.
type group struct {
	name string
	open []*site
	// held is the sum of the shares of the holding sites in the group.
	held int64
}

// spread divides over the groups so that each has the same number, including the shares of
// holding sites. Then it divides within each group. Only the name decides which groups have one
// more: while parts move inside a group, its current parts are not meaningful.
func spread(rest int64, open, sites []*site) {
	groups := grouped(open, sites)
	// A group that holds more than its share gets nothing, and the other groups get less.
	slices.SortFunc(groups, func(a, b *group) int {
		if a.held != b.held {
			return int(min(max(b.held-a.held, -1), 1))
		}
		return strings.Compare(a.name, b.name)
	})
	whole := rest
	for _, g := range groups {
		whole += g.held
	}
	for len(groups) > 0 && groups[0].held*int64(len(groups)) > whole {
		whole -= groups[0].held
		groups = groups[1:]
	}
	seats := make([]seat, len(groups))
	for i, g := range groups {
		seats[i] = seat{index: i, name: g.name, weight: 1, has: -1}
	}
	apportion(whole, seats)
	for _, seat := range seats {
		g := groups[seat.index]
		proportionally(seat.gets-g.held, g.open)
	}
}

// grouped returns the groups that have open sites.
func grouped(open, sites []*site) []*group {
	var groups []*group
	byName := map[string]*group{}
	for _, s := range open {
		g := byName[s.group]
		if g == nil {
			g = &group{name: s.group}
			byName[s.group] = g
			groups = append(groups, g)
		}
		g.open = append(g.open, s)
	}
	for _, s := range sites {
		if g := byName[s.group]; g != nil && s.standing == Holding {
			g.held += s.share
		}
	}
	return groups
}
