package rikcluster

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// TestTurns checks that the longest tests go first, in any order of requests, then the others in
// order, and that there are never more at the same time than places.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newTurns(1, []string{"TestLongest", "TestLong"})
		for _, name := range []string{"TestA", "TestLong", "TestLongest"} {
			q.announce(name)
		}
		var mu sync.Mutex
		var order []string
		var group sync.WaitGroup
		ask := func(name string) {
			group.Go(func() {
				q.take(name)
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
			})
			synctest.Wait()
		}
		ask("TestA")
		ask("TestLong")
		if len(order) != 0 {
			t.Errorf("%q did not wait for what is longer", order)
		}
		ask("TestB/sub")
		ask("TestLongest")
		ask("TestLong/sub")
		for n := 1; n <= 5; n++ {
			if len(order) != n {
				t.Errorf("%q have a place after %d were given back", order, n-1)
			}
			q.give()
			synctest.Wait()
		}
		group.Wait()
		if want := []string{"TestLongest", "TestLong", "TestLong/sub", "TestA", "TestB/sub"}; !slices.Equal(order, want) {
			t.Errorf("the order is %q, want %q", order, want)
		}
	})
}
