package network

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rik.dev/rik/internal/rpc/nodev1"
)

func peer(name, address string) *entry {
	return &entry{key: key{kind: peerKind, name: name}, peer: &nodev1.Peer{Name: name, Address: address}}
}

// TestJournalAnySplit: a reader that reads at any times, any number of times, ends with the
// current netmap.
func TestJournalAnySplit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		j := newJournal()
		j.mostGone = rapid.IntRange(0, 4).Draw(t, "remembered")
		name := rapid.StringMatching("[a-f]")
		lines, version := map[key]string{}, uint64(0)
		read := func() {
			entries, ok := j.since(version)
			if !ok {
				lines = linesOf(j)
			}
			for _, m := range pieces(entries) {
				applyTo(lines, m)
			}
			version = j.version
		}
		t.Repeat(map[string]func(*rapid.T){
			"put":    func(t *rapid.T) { j.put(peer(name.Draw(t, "name"), name.Draw(t, "address"))) },
			"remove": func(t *rapid.T) { j.remove(key{kind: peerKind, name: name.Draw(t, "name")}) },
			"read":   func(*rapid.T) { read() },
			"": func(t *rapid.T) {
				if j.gone.Len() > j.mostGone || len(j.index) != j.live.Len()+j.gone.Len() {
					t.Fatalf("%d live and %d gone in an index of %d", j.live.Len(), j.gone.Len(), len(j.index))
				}
			},
		})
		read()
		if want := linesOf(j); !equal(lines, want) {
			t.Fatalf("the reader has %v, want %v", lines, want)
		}
	})
}

func TestPieces(t *testing.T) {
	t.Parallel()
	j := newJournal()
	for i := range 2*maxPiece + 1 {
		j.put(peer(fmt.Sprintf("n%d", i), ""))
	}
	got := pieces(j.all())
	if len(got) != 3 || len(got[0].GetPeers()) != maxPiece || len(got[2].GetPeers()) != 1 {
		t.Errorf("%d messages, the first with %d entries, want 3 with at most %d", len(got), len(got[0].GetPeers()), maxPiece)
	}
	long := newJournal()
	for i := range 5 {
		long.put(peer(fmt.Sprintf("n%d", i), strings.Repeat("x", maxPieceBytes/2)))
	}
	if got := pieces(long.all()); len(got) != 5 {
		t.Errorf("%d messages for 5 long entries, want 5: one has at most %d bytes", len(got), maxPieceBytes)
	}
	if got := pieces(nil); len(got) != 1 {
		t.Errorf("%d messages for nothing, want 1", len(got))
	}
}
