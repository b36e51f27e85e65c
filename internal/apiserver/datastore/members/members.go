// Package members decides how the members of the embedded etcd change, when servers join and
// leave the cluster. Next is the decision, without I/O. It returns at most one change at a time,
// and never one after which the members that answer are not a majority.
//
// A member votes, or is a learner. A learner receives all writes and is not counted for
// majorities. A new server starts as a learner and is promoted when it has caught up. Only the
// leader adds and promotes, so a new server that fails cannot stop the others.
package members

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

const (
	// MaxBehind is the number of entries that a learner may lack when it is promoted. Writes
	// continue during the promotion, so a limit of zero would never be reached.
	MaxBehind = 1000
	// ArrivalTimeout is how long a learner may be silent before it is removed. It covers a slow
	// start of the server, and a restart of its machine.
	ArrivalTimeout = 5 * time.Minute
)

// Member is one member, as the leader sees it.
type Member struct {
	ID uint64
	// Server is the name of the member's server. It is empty if the server is not known.
	Server  string
	Learner bool
	// Answers reports whether the member answers at its peer address, with a certificate of the
	// cluster.
	Answers bool
	// Behind is the number of log entries that the member lacks. It is meaningful if it answers.
	Behind uint64
	// Silent is the time since the last answer, or since the leader first saw the member. It is 0
	// if it answers.
	Silent time.Duration
}

// Candidate is a server that has joined the cluster and is not a member yet.
type Candidate struct {
	Server string
	// Peer is the URL for other members.
	Peer string
	// Answers reports whether the server answers at Peer, with a certificate of the cluster.
	Answers bool
}

// State is the input of Next.
type State struct {
	// Leader is the ID of the member that decides.
	Leader  uint64
	Members []Member
	// Candidates are in the order of their requests.
	Candidates []Candidate
	// Unwanted are the IDs of members that an administrator wants to remove.
	Unwanted []uint64
}

// Kind is the kind of a change.
type Kind string

// The kinds of changes.
const (
	// Add adds the candidate Server with the URL Peer as a learner.
	Add Kind = "add"
	// Promote makes the learner Member a voter.
	Promote Kind = "promote"
	// Remove removes Member.
	Remove Kind = "remove"
	// Transfer makes Member the leader, because the present one will be removed.
	Transfer Kind = "transfer"
)

// Change is one change of the members.
type Change struct {
	Kind Kind
	// Member is the ID of the member. It is 0 for Add.
	Member uint64
	// Server is the name of the server, for messages and for Add.
	Server string
	// Peer is the URL of a new member.
	Peer string
	// Reason says why, for the log.
	Reason string
}

// Waiting says why something that was asked for is not possible now.
type Waiting struct{ Server, Reason string }

// Next returns the next change, or nil if there is none, and what has to wait. Removals are first:
// a member that does not answer may prevent additions.
func Next(s State) (*Change, []Waiting) {
	d := decision{State: s}
	for _, step := range []func() *Change{d.remove, d.expire, d.promote, d.add} {
		if change := step(); change != nil {
			return change, d.waiting
		}
	}
	return nil, d.waiting
}

type decision struct {
	State
	waiting []Waiting
}

func (d *decision) wait(server, format string, args ...any) {
	d.waiting = append(d.waiting, Waiting{server, fmt.Sprintf(format, args...)})
}

func (d *decision) unwanted(m Member) bool { return slices.Contains(d.Unwanted, m.ID) }

// voters returns the number of voters and how many of them answer. It leaves out one member.
func (d *decision) voters(without uint64) (all, answer int) {
	for _, m := range d.Members {
		if m.Learner || m.ID == without {
			continue
		}
		all++
		if m.Answers {
			answer++
		}
	}
	return all, answer
}

// Majority returns the number of voters that a change or a write needs.
func Majority(voters int) int { return voters/2 + 1 }

// remove removes the members that an administrator does not want. Those that do not answer are
// first, because their removal never costs a vote that is needed.
func (d *decision) remove() *Change {
	order := slices.SortedStableFunc(slices.Values(d.Members), func(a, b Member) int {
		return cmp.Or(compareBool(b.Learner, a.Learner), compareBool(a.Answers, b.Answers), compareBool(a.ID == d.Leader, b.ID == d.Leader))
	})
	for _, m := range order {
		if !d.unwanted(m) {
			continue
		}
		const reason = "an administrator has removed the server"
		if m.Learner {
			return &Change{Kind: Remove, Member: m.ID, Server: m.Server, Reason: reason}
		}
		all, answer := d.voters(m.ID)
		switch {
		case all == 0:
			d.wait(m.Server, "it is the only server that stores the cluster: add another server first")
		case answer < Majority(all):
			d.wait(m.Server, "%d of the other %d servers answer, and %d must: start the others, or remove those that do not answer first", answer, all, Majority(all))
		case m.ID == d.Leader:
			if to, ok := d.successor(); ok {
				return &Change{Kind: Transfer, Member: to.ID, Server: to.Server, Reason: "the leader " + m.Server + " is removed next"}
			}
			d.wait(m.Server, "no other server can become the leader")
		default:
			return &Change{Kind: Remove, Member: m.ID, Server: m.Server, Reason: reason}
		}
	}
	return nil
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// successor returns the voter that lacks the fewest entries.
func (d *decision) successor() (best Member, found bool) {
	for _, m := range d.Members {
		if m.Learner || !m.Answers || m.ID == d.Leader || d.unwanted(m) {
			continue
		}
		if !found || m.Behind < best.Behind {
			best, found = m, true
		}
	}
	return best, found
}

// expire removes learners that do not answer for too long. While they exist no other server can
// be added.
func (d *decision) expire() *Change {
	for _, m := range d.Members {
		if m.Learner && !m.Answers && m.Silent >= ArrivalTimeout {
			return &Change{Kind: Remove, Member: m.ID, Server: m.Server, Reason: fmt.Sprintf("it has not answered for %s", m.Silent.Round(time.Second))}
		}
	}
	return nil
}

func (d *decision) promote() *Change {
	for _, m := range d.Members {
		if !m.Learner {
			continue
		}
		all, answer := d.voters(0)
		switch {
		case !m.Answers:
			d.wait(m.Server, "it does not answer at its peer address since %s; after %s it is removed", m.Silent.Round(time.Second), ArrivalTimeout)
		case m.Behind > MaxBehind:
			d.wait(m.Server, "it copies the datastore; %d entries are missing", m.Behind)
		case answer+1 < Majority(all+1):
			d.wait(m.Server, "%d of %d servers answer, and %d must", answer, all, Majority(all+1)-1)
		default:
			return &Change{Kind: Promote, Member: m.ID, Server: m.Server, Reason: "it has caught up"}
		}
	}
	return nil
}

// add adds the first candidate that answers. etcd allows one learner at a time.
func (d *decision) add() *Change {
	learning := slices.IndexFunc(d.Members, func(m Member) bool { return m.Learner })
	for _, c := range d.Candidates {
		all, answer := d.voters(0)
		switch {
		case learning >= 0:
			d.wait(c.Server, "server %s is being added", d.Members[learning].Server)
		case !c.Answers:
			d.wait(c.Server, "it does not answer at its peer address %s: check the address, and that no firewall blocks the port", c.Peer)
		case all > 1 && answer < Majority(all+1):
			// etcd requires the same: the new server counts as one that does not answer.
			d.wait(c.Server, "%d of %d servers answer, and %d must: start the others, or remove those that do not answer first", answer, all, Majority(all+1))
		default:
			return &Change{Kind: Add, Server: c.Server, Peer: c.Peer, Reason: "it has joined and answers"}
		}
	}
	return nil
}
