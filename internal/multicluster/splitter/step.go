package splitter

import "math"

// stepper moves parts toward shares as far as is safe without new observations.
type stepper struct {
	sites []*site
	// bound is the limit of replicas that can run. It includes surge.
	bound, surge int64
	// surged is the number of parts that were added before the ones that they replace were
	// removed.
	surged int64
	// moves is the number of moves that are still allowed in this interval.
	moves int64
	// made is the number of moves in this step.
	made int64
}

// step changes parts toward shares. It never raises the number of replicas that can run above the
// bound. When parts move, it removes the old part only after the new one is ready. Without a
// surge, it removes the old part first, and changes nothing else at that time. Parts above the
// whole are removed at once.
//
// A second step changes nothing if no observation has changed.
func (s *stepper) step() {
	for {
		changed := s.shrink()
		changed = s.fill() || changed
		// Moves that began with a surge end the same way, even if no surge is allowed now.
		if s.surge > 0 || s.surged > 0 {
			changed = s.ahead() || changed
			changed = s.finish() || changed
		} else {
			changed = s.behind() || changed
		}
		if !changed {
			return
		}
	}
}

func (s *stepper) sum(of func(*site) int64) int64 {
	var n int64
	for _, x := range s.sites {
		n += of(x)
	}
	return n
}

func (s *stepper) parts() int64  { return s.sum(func(x *site) int64 { return x.part }) }
func (s *stepper) shares() int64 { return s.sum(func(x *site) int64 { return x.share }) }

// room returns how many more replicas can run.
func (s *stepper) room() int64 {
	return s.bound - s.sum(func(x *site) int64 { return max(x.most, x.part) })
}

func surplus(x *site) int64 { return max(0, x.part-x.share) }

// deficit returns by how much a site can grow toward its share.
func deficit(x *site) int64 {
	if !x.raisable() {
		return 0
	}
	return max(0, x.share-x.part)
}

// unready returns the parts of a site that are not ready.
func unready(x *site) int64 { return x.part - x.readyParts() }

func (x *site) readyParts() int64 { return min(x.ready, x.part) }

func (x *site) strandedParts() int64 {
	if !x.stranded {
		return 0
	}
	return x.share
}

func lower(x *site, n int64) { x.part -= n }
func raise(x *site, n int64) { x.part += n }

// shrink removes the parts above the whole that are not part of a surge. It always removes what
// holding clusters give up. After that it first takes from clusters that are out.
func (s *stepper) shrink() bool {
	done := take(noLimit, s.sites, surplusOf(Holding), lower)
	s.surged = min(s.surged, max(0, s.parts()-s.shares()))
	n := s.parts() - s.shares() - s.surged
	out := take(n, s.sites, surplusOf(Out), lower)
	return done+out+take(n-out, s.sites, surplus, lower) > 0
}

func surplusOf(standing Standing) func(*site) int64 {
	return func(x *site) int64 {
		if x.standing != standing {
			return 0
		}
		return surplus(x)
	}
}

// fill adds the parts that are missing in the whole.
func (s *stepper) fill() bool { return s.raise(s.shares()-s.parts()) > 0 }

// raise adds up to n parts. It starts with the sites where so many replicas could still run,
// because that needs no room.
func (s *stepper) raise(n int64) int64 {
	done := take(n, s.sites, func(x *site) int64 { return min(deficit(x), x.most-x.part) }, raise)
	return done + take(min(n-done, s.room()), s.sites, deficit, raise)
}

// ahead adds parts above the whole that are to replace parts in other clusters.
func (s *stepper) ahead() bool {
	if s.parts() < s.shares() {
		return false
	}
	// A cluster gets no more parts before it has confirmed which of its parts have stopped.
	n := take(min(s.surge-s.surged, s.moves, s.room()), s.sites, func(x *site) int64 {
		if x.most > x.part {
			return 0
		}
		return deficit(x)
	}, raise)
	s.surged += n
	s.moves -= n
	s.made += n
	return n > 0
}

// finish removes the parts that have been replaced: first the ones that are not ready, then ready
// ones above the whole.
func (s *stepper) finish() bool {
	beyond := s.sum((*site).readyParts) - s.shares()
	n := take(s.surged, s.sites, func(x *site) int64 { return min(surplus(x), unready(x)) }, lower)
	n += take(min(s.surged-n, beyond), s.sites, surplus, lower)
	s.surged -= n
	return n > 0
}

// behind removes parts that are added in other clusters afterward. It always removes parts that
// are not ready. It removes ready parts only when all remaining ones are ready.
func (s *stepper) behind() bool {
	if s.parts() != s.shares() {
		return false
	}
	n := min(s.moves, s.sum(deficit))
	done := take(n, s.sites, func(x *site) int64 { return min(surplus(x), unready(x)) }, lower)
	if s.sum(staying) == 0 {
		done += take(n-done, s.sites, surplus, lower)
	}
	s.moves -= done
	s.made += done
	return done > 0
}

// staying returns the unready parts of a site from which nothing is removed.
func staying(x *site) int64 {
	if surplus(x) > 0 {
		return 0
	}
	return unready(x)
}

// noLimit is the number of moves if they are not limited.
const noLimit = math.MaxInt64
