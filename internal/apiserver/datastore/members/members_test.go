package members

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func voter(id uint64, answers bool) Member {
	return Member{ID: id, Server: fmt.Sprintf("s%d", id), Answers: answers}
}

func learner(id uint64, answers bool, behind uint64) Member {
	m := voter(id, answers)
	m.Learner, m.Behind = true, behind
	return m
}

func TestNext(t *testing.T) {
	t.Parallel()
	s3 := Candidate{Server: "s3", Peer: "https://3:4998", Answers: true}
	silent := learner(9, false, 0)
	silent.Silent = ArrivalTimeout
	tests := []struct {
		name  string
		state State
		kind  Kind // empty: no change
		who   uint64
		waits string
	}{
		{name: "nothing to do", state: State{Leader: 1, Members: []Member{voter(1, true)}}},
		{name: "a server joins", state: State{Leader: 1, Members: []Member{voter(1, true)}, Candidates: []Candidate{s3}}, kind: Add},
		{name: "it does not answer", state: State{Leader: 1, Members: []Member{voter(1, true)}, Candidates: []Candidate{{Server: "s3", Peer: "https://3"}}}, waits: "does not answer"},
		{name: "one at a time", state: State{Leader: 1, Members: []Member{voter(1, true), learner(2, true, MaxBehind+1)}, Candidates: []Candidate{s3}}, waits: "being added"},
		{name: "a learner has caught up", state: State{Leader: 1, Members: []Member{voter(1, true), learner(2, true, 3)}}, kind: Promote, who: 2},
		{name: "a learner has not", state: State{Leader: 1, Members: []Member{voter(1, true), learner(2, true, MaxBehind+1)}}, waits: "entries are missing"},
		{name: "a learner never arrives", state: State{Leader: 1, Members: []Member{voter(1, true), silent}}, kind: Remove, who: 9},
		{name: "a server joins while one of two is dead", state: State{Leader: 1, Members: []Member{voter(1, true), voter(2, false)}, Candidates: []Candidate{s3}}, waits: "remove those"},
		{name: "a dead server is removed before another joins", state: State{Leader: 1, Members: []Member{voter(1, true), voter(2, true), voter(3, false)}, Candidates: []Candidate{s3}, Unwanted: []uint64{3}}, kind: Remove, who: 3},
		{name: "a server that answers is removed", state: State{Leader: 1, Members: []Member{voter(1, true), voter(2, true), voter(3, true)}, Unwanted: []uint64{3}}, kind: Remove, who: 3},
		{name: "a removal that costs the majority", state: State{Leader: 1, Members: []Member{voter(1, true), voter(2, true), voter(3, false)}, Unwanted: []uint64{2}}, waits: "of the other"},
		{name: "the dead one first, then both", state: State{Leader: 1, Members: []Member{voter(1, true), voter(2, true), voter(3, false)}, Unwanted: []uint64{2, 3}}, kind: Remove, who: 3},
		{name: "the last server", state: State{Leader: 1, Members: []Member{voter(1, true)}, Unwanted: []uint64{1}}, waits: "only server"},
		{name: "the leader", state: State{Leader: 1, Members: []Member{voter(1, true), voter(2, true)}, Unwanted: []uint64{1}}, kind: Transfer, who: 2},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			change, waiting := Next(tc.state)
			if tc.kind == "" {
				if change != nil || tc.waits != "" && (!slices.ContainsFunc(waiting, func(w Waiting) bool { return strings.Contains(w.Reason, tc.waits) })) {
					t.Errorf("Next() = %+v, %+v, want no change and %q", change, waiting, tc.waits)
				}
				return
			}
			if change == nil || change.Kind != tc.kind || change.Member != tc.who {
				t.Errorf("Next() = %+v, %+v, want %s of %d", change, waiting, tc.kind, tc.who)
			}
		})
	}
}

// world is a model of an etcd cluster in which servers join, leave, die and return.
type world struct {
	state State
	next  uint64
	up    map[string]bool // by the server's name
}

func (w *world) refresh() {
	for i := range w.state.Members {
		m := &w.state.Members[i]
		m.Answers = w.up[m.Server]
		if m.Answers {
			m.Silent = 0
		}
	}
	for i := range w.state.Candidates {
		w.state.Candidates[i].Answers = w.up[w.state.Candidates[i].Server]
	}
}

func (w *world) member(id uint64) int {
	return slices.IndexFunc(w.state.Members, func(m Member) bool { return m.ID == id })
}

func (w *world) quorum() bool {
	all, answer := (&decision{State: w.state}).voters(0)
	return answer >= Majority(all)
}

// elect makes a voter that answers the leader, if the leader has died.
func (w *world) elect() bool {
	if !w.quorum() {
		return false
	}
	if i := w.member(w.state.Leader); i >= 0 && w.state.Members[i].Answers {
		return true
	}
	i := slices.IndexFunc(w.state.Members, func(m Member) bool { return !m.Learner && m.Answers })
	w.state.Leader = w.state.Members[i].ID
	return true
}

// step makes one decision and applies it. It returns false if there is none.
func (w *world) step(t *rapid.T) bool {
	w.refresh()
	if !w.elect() {
		return false
	}
	change, _ := Next(w.state)
	if change == nil {
		return false
	}
	switch change.Kind {
	case Add:
		if slices.ContainsFunc(w.state.Members, func(m Member) bool { return m.Learner }) {
			t.Fatalf("%+v adds a second learner to %+v", change, w.state)
		}
		w.next++
		w.state.Members = append(w.state.Members, Member{ID: w.next, Server: change.Server, Learner: true, Behind: 5000})
		w.state.Candidates = slices.DeleteFunc(w.state.Candidates, func(c Candidate) bool { return c.Server == change.Server })
	case Promote:
		i := w.member(change.Member)
		if m := w.state.Members[i]; !m.Learner || m.Behind > MaxBehind || !m.Answers {
			t.Fatalf("%+v promotes %+v", change, m)
		}
		w.state.Members[i].Learner = false
	case Remove:
		if change.Member == w.state.Leader {
			t.Fatalf("%+v removes the leader of %+v", change, w.state)
		}
		w.state.Members = slices.Delete(w.state.Members, w.member(change.Member), w.member(change.Member)+1)
		w.state.Unwanted = slices.DeleteFunc(w.state.Unwanted, func(id uint64) bool { return id == change.Member })
	case Transfer:
		w.state.Leader = change.Member
	}
	w.refresh()
	if !w.quorum() {
		t.Fatalf("after %+v the members that answer are not a majority: %+v", change, w.state.Members)
	}
	return true
}

// TestNextNeverLosesTheMajority applies random events. Every change leaves a majority that answers.
// When all servers answer, everything that was asked for happens.
func TestNextNeverLosesTheMajority(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{state: State{Leader: 1, Members: []Member{voter(1, true)}}, next: 1, up: map[string]bool{"s1": true}}
		servers := 1
		t.Repeat(map[string]func(*rapid.T){
			"join": func(t *rapid.T) {
				servers++
				name := fmt.Sprintf("s%d", servers)
				w.up[name] = rapid.Bool().Draw(t, "answers")
				w.state.Candidates = append(w.state.Candidates, Candidate{Server: name, Peer: "https://" + name})
			},
			"remove": func(t *rapid.T) {
				m := rapid.SampledFrom(w.state.Members).Draw(t, "member")
				if !slices.Contains(w.state.Unwanted, m.ID) {
					w.state.Unwanted = append(w.state.Unwanted, m.ID)
				}
			},
			"die or return": func(t *rapid.T) {
				name := fmt.Sprintf("s%d", rapid.IntRange(1, servers).Draw(t, "server"))
				w.up[name] = !w.up[name]
			},
			"time passes": func(t *rapid.T) {
				for i := range w.state.Members {
					w.state.Members[i].Silent += rapid.SampledFrom([]time.Duration{time.Minute, ArrivalTimeout}).Draw(t, "time")
				}
			},
			"a learner copies": func(*rapid.T) {
				for i := range w.state.Members {
					w.state.Members[i].Behind /= 10
				}
			},
			"decide": func(t *rapid.T) { w.step(t) },
			"":       func(*rapid.T) {},
		})
		for name := range w.up {
			w.up[name] = true
		}
		for range 10 * (servers + 1) {
			for i := range w.state.Members {
				w.state.Members[i].Behind = 0
			}
			if !w.step(t) {
				break
			}
		}
		all, _ := (&decision{State: w.state}).voters(0)
		unwanted := len(w.state.Unwanted)
		if len(w.state.Candidates) > 0 || unwanted > 1 || unwanted == 1 && all > 1 {
			t.Fatalf("with all servers up, this remains: %+v", w.state)
		}
		if slices.ContainsFunc(w.state.Members, func(m Member) bool { return m.Learner }) {
			t.Fatalf("a learner remains: %+v", w.state.Members)
		}
	})
}
