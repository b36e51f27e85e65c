package servers

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/rpc/nodev1"
)

func address(name string) Address {
	return Address{Name: name, Nodes: name + ":4997", Workers: name + ":4995"}
}

func message(revision int64, active string, names ...string) *nodev1.Servers {
	m := &nodev1.Servers{Revision: revision, Active: active}
	for _, n := range names {
		a := address(n)
		m.Servers = append(m.Servers, &nodev1.ServerAddress{Name: n, Nodes: a.Nodes, Workers: a.Workers})
	}
	return m
}

func open(t *testing.T, file string) *Directory {
	t.Helper()
	first := address("a")
	first.Name = "" // a flag has no name
	return Open(file, first, slog.New(slog.DiscardHandler))
}

func readable(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestTheNodeFollowsTheActiveServer moves both connections when another server becomes active, and
// tries the others while the active one is dead.
func TestTheNodeFollowsTheActiveServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := open(t, filepath.Join(t.TempDir(), "servers.json"))
		expect := func(want string) {
			t.Helper()
			if got := d.Next().Nodes; got != want+":4997" {
				t.Fatalf("Next() = %s, want server %s", got, want)
			}
		}
		expect("a")
		d.Learn(message(1, "b", "a", "b", "c"))
		if !readable(d.Move()) {
			t.Fatal("the node stays at a standby")
		}
		d.Ended(true)
		expect("b")
		if !readable(d.Moved()) || d.Current().Workers != "b:4995" {
			t.Error("the connection to the scheduler does not follow")
		}
		d.Ended(true) // b has died
		expect("b")
		d.Ended(false)
		expect("a")
		d.Learn(message(1, "b", "a", "b", "c")) // a does not know yet
		if readable(d.Move()) {
			t.Error("the node returns at once to a server that refused it")
		}
		d.Learn(message(1, "c", "a", "b", "c"))
		if !readable(d.Move()) {
			t.Error("the node does not follow the next active server")
		}
		d.Ended(true)
		expect("c")
		d.Ended(false) // c refuses the node once, and stays active
		expect("a")
		d.Learn(message(1, "c", "a", "b", "c"))
		<-d.Move() // after a while, in the bubble's time
		d.Ended(true)
		expect("c")
	})
}

// TestTheListIsSaved finds another server after a restart whose configured server is dead. An older
// list does not replace a newer one.
func TestTheListIsSaved(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "servers.json")
	d := open(t, file)
	d.Learn(message(7, "", "a", "b"))
	d.Learn(message(6, "", "a"))
	d.Learn(&nodev1.Servers{Revision: 9, Servers: []*nodev1.ServerAddress{{Name: "x", Nodes: "no port", Workers: "x:1"}}})
	d = open(t, file)
	var got []string
	for range 3 {
		got = append(got, d.Next().Nodes)
		d.Ended(false)
	}
	if diff := cmp.Diff([]string{"a:4997", "b:4997", "a:4997"}, got); diff != "" {
		t.Errorf("the attempts after a restart (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := open(t, file).Next().Nodes; got != "a:4997" {
		t.Errorf("with a damaged list, Next() = %s", got)
	}
}
