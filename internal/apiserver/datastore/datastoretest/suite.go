package datastoretest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/testkit/poll"
)

// Run runs the conformance suite on a datastore.
func Run(t *testing.T, b *Backing) {
	t.Helper()
	store := b.Open(t)
	s := &suite{store: store, client: Connect(t, store.Endpoint())}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"guarded writes", s.guardedWrites},
		{"a watch from a revision", s.watchFromRevision},
		{"pages are one snapshot", s.pages},
		{"a watch after a list", s.watchAfterList},
		{"a watch from a revision under load", s.watchesUnderLoad},
		{"100 watchers", s.manyWatchers},
		{"large objects", s.largeObjects},
		{"keys with a lease expire", s.expiry},
		{"size and health", s.sizes},
		{"compaction", s.compaction}, // the last one: it removes what the others wrote
	} {
		if !t.Run(test.name, test.run) && t.Context().Err() != nil {
			return
		}
	}
}

type suite struct {
	store  *datastore.Datastore
	client *kubernetes.Client
}

// patience bounds a wait for something that takes no time on an idle machine.
const patience = time.Minute

func (s *suite) put(t testing.TB, key, value string, guard int64) int64 {
	t.Helper()
	answer, err := s.client.OptimisticPut(t.Context(), key, []byte(value), guard, kubernetes.PutOptions{GetOnFailure: true})
	if err != nil || !answer.Succeeded {
		t.Fatalf("writing %s at revision %d: %+v, %v", key, guard, answer, err)
	}
	return answer.Revision
}

func (s *suite) guardedWrites(t *testing.T) {
	const key = "/registry/guarded/key"
	first := s.put(t, key, "one", 0)
	again, err := s.client.OptimisticPut(t.Context(), key, []byte("other"), 0, kubernetes.PutOptions{GetOnFailure: true})
	if err != nil || again.Succeeded || again.KV == nil || string(again.KV.Value) != "one" || again.KV.ModRevision != first {
		t.Errorf("creating an existing key: %+v, %v; want a failure with the stored value", again, err)
	}
	second := s.put(t, key, "two", first)
	if second <= first {
		t.Errorf("revisions of two writes: %d, %d", first, second)
	}
	stale, err := s.client.OptimisticPut(t.Context(), key, []byte("three"), first, kubernetes.PutOptions{GetOnFailure: true})
	if err != nil || stale.Succeeded || stale.KV == nil || stale.KV.ModRevision != second {
		t.Errorf("updating an old revision: %+v, %v; want a failure with revision %d", stale, err, second)
	}
	old, err := s.client.OptimisticDelete(t.Context(), key, first, kubernetes.DeleteOptions{GetOnFailure: true})
	if err != nil || old.Succeeded || old.KV == nil || old.KV.ModRevision != second {
		t.Errorf("deleting an old revision: %+v, %v; want a failure with revision %d", old, err, second)
	}
	gone, err := s.client.OptimisticDelete(t.Context(), key, second, kubernetes.DeleteOptions{GetOnFailure: true})
	if err != nil || !gone.Succeeded || gone.Revision <= second {
		t.Errorf("deleting: %+v, %v", gone, err)
	}
	if got, err := s.client.Kubernetes.Get(t.Context(), key, kubernetes.GetOptions{}); err != nil || got.KV != nil {
		t.Errorf("reading a deleted key: %+v, %v", got, err)
	}
	if got, err := s.client.Kubernetes.Get(t.Context(), key, kubernetes.GetOptions{Revision: second}); err != nil || got.KV == nil || string(got.KV.Value) != "two" {
		t.Errorf("reading a deleted key at revision %d: %+v, %v", second, got, err)
	}
	absent, err := s.client.OptimisticPut(t.Context(), key, []byte("four"), second, kubernetes.PutOptions{GetOnFailure: true})
	if err != nil || absent.Succeeded || absent.KV != nil {
		t.Errorf("updating a deleted key: %+v, %v; want a failure without a value", absent, err)
	}
	third := s.put(t, key, "five", 0)
	got, err := s.client.Kubernetes.Get(t.Context(), key, kubernetes.GetOptions{})
	if err != nil || got.KV == nil || got.KV.CreateRevision != third || got.KV.ModRevision != third {
		t.Errorf("a key that was created again: %+v, %v; want both revisions %d", got, err, third)
	}
}

func (s *suite) watchFromRevision(t *testing.T) {
	const keys = "/registry/watched/"
	var want []change
	for i := range 30 {
		c := change{key: fmt.Sprintf("%s%d", keys, i%3), value: fmt.Sprint(i)}
		guard := int64(0)
		if i >= 3 {
			guard = want[i-3].revision
		}
		if i == 27 {
			answer, err := s.client.OptimisticDelete(t.Context(), c.key, guard, kubernetes.DeleteOptions{GetOnFailure: true})
			if err != nil || !answer.Succeeded {
				t.Fatalf("deleting: %+v, %v", answer, err)
			}
			c.value, c.revision = "", answer.Revision
		} else {
			c.revision = s.put(t, c.key, c.value, guard)
		}
		want = append(want, c)
	}
	for _, from := range []int{0, 7, 15, 27, 29} {
		got := s.collect(t, keys, want[from].revision, len(want)-from)
		if !slices.Equal(got, want[from:]) {
			t.Errorf("a watch from revision %d received %v, want %v", want[from].revision, got, want[from:])
		}
	}
}

// collect watches from a revision until n changes have arrived.
func (s *suite) collect(t testing.TB, keys string, from int64, n int) []change {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got []change
	for answer := range s.client.Watch(ctx, keys, clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithPrevKV()) {
		if err := answer.Err(); err != nil {
			t.Errorf("watching from revision %d: %v", from, err)
			return got
		}
		for _, e := range answer.Events {
			c := change{key: string(e.Kv.Key), revision: e.Kv.ModRevision}
			if e.Type == clientv3.EventTypePut {
				c.value = string(e.Kv.Value)
			} else if e.PrevKv == nil || len(e.PrevKv.Value) == 0 {
				t.Errorf("the deletion of %s has no previous value", c.key)
			}
			got = append(got, c)
		}
		if len(got) >= n {
			return got
		}
	}
	t.Errorf("a watch from revision %d received %d of %d changes", from, len(got), n)
	return got
}

// pages lists in pages while writers write. All pages together must be the state at the
// revision of the first one.
func (s *suite) pages(t *testing.T) {
	load := StartLoad(t, s.client, LoadConfig{Writers: 4, Keys: 15, Bytes: 100})
	type listing struct {
		revision int64
		content  map[string]change
	}
	var listings []listing
	poll.Until(t, patience, "there are keys", func(context.Context) error {
		if load.Confirmed() < 50 {
			return errors.New("not yet")
		}
		return nil
	})
	for range 25 {
		one := listing{content: map[string]change{}}
		next := ""
		for {
			answer, err := s.client.List(t.Context(), load.prefix, kubernetes.ListOptions{Limit: 7, Continue: next, Revision: one.revision})
			if err != nil {
				t.Fatalf("listing: %v", err)
			}
			if one.revision == 0 {
				one.revision = answer.Revision
			}
			for _, kv := range answer.Kvs {
				one.content[string(kv.Key)] = change{string(kv.Key), string(kv.Value), kv.ModRevision}
				next = string(kv.Key) + "\x00"
			}
			if int64(len(answer.Kvs)) >= answer.Count {
				break
			}
		}
		listings = append(listings, one)
	}
	load.Finish(t)
	for _, one := range listings {
		if err := compare(one.content, load.at(one.revision)); err != nil {
			t.Errorf("the pages of a list at revision %d: %v", one.revision, err)
		}
	}
}

// at returns the state at a revision, after Finish.
func (l *Load) at(revision int64) map[string]change {
	state := map[string]change{}
	for _, c := range l.watched {
		if c.revision > revision {
			break
		}
		state[c.key] = c
		if c.value == "" {
			delete(state, c.key)
		}
	}
	return state
}

func compare(got, want map[string]change) error {
	var problems []error
	for key, w := range want {
		if g, ok := got[key]; !ok {
			problems = append(problems, fmt.Errorf("%s of revision %d is missing", key, w.revision))
		} else if g != w {
			problems = append(problems, fmt.Errorf("%s has the revision %d, want %d", key, g.revision, w.revision))
		}
	}
	for key, g := range got {
		if _, ok := want[key]; !ok {
			problems = append(problems, fmt.Errorf("%s of revision %d was deleted or created later", key, g.revision))
		}
	}
	return errors.Join(problems[:min(len(problems), 5)]...)
}

// watchAfterList lists while writers write, and watches from the next revision: the pair with
// which each cache of the API server begins.
func (s *suite) watchAfterList(t *testing.T) {
	load := StartLoad(t, s.client, LoadConfig{Writers: 8, Keys: 10, Bytes: 100})
	type follower struct {
		from  int64
		state map[string]change
	}
	var followers []*follower
	for range 25 {
		answer, err := s.client.List(t.Context(), load.prefix, kubernetes.ListOptions{})
		if err != nil {
			t.Fatalf("listing: %v", err)
		}
		f := &follower{from: answer.Revision, state: map[string]change{}}
		for _, kv := range answer.Kvs {
			f.state[string(kv.Key)] = change{string(kv.Key), string(kv.Value), kv.ModRevision}
		}
		followers = append(followers, f)
	}
	load.Finish(t)
	for _, f := range followers {
		if err := compare(f.state, load.at(f.from)); err != nil {
			t.Errorf("a watch after a list at revision %d never corrects this: %v", f.from, err)
		}
	}
}

// lastValue marks the end of a load.
const lastValue = "end"

// watchesUnderLoad starts watches at a revision of the past while writers write. Each must
// deliver all changes since then.
func (s *suite) watchesUnderLoad(t *testing.T) {
	load := StartLoad(t, s.client, LoadConfig{Writers: 8, Keys: 10, Bytes: 100})
	type watch struct {
		from int64
		got  []change
		err  error
	}
	watches := make([]*watch, 25)
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range watches {
		now, err := s.store.Revision(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w := &watch{from: max(load.begun+1, now-20)}
		watches[i] = w
		ready := make(chan struct{})
		group.Go(func() {
			once := sync.OnceFunc(func() { close(ready) })
			defer once()
			for answer := range s.client.Watch(ctx, load.prefix, clientv3.WithPrefix(), clientv3.WithRev(w.from), clientv3.WithCreatedNotify()) {
				once()
				if w.err = answer.Err(); w.err != nil {
					return
				}
				for _, e := range answer.Events {
					c := change{key: string(e.Kv.Key), revision: e.Kv.ModRevision}
					if e.Type == clientv3.EventTypePut {
						c.value = string(e.Kv.Value)
					}
					w.got = append(w.got, c)
					if c.value == lastValue {
						return
					}
				}
			}
		})
		<-ready
	}
	load.Finish(t)
	end := s.put(t, load.prefix+"end", lastValue, 0) // each watch ends here
	over := time.AfterFunc(patience, cancel)
	group.Wait()
	over.Stop()
	for _, w := range watches {
		var want []change
		for _, c := range load.watched {
			if c.revision >= w.from {
				want = append(want, c)
			}
		}
		got := slices.DeleteFunc(slices.Clone(w.got), func(c change) bool { return c.revision >= end })
		if w.err != nil || !slices.Equal(got, want) {
			t.Errorf("a watch from revision %d received %d changes, want %d: %v; missing: %v", w.from, len(got), len(want), w.err, missing(want, got))
		}
	}
}

// missing returns the first changes of want that got does not have.
func missing(want, got []change) []change {
	has := map[change]bool{}
	for _, c := range got {
		has[c] = true
	}
	var lacks []change
	for _, c := range want {
		if c.value = ""; len(lacks) < 5 {
			lacks = append(lacks, c)
		}
	}
	return slices.DeleteFunc(lacks, func(c change) bool { return has[c] })
}

func (s *suite) manyWatchers(t *testing.T) {
	const watchers, writes = 100, 50
	const keys = "/registry/popular/"
	begin, err := s.store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make([][]change, watchers)
	var group sync.WaitGroup
	for i := range watchers {
		group.Go(func() { got[i] = s.collect(t, keys, begin+1, writes) })
	}
	var want []change
	for i := range writes {
		c := change{key: fmt.Sprintf("%s%d", keys, i), value: fmt.Sprint(i)}
		c.revision = s.put(t, c.key, c.value, 0)
		want = append(want, c)
	}
	group.Wait()
	for i, g := range got {
		if !slices.Equal(g, want) {
			t.Errorf("watcher %d received %v, want %v", i, g, want)
			return
		}
	}
}

func (s *suite) largeObjects(t *testing.T) {
	const key = "/registry/large/"
	large := strings.Repeat("x", 1<<20)
	revision := s.put(t, key+"a", large, 0)
	if got := s.collect(t, key, revision, 1); len(got) != 1 || got[0].value != large {
		t.Errorf("an object of 1 MiB does not arrive in a watch")
	}
	for name, bytes := range map[string]int{"above the limit": 1536<<10 + 1, "2 MiB": 2 << 20, "3 MiB": 3 << 20} {
		_, err := s.client.OptimisticPut(t.Context(), key+"b", []byte(strings.Repeat("x", bytes)), 0, kubernetes.PutOptions{GetOnFailure: true})
		if err == nil {
			t.Errorf("an object of %s is stored", name)
		}
		if bytes < 2<<20 && !errors.Is(err, rpctypes.ErrRequestTooLarge) {
			t.Errorf("an object of %s: %v, want %v", name, err, rpctypes.ErrRequestTooLarge)
		}
	}
	if got, err := s.client.Kubernetes.Get(t.Context(), key+"a", kubernetes.GetOptions{}); err != nil || got.KV == nil || string(got.KV.Value) != large {
		t.Errorf("after refused objects, an object of 1 MiB is not as it was: %v", err)
	}
}

// expiry: the API server stores events with a lease.
func (s *suite) expiry(t *testing.T) {
	const key = "/registry/events/short"
	lease, err := s.client.Grant(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := s.client.OptimisticPut(t.Context(), key, []byte("x"), 0, kubernetes.PutOptions{GetOnFailure: true, LeaseID: lease.ID})
	if err != nil || !answer.Succeeded {
		t.Fatalf("writing with a lease: %+v, %v", answer, err)
	}
	got := s.collect(t, key, answer.Revision, 2)
	if len(got) != 2 || got[1].value != "" {
		t.Errorf("the watch of a key with a lease of 2 s received %v, want its deletion", got)
	}
}

func (s *suite) sizes(t *testing.T) {
	if err := s.store.Healthy(t.Context()); err != nil {
		t.Errorf("Healthy() = %v", err)
	}
	before, err := s.store.Size(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if before.Stored <= 0 || before.InUse <= 0 {
		t.Errorf("Size() = %+v", before)
	}
	// A database may have reserved space that it fills first.
	written := 0
	poll.Until(t, patience, "the size grows by 6 MiB", func(ctx context.Context) error {
		for range 8 {
			if written++; written <= 48 {
				s.put(t, fmt.Sprintf("/registry/size/%d", written), random(1<<20), 0)
			}
		}
		after, err := s.store.Size(ctx)
		if err == nil && after.Stored < before.Stored+6<<20 {
			err = fmt.Errorf("it was %+v and is %+v after %d MiB", before, after, min(written, 48))
		}
		return err
	})
}

// compaction removes old revisions. kine keeps the latest 1,000.
func (s *suite) compaction(t *testing.T) {
	const keys, kept = "/registry/compacted/", 1100
	old := s.put(t, keys+"a", "one", 0)
	s.put(t, keys+"a", "two", old)
	deleted := s.put(t, keys+"b", "gone", 0)
	gone, err := s.client.OptimisticDelete(t.Context(), keys+"b", deleted, kubernetes.DeleteOptions{GetOnFailure: true})
	if err != nil || !gone.Succeeded {
		t.Fatal(gone, err)
	}
	target := gone.Revision
	var group sync.WaitGroup
	for w := range 8 {
		group.Go(func() {
			revision := int64(0)
			for range kept / 8 {
				answer, err := s.client.OptimisticPut(t.Context(), fmt.Sprintf("%sw%d", keys, w), []byte("x"), revision, kubernetes.PutOptions{GetOnFailure: true})
				if err != nil || !answer.Succeeded {
					t.Errorf("writing: %+v, %v", answer, err)
					return
				}
				revision = answer.Revision
			}
		})
	}
	group.Wait()
	if err := s.store.Compact(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	if err := s.store.Compact(t.Context(), target); err != nil {
		t.Errorf("compacting to the same revision again: %v", err)
	}
	if got, err := s.store.Compacted(t.Context()); err != nil || got != target {
		t.Errorf("Compacted() = %d, %v; want %d", got, err, target)
	}
	if _, err := s.client.Kubernetes.Get(t.Context(), keys+"a", kubernetes.GetOptions{Revision: old}); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("reading revision %d after a compaction to %d: %v, want %v", old, target, err, rpctypes.ErrCompacted)
	}
	if _, err := s.client.List(t.Context(), keys, kubernetes.ListOptions{Revision: old, Limit: 1}); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("listing at revision %d after a compaction to %d: %v, want %v", old, target, err, rpctypes.ErrCompacted)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, ok := <-s.client.Watch(ctx, keys, clientv3.WithPrefix(), clientv3.WithRev(old))
	if !ok || answer.CompactRevision != target || !errors.Is(answer.Err(), rpctypes.ErrCompacted) {
		t.Errorf("a watch from revision %d after a compaction to %d: %+v, %v", old, target, answer, ctx.Err())
	}
	if got, err := s.client.Kubernetes.Get(t.Context(), keys+"a", kubernetes.GetOptions{}); err != nil || got.KV == nil || string(got.KV.Value) != "two" {
		t.Errorf("the latest revision of a key after a compaction: %+v, %v", got, err)
	}
	if got, err := s.client.List(t.Context(), keys, kubernetes.ListOptions{Revision: target + 1}); err != nil || got.Count < 1 {
		t.Errorf("listing at revision %d after a compaction to %d: %v", target+1, target, err)
	}
	s.expired(t, keys, old)
}
