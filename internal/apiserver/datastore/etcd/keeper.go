package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"rik.dev/rik/internal/apiserver/datastore/etcd/peer"
	"rik.dev/rik/internal/apiserver/datastore/members"
	"rik.dev/rik/internal/pause"
)

const (
	// keepInterval is the pause between two looks at the members.
	keepInterval = time.Second
	// changeTimeout bounds one change.
	changeTimeout = 10 * time.Second
)

// Entry is a server in the roster of the cluster.
type Entry struct {
	// Server is the name of the server.
	Server string
	// Peer is its peer URL.
	Peer string
	// Member is the ID of its member, or 0 if the server has not reported it.
	Member uint64
	// Removed means that an administrator wants to remove the server.
	Removed bool
}

// Roster is the list of the servers that should be members. Its methods are called on the leader
// only.
type Roster interface {
	// Entries returns the servers, in the order in which they joined.
	Entries(ctx context.Context) ([]Entry, error)
	// Removed is called when the member of a removed server is gone. It may be called again.
	Removed(ctx context.Context, server string) error
	// Waiting is called with the reasons why servers cannot join or leave now.
	Waiting(waiting []members.Waiting)
}

// KeepMembers changes the members until they match the roster, while this member is the leader. It
// returns when ctx ends.
func (s *Server) KeepMembers(ctx context.Context, roster Roster) error {
	if s.cluster == nil {
		return nil
	}
	k := &keeper{server: s, roster: roster, seen: map[uint64]time.Time{}}
	for {
		if err := k.pass(ctx); err != nil && ctx.Err() == nil {
			s.cluster.log.Warn("changing the members of the datastore failed; trying again", "err", err)
		}
		if !pause.For(ctx, keepInterval) {
			return nil
		}
	}
}

type keeper struct {
	server *Server
	roster Roster
	// seen is when each member answered last, or was first seen.
	seen map[uint64]time.Time
}

// pass makes one decision, and acts on it.
func (k *keeper) pass(ctx context.Context) error {
	s := k.server
	if !s.IsSeveral() {
		return nil
	}
	if !s.IsLeader() {
		clear(k.seen) // the next leader measures by itself
		k.roster.Waiting(nil)
		return nil
	}
	entries, err := k.roster.Entries(ctx)
	if err != nil {
		return err
	}
	known := s.state(0)
	state := k.look(ctx, known, entries)
	change, waiting := members.Next(state)
	k.roster.Waiting(waiting)
	if change != nil {
		if err := k.act(ctx, *change); err != nil {
			return err
		}
	}
	return k.forget(ctx, entries)
}

// look asks all members and candidates for their state.
func (k *keeper) look(ctx context.Context, known peer.State, entries []Entry) members.State {
	state := members.State{Leader: known.Member}
	var asking sync.WaitGroup
	for _, m := range known.Members {
		i := slices.IndexFunc(entries, func(e Entry) bool { return entryOf(e, m) })
		member := members.Member{ID: m.ID, Server: m.Name, Learner: m.Learner}
		if i >= 0 {
			member.Server = entries[i].Server
			if entries[i].Removed {
				state.Unwanted = append(state.Unwanted, m.ID)
			}
		}
		state.Members = append(state.Members, member)
	}
	for _, e := range entries {
		isMember := slices.ContainsFunc(known.Members, func(m peer.Member) bool { return entryOf(e, m) })
		// A server that was a member joins with a new entry, and not with its old one.
		if !isMember && !e.Removed && e.Peer != "" && e.Member == 0 {
			state.Candidates = append(state.Candidates, members.Candidate{Server: e.Server, Peer: e.Peer})
		}
	}
	for i, m := range known.Members {
		asking.Go(func() { k.askMember(ctx, &state.Members[i], m.Peers, known) })
	}
	for i := range state.Candidates {
		asking.Go(func() {
			c := &state.Candidates[i]
			answer, err := k.server.cluster.client.Ask(ctx, c.Peer, 0)
			c.Answers = err == nil && answer.Server == c.Server
		})
	}
	asking.Wait()
	k.measure(&state)
	return state
}

// entryOf reports whether an entry is the one of a member.
func entryOf(e Entry, m peer.Member) bool {
	return e.Member == m.ID || e.Member == 0 && slices.Contains(m.Peers, e.Peer)
}

func (k *keeper) askMember(ctx context.Context, m *members.Member, urls []string, known peer.State) {
	if m.ID == known.Member {
		m.Answers = true
		return
	}
	for _, url := range urls {
		answer, err := k.server.cluster.client.Ask(ctx, url, 0)
		if err != nil || answer.Member != m.ID {
			continue
		}
		m.Answers = true
		m.Behind = known.Applied - min(known.Applied, answer.Applied)
	}
}

// measure sets how long members have been silent.
func (k *keeper) measure(state *members.State) {
	now := time.Now()
	for i := range state.Members {
		m := &state.Members[i]
		if _, found := k.seen[m.ID]; !found || m.Answers {
			k.seen[m.ID] = now
		}
		m.Silent = now.Sub(k.seen[m.ID])
	}
}

// act makes one change. etcd refuses changes for some seconds after another one, and if it sees a
// risk; the next pass then tries again.
func (k *keeper) act(ctx context.Context, c members.Change) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	client := k.server.space.client
	var err error
	switch c.Kind {
	case members.Add:
		_, err = client.MemberAddAsLearner(ctx, []string{c.Peer})
	case members.Promote:
		_, err = client.MemberPromote(ctx, c.Member)
	case members.Remove:
		_, err = client.MemberRemove(ctx, c.Member)
	case members.Transfer:
		_, err = client.MoveLeader(ctx, c.Member)
	}
	log := k.server.cluster.log
	if notYet(err) {
		log.Debug("etcd refuses a change of its members for now", "change", c.Kind, "server", c.Server, "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s server %s: %w", c.Kind, c.Server, err)
	}
	log.Info("the members of the datastore have changed", "change", c.Kind, "server", c.Server, "reason", c.Reason)
	return nil
}

// notYet reports whether etcd may accept the same change later.
func notYet(err error) bool {
	for _, later := range []error{rpctypes.ErrUnhealthy, rpctypes.ErrMemberNotEnoughStarted, rpctypes.ErrMemberLearnerNotReady, rpctypes.ErrTooManyLearners} {
		if errors.Is(err, later) {
			return true
		}
	}
	return false
}

// forget reports the removed servers that have no member any more.
func (k *keeper) forget(ctx context.Context, entries []Entry) error {
	now := k.server.state(0).Members
	var errs []error
	for _, e := range entries {
		if e.Removed && !slices.ContainsFunc(now, func(m peer.Member) bool { return entryOf(e, m) }) {
			errs = append(errs, k.roster.Removed(ctx, e.Server))
		}
	}
	return errors.Join(errs...)
}
