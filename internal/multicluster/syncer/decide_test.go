package syncer

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// forEach calls check with every possible view.
func forEach(check func(view)) {
	bools := []bool{false, true}
	for _, excluded := range bools {
		for _, claim := range bools {
			for _, kind := range []typeView{typeUnknown, typeServed, typeEnding} {
				for _, up := range upstreams() {
					for _, down := range downstreams() {
						check(view{excluded: excluded, claim: claim, kind: kind, up: up, down: down})
					}
				}
			}
		}
	}
}

func upstreams() []upstreamView {
	views := []upstreamView{{seen: unknown}, {seen: absent}}
	for _, seen := range []presence{cached, live} {
		for bits := range 1 << 6 {
			views = append(views, upstreamView{
				seen: seen, uid: "mine", deleting: bits&1 != 0, targeted: bits&2 != 0,
				held: bits&4 != 0, recreate: bits&8 != 0, deleteData: bits&16 != 0, finished: bits&32 != 0,
			})
		}
	}
	return views
}

func downstreams() []downstreamView {
	views := []downstreamView{{seen: unknown}, {seen: absent}}
	for _, seen := range []presence{cached, live} {
		for _, of := range []string{"", "mine", "former"} {
			for bits := range 1 << 4 {
				v := downstreamView{seen: seen, deleting: bits&1 != 0, inSync: bits&2 != 0, stuck: bits&4 != 0, deleteData: bits&8 != 0}
				if v.upstreamUID = "mine"; of != "mine" {
					v.upstreamUID = ""
				}
				if of == "former" {
					v.upstreamUID = "former"
				}
				views = append(views, v)
			}
		}
	}
	return views
}

// TestDecideInvariants checks the guarantees for every possible view.
func TestDecideInvariants(t *testing.T) {
	t.Parallel()
	seen := map[step]int{}
	forEach(func(v view) {
		next := decide(v)
		seen[next]++
		if why := broken(v, next); why != "" {
			t.Errorf("decide(%+v) = %d: %s", v, next, why)
		}
	})
	for s := stepNothing; s <= stepWithhold; s++ {
		if seen[s] == 0 {
			t.Errorf("no view leads to step %d", s)
		}
	}
}

// broken returns the guarantee that a step breaks.
func broken(v view, next step) string {
	wanted := (v.up.seen == cached || v.up.seen == live) && v.up.targeted && !v.up.deleting
	foreign := v.down.upstreamUID == ""
	switch {
	case v.excluded && next != stepNothing:
		return "an excluded object is touched"
	case (next == stepDelete || next == stepApply) && (foreign || v.down.seen != cached && v.down.seen != live):
		return "an object that is not ours is touched"
	case next == stepApply && v.down.upstreamUID != v.up.uid:
		return "another object's remains are made into this one"
	case next == stepDelete && v.up.seen == unknown:
		return "deleted without having asked upstream"
	case next == stepDelete && !wanted && v.up.seen == cached && !v.up.deleting:
		return "deleted on a cache's word"
	case next == stepDelete && !wanted && v.kind != typeServed:
		return "deleted without having asked for the type"
	case next == stepDelete && wanted && !v.up.recreate:
		return "deleted although it is wanted"
	case next == stepDelete && v.claim && !v.up.deleteData && !v.down.deleteData:
		return "data is deleted"
	case (next == stepCreate || next == stepApply) && (!wanted || !v.up.held):
		return "written without a finalizer, or unwanted"
	case next == stepCreate && (v.up.seen != live || v.down.seen != absent):
		return "made on a cache's word"
	case next == stepCreate && v.up.finished:
		return "what has finished runs again"
	case next == stepRelease && (!v.up.held || wanted):
		return "released an object that is wanted or not held"
	case next == stepRelease && v.down.seen != absent && !foreign && !v.claim:
		return "let go before it is gone downstream"
	case next == stepRelease && v.down.seen != absent && v.down.seen != live:
		return "let go on a cache's word"
	}
	return ""
}

// model executes the steps of decide at once.
type model struct{ v view }

func (m *model) do(next step, truth view) {
	switch next {
	case stepAskUpstream:
		m.v.up = truth.up
	case stepAskDownstream:
		m.v.down = truth.down
	case stepAskType:
		m.v.kind = truth.kind
	case stepHold:
		m.v.up.held, m.v.up.seen = true, live
	case stepCreate:
		m.v.down = downstreamView{seen: live, upstreamUID: m.v.up.uid, inSync: true}
	case stepApply:
		m.v.down.seen, m.v.down.inSync = live, true
	case stepDelete:
		m.v.down = downstreamView{seen: absent}
	}
}

func isFinal(s step) bool {
	switch s {
	case stepAskUpstream, stepAskDownstream, stepAskType, stepHold, stepCreate, stepApply, stepDelete:
		return false
	}
	return true
}

// TestDecideEnds tests that a pass ends, for any content of the caches and any answers of the
// servers. If nothing prevents it, the pass ends in the state that upstream wants.
func TestDecideEnds(t *testing.T) {
	t.Parallel()
	ups, downs := upstreams(), downstreams()
	rapid.Check(t, func(t *rapid.T) {
		pickUp := rapid.SampledFrom(ups)
		pickDown := rapid.SampledFrom(downs)
		truth := view{
			claim: rapid.Bool().Draw(t, "claim"),
			kind:  rapid.SampledFrom([]typeView{typeServed, typeEnding}).Draw(t, "type"),
			up:    pickUp.Filter(func(u upstreamView) bool { return u.seen == live || u.seen == absent }).Draw(t, "upstream"),
			down:  pickDown.Filter(func(d downstreamView) bool { return d.seen == live || d.seen == absent }).Draw(t, "downstream"),
		}
		m := model{v: view{claim: truth.claim, up: pickUp.Draw(t, "cached upstream"), down: pickDown.Draw(t, "cached downstream")}}
		if m.v.up.seen == live || m.v.up.seen == absent {
			m.v.up = upstreamView{}
		}
		if m.v.down.seen == live || m.v.down.seen == absent {
			m.v.down = downstreamView{}
		}
		var way []step
		for range maxSteps {
			next := decide(m.v)
			way = append(way, next)
			if isFinal(next) {
				checkEnd(t, m.v, next)
				return
			}
			m.do(next, truth)
		}
		t.Fatalf("no end: %v", way)
	})
}

func checkEnd(t *rapid.T, v view, next step) {
	wanted := v.up.targeted && !v.up.deleting && v.up.seen != unknown && v.up.seen != absent
	there := v.down.seen == cached || v.down.seen == live
	ours := there && v.down.upstreamUID == v.up.uid && !v.down.deleting
	switch {
	case wanted && ours && !v.down.stuck && next != stepReport:
		t.Fatalf("wanted and there, yet the end is %d: %+v", next, v)
	case next == stepReport && (!wanted || !ours || !v.down.inSync || !v.up.held):
		t.Fatalf("all is said to be well: %+v", v)
	case !wanted && !there && v.up.held && next != stepRelease:
		t.Fatalf("gone and still held: %+v", v)
	}
}

// TestDecideExamples tests the usual sequences step by step.
func TestDecideExamples(t *testing.T) {
	t.Parallel()
	served := view{kind: typeServed}
	for name, tc := range map[string]struct {
		cached, truth view
		want          string
	}{
		"new": {
			cached: view{up: upstreamView{seen: cached, uid: "a", targeted: true}},
			truth:  view{down: downstreamView{seen: absent}},
			want:   fmt.Sprint([]step{stepAskDownstream, stepHold, stepCreate, stepReport}),
		},
		"deleted upstream": {
			cached: view{up: upstreamView{seen: cached, uid: "a", targeted: true, deleting: true, held: true}, down: downstreamView{seen: cached, upstreamUID: "a", inSync: true}},
			truth:  served,
			want:   fmt.Sprint([]step{stepAskType, stepDelete, stepRelease}),
		},
		"moved away": {
			cached: view{down: downstreamView{seen: cached, upstreamUID: "a"}},
			truth:  view{kind: typeServed, up: upstreamView{seen: live, uid: "a", held: true}},
			want:   fmt.Sprint([]step{stepAskUpstream, stepAskType, stepDelete, stepRelease}),
		},
		"gone while no syncer ran": {
			cached: view{down: downstreamView{seen: cached, upstreamUID: "a"}},
			truth:  view{kind: typeServed, up: upstreamView{seen: absent}},
			want:   fmt.Sprint([]step{stepAskUpstream, stepAskType, stepDelete, stepNothing}),
		},
		"deleted downstream by another client": {
			cached: view{up: upstreamView{seen: cached, uid: "a", targeted: true, held: true}},
			truth:  view{up: upstreamView{seen: live, uid: "a", targeted: true, held: true}, down: downstreamView{seen: absent}},
			want:   fmt.Sprint([]step{stepAskDownstream, stepAskUpstream, stepCreate, stepReport}),
		},
		"a cache that is behind": {
			cached: view{up: upstreamView{seen: cached, uid: "a", targeted: true, held: true}},
			truth:  view{up: upstreamView{seen: absent}, down: downstreamView{seen: absent}},
			want:   fmt.Sprint([]step{stepAskDownstream, stepAskUpstream, stepNothing}),
		},
		"the type ends": {
			cached: view{up: upstreamView{seen: cached, uid: "a", targeted: true, deleting: true, held: true}, down: downstreamView{seen: cached, upstreamUID: "a"}},
			truth:  view{kind: typeEnding},
			want:   fmt.Sprint([]step{stepAskType, stepWithhold}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, way := model{v: tc.cached}, []step{}
			for range maxSteps {
				next := decide(m.v)
				way = append(way, next)
				if isFinal(next) {
					break
				}
				m.do(next, tc.truth)
			}
			if got := fmt.Sprint(way); got != tc.want {
				t.Errorf("the way is %s, want %s", got, tc.want)
			}
		})
	}
}
