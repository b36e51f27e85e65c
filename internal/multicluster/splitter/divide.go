package splitter

import (
	"math/bits"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// maxWeight keeps sums of weights far within 64 bits.
const maxWeight = 1 << 40

// weigh gives each site its weight and group.
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

// room is how many replicas a cluster's resources are enough for; without requests, its
// CPUs in thousandths.
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

// divide gives each site its share of a whole. The sum of the shares is never above the
// whole; what is missing no open cluster takes.
//
// Clusters that hold keep their parts, unless the whole has shrunk below what there is:
// then they give back of what they have beyond their fair share. The open ones divide
// the rest.
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

// proportionally divides over open sites by their weights.
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

// holders gives their shares to the sites that hold.
func (st *State) holders(whole int64, sites []*site) {
	fairShares(whole, sites)
	var parts, held int64
	for _, s := range sites {
		has := s.part
		if s.isAutoscaled() {
			// What an open one gets is not known yet; not to count it is on the safe side.
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
	// While parts are moved there may be more than the whole: that is no shrinking.
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

// fairShares are the sites' quotas, rounded down, among all that are not out.
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
		// A group's part of the whole, and the site's part of that; one group: all of it.
		hi, lo := bits.Mul64(uint64(whole), s.weight)
		share, _ := bits.Div64(hi, lo, weights[s.group])
		s.fair = int64(share) / int64(len(weights))
	}
}

// group of sites that have the same value of the topology key.
type group struct {
	name string
	open []*site
	// held is what holding sites of it have.
	held int64
}

// spread divides over groups so that each has the same, what sites hold included, and
// then within each group. Which groups have one more goes by name alone: while parts are
// on the move inside a group, what it has tells nothing.
func spread(rest int64, open, sites []*site) {
	groups := grouped(open, sites)
	// A group that holds more than its share gets nothing, and the others the less.
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

// grouped are the groups that have open sites.
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
