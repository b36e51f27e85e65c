package splitter

import "math"

// stepper walks from parts to shares as far as is safe without seeing more of the world.
type stepper struct {
	sites []*site
	// bound on what can run, and surge that is in it.
	bound, surge int64
	// surged are the parts that were added ahead of those they replace.
	surged int64
	// moves that may still be made in this interval.
	moves int64
	// made are the moves of this step.
	made int64
}

// step changes parts toward shares. What can run never passes the bound by it. Of what
// is moved nothing is taken away before its replacement is ready; without a surge it is
// taken away first, and nothing else while that is so. What the whole has shrunk by is
// taken away at once.
//
// Walking on from where it has come changes nothing, for as long as the world is the same.
func (s *stepper) step() {
	for {
		changed := s.shrink()
		changed = s.fill() || changed
		// What was added ahead is finished so, also when no more may be.
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

// room is how many more can run.
func (s *stepper) room() int64 {
	return s.bound - s.sum(func(x *site) int64 { return max(x.most, x.part) })
}

func surplus(x *site) int64 { return max(0, x.part-x.share) }

// deficit of a site that can grow.
func deficit(x *site) int64 {
	if !x.raisable() {
		return 0
	}
	return max(0, x.share-x.part)
}

// unready are those parts of a site that are not ready.
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

// shrink takes away what is more than the whole, and was not added ahead. What holding
// clusters give back is of that kind always; then go those where nothing is to stay.
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

// fill adds what is missing in the whole.
func (s *stepper) fill() bool { return s.raise(s.shares()-s.parts()) > 0 }

// raise adds up to n: first where as many could still run, which costs no room.
func (s *stepper) raise(n int64) int64 {
	done := take(n, s.sites, func(x *site) int64 { return min(deficit(x), x.most-x.part) }, raise)
	return done + take(min(n-done, s.room()), s.sites, deficit, raise)
}

// ahead adds, above the whole, what is to replace parts elsewhere.
func (s *stepper) ahead() bool {
	if s.parts() < s.shares() {
		return false
	}
	// A cluster that has not said yet what of its parts has stopped gets no more.
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

// finish takes away what has been replaced: what is not ready, and what is ready beyond
// the whole.
func (s *stepper) finish() bool {
	beyond := s.sum((*site).readyParts) - s.shares()
	n := take(s.surged, s.sites, func(x *site) int64 { return min(surplus(x), unready(x)) }, lower)
	n += take(min(s.surged-n, beyond), s.sites, surplus, lower)
	s.surged -= n
	return n > 0
}

// behind takes away what is then added elsewhere, once all is as it should be; of what
// is not ready, always.
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

// staying are the parts that are not ready of sites from which nothing is to be taken.
func staying(x *site) int64 {
	if surplus(x) > 0 {
		return 0
	}
	return unready(x)
}

// noLimit on moves.
const noLimit = math.MaxInt64
