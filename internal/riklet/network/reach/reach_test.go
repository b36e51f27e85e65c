package reach

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestNeighbors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		self  string
		names []string
		want  []string
	}{
		"alone":            {"a", nil, nil},
		"two":              {"a", []string{"b"}, []string{"b"}},
		"itself":           {"a", []string{"a", "b"}, []string{"b"}},
		"few":              {"b", []string{"d", "a", "c"}, []string{"a", "c", "d"}},
		"in the middle":    {"d", []string{"a", "b", "c", "e", "f", "g"}, []string{"b", "c", "e", "f"}},
		"at the beginning": {"a", []string{"b", "c", "d", "e", "f", "g"}, []string{"b", "c", "f", "g"}},
		"at the end":       {"g", []string{"a", "b", "c", "d", "e", "f"}, []string{"a", "b", "e", "f"}},
	} {
		if got := neighbors(c.self, c.names); !slices.Equal(got, c.want) {
			t.Errorf("%s: neighbors(%s, %v) = %v, want %v", name, c.self, c.names, got, c.want)
		}
	}
}

// TestNeighborsAreMutual checks that every node queries the nodes that query it, for any number
// of nodes.
func TestNeighborsAreMutual(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,4}`), 1, 60, rapid.ID).Draw(t, "names")
		for _, n := range names {
			of := neighbors(n, names)
			if len(of) > 2*eachSide || len(of) < min(len(names)-1, 2*eachSide) {
				t.Fatalf("%s of %v asks %v", n, names, of)
			}
			for _, other := range of {
				if !slices.Contains(neighbors(other, names), n) {
					t.Fatalf("%s asks %s of %v, which does not ask back", n, other, names)
				}
			}
		}
	})
}

func TestValidate(t *testing.T) {
	t.Parallel()
	now := time.Now()
	long, short := now.Add(-10*time.Minute), now.Add(-10*time.Second)
	silent, answers, fresh := seen{since: long}, seen{since: long, answered: short}, seen{since: short}
	was := seen{since: long, answered: long}
	receivesNothing := seen{since: long, receivesNothing: short}
	receivedNothing := seen{since: long, receivesNothing: long}
	never, over, steady, begun := arrivals{}, arrivals{long, long}, arrivals{long, short}, arrivals{short, short}
	for name, c := range map[string]struct {
		all  []seen
		came arrivals
		want state
	}{
		"alone":                  {nil, never, idle},
		"alone by now":           {nil, steady, idle},
		"just begun":             {[]seen{fresh, fresh}, never, waiting},
		"one answers":            {[]seen{silent, silent, answers}, steady, fine},
		"all answer":             {[]seen{answers, answers}, steady, fine},
		"one of two is broken":   {[]seen{answers, silent}, steady, fine},
		"nothing arrives":        {[]seen{silent, silent}, never, inbound},
		"nothing does any more":  {[]seen{was, was}, over, inbound},
		"one was asked just now": {[]seen{silent, fresh}, never, inbound},
		"nothing arrives from the only other node":  {[]seen{silent}, never, inbound},
		"the only other node receives nothing":      {[]seen{receivesNothing}, steady, fine},
		"all others receive nothing":                {[]seen{receivesNothing, receivesNothing, receivesNothing}, steady, fine},
		"questions come, and no answers":            {[]seen{silent, silent}, steady, outbound},
		"one that receives others' does not answer": {[]seen{silent, receivesNothing}, steady, outbound},
		"one received nothing once":                 {[]seen{receivedNothing}, steady, outbound},
		"the way in was opened just now":            {[]seen{silent, silent}, begun, waiting},
	} {
		all := map[string]*seen{}
		for i := range c.all {
			all[string(rune('a'+i))] = &c.all[i]
		}
		if got := validate(all, c.came, now, time.Minute); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before memory
		state  state
		want   memory
	}{
		"new and alone":                 {memory{Trouble: unchecked}, idle, memory{Checked: true}},
		"new and not answered":          {memory{Trouble: unchecked}, waiting, memory{Trouble: "said"}},
		"new and blocked":               {memory{Trouble: unchecked}, inbound, memory{Trouble: "said"}},
		"new, blocked, after a restart": {memory{Trouble: "old"}, waiting, memory{Trouble: "old"}},
		"new and answered":              {memory{Trouble: "said"}, fine, memory{Checked: true}},
		"known after a restart":         {memory{Checked: true}, waiting, memory{Checked: true}},
		"blocked after a restart":       {memory{Checked: true, Trouble: "old"}, waiting, memory{Checked: true, Trouble: "old"}},
		"blocked by now":                {memory{Checked: true}, outbound, memory{Checked: true, Trouble: "said"}},
		"the others are gone":           {memory{Checked: true, Trouble: "old"}, idle, memory{Checked: true}},
	} {
		if got := c.before.next(c.state, "said"); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestDescribe checks that a message contains the port and the nodes, and fits into a condition.
func TestDescribe(t *testing.T) {
	t.Parallel()
	var peers []Peer
	for _, n := range []string{"a", "b", "c", "d"} {
		peers = append(peers, Peer{Name: strings.Repeat(n, 63), Outer: netip.MustParseAddr("192.168.100.200")})
	}
	for _, s := range []state{inbound, outbound, waiting} {
		text := describe(s, 8472, peers)
		if len(text) > 1024 || !strings.Contains(text, "UDP port 8472") || !strings.Contains(text, "aaa (192.168.100.200)") {
			t.Errorf("%s: %d bytes: %s", s, len(text), text)
		}
	}
}

func TestFrames(t *testing.T) {
	t.Parallel()
	a := Peer{Name: "a", Inner: netip.MustParseAddr("10.62.1.0"), MAC: net.HardwareAddr{6, 'r', 10, 62, 1, 0}}
	b := Peer{Name: "b", Inner: netip.MustParseAddr("10.62.2.0"), MAC: net.HardwareAddr{6, 'r', 10, 62, 2, 0}}
	for _, receivesNothing := range []bool{false, true} {
		f := query(a, b, b.Inner, receivesNothing)
		h, ok := read(f, b)
		if !ok || h.from.String() != a.MAC.String() || h.answer || h.receivesNothing != receivesNothing {
			t.Errorf("read(query(%v)) = %+v, %v", receivesNothing, h, ok)
		}
		if _, ok := read(f, a); ok {
			t.Error("a node reads a frame for another node")
		}
		f[arpLength-1]++ // the requested address
		if _, ok := read(f, b); !ok {
			t.Error("a query for another address of the node is not read")
		}
		f[atSenderMAC]++
		if _, ok := read(f, b); ok {
			t.Error("a frame with two senders is read")
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SliceOf(rapid.Byte()).Draw(t, "frame")
		read(f, b)
		read(append(slices.Clone(query(a, b, b.Inner, true))[:rapid.IntRange(0, arpLength).Draw(t, "length")], f...), b)
	})
}
