package datastore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"rik.dev/rik/internal/apiserver/datastore/datastoretest"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/privileged"
)

// rounds is how often a test ends a process.
func rounds(short, long int) int {
	if privileged.Long() {
		return long
	}
	return short
}

// load is what runs while processes end.
var load = datastoretest.LoadConfig{Writers: 6, Keys: 12, Bytes: 500, Timeout: 5 * time.Second}

// more waits until writes are acknowledged again.
func more(t *testing.T, l *datastoretest.Load, n int) {
	t.Helper()
	want := l.Confirmed() + n
	poll.Until(t, 2*time.Minute, "more writes are acknowledged", func(context.Context) error {
		if l.Confirmed() < want {
			return errors.New("not yet")
		}
		return nil
	})
}

// TestServersKilledUnderLoad: no acknowledged write is lost when the process with the open
// datastore ends, with SIGKILL or in good order, and no change is lost for a watch or delivered
// twice.
func TestServersKilledUnderLoad(t *testing.T) {
	t.Parallel()
	for _, kind := range datastoretest.Kinds() {
		if kind.Name == "etcd-1" || kind.Name == "etcd-3" {
			continue // nothing runs in that process
		}
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			host := kind.New(t).Host(t)
			l := datastoretest.StartLoad(t, datastoretest.Connect(t, host.Endpoint(t)), load)
			for round := range rounds(2, 20) {
				more(t, l, 100)
				if round%2 == 1 {
					host.Stop(t)
				} else {
					host.Kill()
				}
				host.Start(t)
			}
			more(t, l, 100)
			t.Logf("%d writes acknowledged, %d failed", l.Finish(t), l.Refused())
		})
	}
}

// TestDatabasesKilledUnderLoad: the same when the processes of the database end. Of an etcd
// cluster with three members, one ends at a time.
func TestDatabasesKilledUnderLoad(t *testing.T) {
	t.Parallel()
	for _, kind := range datastoretest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			b := kind.New(t)
			if len(b.Servers) == 0 {
				t.Skip("the datastore has no process of its own")
			}
			store := b.Open(t)
			l := datastoretest.StartLoad(t, datastoretest.Connect(t, store.Endpoint()), load)
			for round := range rounds(3, 20) {
				more(t, l, 100)
				server := b.Servers[round%len(b.Servers)]
				server.Kill()
				if len(b.Servers) > 1 {
					more(t, l, 20) // without one member
				}
				server.Start(t)
			}
			more(t, l, 100)
			t.Logf("%d writes acknowledged, %d failed", l.Finish(t), l.Refused())
		})
	}
}

// TestAnOutage: nothing is lost in an outage of the whole database. It lasts a minute in the long
// form of the tests. Health follows.
func TestAnOutage(t *testing.T) {
	t.Parallel()
	outage := 4 * time.Second
	if privileged.Long() {
		outage = time.Minute
	}
	for _, kind := range datastoretest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			b := kind.New(t)
			if len(b.Servers) == 0 {
				t.Skip("the datastore has no process of its own")
			}
			store := b.Open(t)
			l := datastoretest.StartLoad(t, datastoretest.Connect(t, store.Endpoint()), load)
			more(t, l, 100)
			for _, server := range b.Servers {
				server.Kill()
			}
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), outage/2)
			if err := store.Healthy(ctx); err == nil {
				t.Error("Healthy() = nil without a database")
			}
			cancel()
			time.Sleep(time.Until(began.Add(outage)))
			for _, server := range b.Servers {
				server.Start(t)
			}
			more(t, l, 100)
			poll.Until(t, time.Minute, "the datastore is healthy", store.Healthy)
			t.Logf("%d writes acknowledged, %d failed", l.Finish(t), l.Refused())
		})
	}
}
