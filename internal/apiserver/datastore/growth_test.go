package datastore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/datastore/datastoretest"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/privileged"
)

// compactions compacts as the API server does, which takes the revision of the previous
// time. The API server does it every five minutes, and the test for each part of its updates.
type compactions struct {
	store    *datastore.Datastore
	previous int64
}

func (c *compactions) next(t *testing.T) {
	t.Helper()
	now, err := c.store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c.previous != 0 {
		if err := c.store.Compact(t.Context(), c.previous); err != nil {
			t.Error(err)
		}
	}
	c.previous = now
}

// update writes a number of updates to 100 keys with 10 writers.
func update(t *testing.T, client *kubernetes.Client, revisions []int64, updates int) {
	t.Helper()
	const writers = 10
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range updates / writers {
				n := w*len(revisions)/writers + i%(len(revisions)/writers)
				value := fmt.Sprintf("%d-%s", i, strings.Repeat("x", 1000))
				answer, err := client.OptimisticPut(t.Context(), fmt.Sprintf("/registry/growth/%03d", n), []byte(value), revisions[n], kubernetes.PutOptions{GetOnFailure: true})
				if err != nil || !answer.Succeeded {
					t.Errorf("update %d of key %d: %+v, %v", i, n, answer.Succeeded, err)
					return
				}
				revisions[n] = answer.Revision
			}
		})
	}
	group.Wait()
}

// TestGrowthIsBounded updates 100 objects of 1 KB again and again, 100,000 times in the long form
// of the tests, with watches connected all the time. The space that a datastore uses does not
// grow with the number of updates.
func TestGrowthIsBounded(t *testing.T) {
	t.Parallel()
	parts, each := 3, 1200
	if privileged.Long() {
		parts, each = 10, 10000
	}
	for _, kind := range datastoretest.Kinds() {
		if kind.Name == "etcd-3" || !privileged.Long() && kind.In == nil || !privileged.Long() && kind.Name != "SQLite" && kind.SQL {
			continue // the members of a cluster are as etcd-1; database servers take minutes
		}
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			store := kind.New(t).Open(t)
			client := datastoretest.Connect(t, store.Endpoint())
			ctx, cancel := context.WithCancel(t.Context())
			var watching sync.WaitGroup
			for range 10 {
				watching.Go(func() {
					for range client.Watch(ctx, "/registry/growth/", clientv3.WithPrefix()) {
					}
				})
			}
			defer watching.Wait()
			defer cancel()
			revisions := make([]int64, 100)
			c := &compactions{store: store}
			var sizes []string
			var most datastore.Size
			for part := range parts {
				update(t, client, revisions, each)
				c.next(t)
				size, err := store.Size(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				sizes = append(sizes, fmt.Sprintf("%d/%d MB", size.InUse>>20, size.Stored>>20))
				if part == 1 {
					most = size // old revisions of two parts are stored
				}
			}
			// The content of two parts is always stored: the kept one and the one being written. A
			// database needs as much again for indexes and for the space that it reuses later.
			limit := 3*most.Stored + 16<<20
			poll.Until(t, 2*time.Minute, "the datastore is smaller", func(ctx context.Context) error {
				size, err := store.Size(ctx)
				if err == nil && size.Stored > limit {
					err = fmt.Errorf("it has %d MB after %d updates, and had %d MB after %d", size.Stored>>20, parts*each, most.Stored>>20, 2*each)
				}
				return err
			})
			t.Logf("in use/stored after each %d updates: %s", each, strings.Join(sizes, ", "))
			if got, err := store.Compacted(t.Context()); err != nil || got < int64((parts-2)*each) {
				t.Errorf("Compacted() = %d, %v after %d updates", got, err, parts*each)
			}
		})
	}
}

// TestACompactionDuringAnOutage: a compaction that fails because the database ends neither ends
// the server nor prevents later compactions.
func TestACompactionDuringAnOutage(t *testing.T) {
	t.Parallel()
	for _, kind := range datastoretest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			if kind.Name == "PostgreSQL" && !privileged.Long() {
				t.Skip("in the long form only, because its writes are slow")
			}
			if !kind.SQL || kind.Name == "SQLite" {
				t.Skip("compactions of etcd continue by themselves, and SQLite has no process of its own")
			}
			b := kind.New(t)
			host := b.Host(t)
			client := datastoretest.Connect(t, host.Endpoint(t))
			revisions := make([]int64, 100)
			update(t, client, revisions, rounds(1500, 4000))
			for range rounds(1, 10) {
				now, err := client.KV.Get(t.Context(), "/registry/growth/000")
				if err != nil {
					t.Fatal(err)
				}
				compacted := make(chan error, 1)
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					_, err := client.Compact(ctx, now.Header.Revision)
					compacted <- err
				}()
				time.Sleep(20 * time.Millisecond) // within the compaction
				b.Servers[0].Kill()
				<-compacted
				select {
				case <-host.Done():
					t.Fatalf("the server ended:\n%s", host.Log())
				default:
				}
				b.Servers[0].Start(t)
				update(t, client, revisions, 1500)
			}
			now, err := client.KV.Get(t.Context(), "/registry/growth/000")
			if err != nil {
				t.Fatal(err)
			}
			poll.Until(t, time.Minute, "a compaction succeeds", func(ctx context.Context) error {
				_, err := client.Compact(ctx, now.Header.Revision-1000)
				if err == nil {
					_, err = client.KV.Get(ctx, "/registry/growth/000", clientv3.WithRev(now.Header.Revision-1100))
					if err == nil {
						return errors.New("the old revisions are there")
					}
					return nil
				}
				return nil
			})
		})
	}
}
