package datastoretest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// loads counts loads, because each has its own prefix.
var loads atomic.Int64

// change is one change of a key.
type change struct {
	key, value string // an empty value is a deletion
	revision   int64
}

// Load is a number of writers and one watcher. Each writer owns some keys, and creates, updates
// and deletes them with guarded writes, as the API server does.
type Load struct {
	client  *kubernetes.Client
	prefix  string
	begun   int64 // the watcher starts after this revision
	stop    context.CancelFunc
	writers sync.WaitGroup
	group   sync.WaitGroup

	cancelAll context.CancelFunc

	mu sync.Mutex
	// confirmed are the acknowledged changes by revision.
	confirmed map[int64]change
	// possible are values whose write ended with an error. They may be stored.
	possible map[string]bool
	watched  []change
	problems []error
	last     int64 // the highest acknowledged revision
	refused  int   // writes that ended with an error
}

// LoadConfig sets the size of a load.
type LoadConfig struct {
	Writers, Keys int // keys are for each writer
	// Bytes is the size of a value.
	Bytes int
	// Timeout bounds one request.
	Timeout time.Duration
}

// StartLoad starts writers and a watcher.
func StartLoad(tb testing.TB, client *kubernetes.Client, c LoadConfig) *Load {
	tb.Helper()
	prefix := fmt.Sprintf("/registry/load%d/", loads.Add(1))
	now, err := client.KV.Get(tb.Context(), prefix)
	if err != nil {
		tb.Fatal(err)
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	watching, cancelAll := context.WithCancel(tb.Context())
	writing, stop := context.WithCancel(watching)
	l := &Load{client: client, prefix: prefix, begun: now.Header.Revision, stop: stop, cancelAll: cancelAll, confirmed: map[int64]change{}, possible: map[string]bool{}}
	tb.Cleanup(func() {
		cancelAll()
		l.writers.Wait()
		l.group.Wait()
	})
	l.group.Go(func() { l.watch(watching) })
	for i := range c.Writers {
		w := &writer{Load: l, config: c, name: fmt.Sprintf("%sw%02d/", prefix, i), random: rand.New(rand.NewPCG(uint64(i), 1)), state: map[string]change{}}
		l.writers.Go(func() { w.run(writing) })
	}
	return l
}

func (l *Load) problem(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.problems) < 10 {
		l.problems = append(l.problems, fmt.Errorf(format, args...))
	}
}

// Confirmed returns the number of acknowledged writes.
func (l *Load) Confirmed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.confirmed)
}

// Refused returns the number of writes that ended with an error.
func (l *Load) Refused() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// writer changes its own keys.
type writer struct {
	*Load
	config LoadConfig
	name   string
	random *rand.Rand
	// state has the last known change of each key.
	state map[string]change
	count int
}

func (w *writer) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.count++
		key := fmt.Sprintf("%s%03d", w.name, w.random.IntN(w.config.Keys))
		was := w.state[key]
		next := change{key: key}
		if was.value == "" || w.random.IntN(10) > 0 {
			next.value = fmt.Sprintf("%s-%d-", key, w.count)
			next.value += strings.Repeat("x", max(0, w.config.Bytes-len(next.value)))
		}
		w.step(ctx, was, next)
	}
}

func (w *writer) step(ctx context.Context, was, next change) {
	request, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.config.Timeout)
	defer cancel()
	guard := was.revision
	if was.value == "" {
		guard = 0
	}
	var succeeded bool
	var revision int64
	var err error
	if next.value == "" {
		var answer kubernetes.DeleteResponse
		answer, err = w.client.OptimisticDelete(request, next.key, guard, kubernetes.DeleteOptions{GetOnFailure: true})
		succeeded, revision = answer.Succeeded, answer.Revision
	} else {
		var answer kubernetes.PutResponse
		answer, err = w.client.OptimisticPut(request, next.key, []byte(next.value), guard, kubernetes.PutOptions{GetOnFailure: true})
		succeeded, revision = answer.Succeeded, answer.Revision
	}
	if err == nil && succeeded {
		next.revision = revision
		w.note(next)
		w.state[next.key] = next
		return
	}
	w.mu.Lock()
	w.refused++
	if next.value == "" {
		w.possible[fmt.Sprintf("%s@%d", next.key, was.revision)] = true // a deletion of that revision
	} else {
		w.possible[next.value] = true
	}
	w.mu.Unlock()
	w.learn(ctx, was, next, err)
}

func (l *Load) note(c change) {
	l.mu.Lock()
	other, twice := l.confirmed[c.revision]
	l.confirmed[c.revision] = c
	l.last = max(l.last, c.revision)
	l.mu.Unlock()
	if twice {
		l.problem("two writes were confirmed with the revision %d: %s and %s", c.revision, other.key, c.key)
	}
}

// learn reads a key after a write whose result is not known.
func (w *writer) learn(ctx context.Context, was, next change, cause error) {
	for ctx.Err() == nil {
		request, cancel := context.WithTimeout(ctx, w.config.Timeout)
		answer, err := w.client.Kubernetes.Get(request, next.key, kubernetes.GetOptions{})
		cancel()
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		now := change{key: next.key, revision: answer.Revision}
		if answer.KV != nil {
			now.value, now.revision = string(answer.KV.Value), answer.KV.ModRevision
		}
		switch {
		case now.value == was.value && (was.value == "" || now.revision == was.revision): // it was not stored
			if was.value == "" {
				now.revision = 0
			}
		case now.value == next.value: // it was stored
		case w.isPossible(now.value):
		default:
			w.problem("%s is %.60q at revision %d; confirmed was %.60q at %d, and %.60q ended with %v", next.key, now.value, now.revision, was.value, was.revision, next.value, cause)
		}
		w.state[next.key] = now
		return
	}
}

func (l *Load) isPossible(value string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.possible[value]
}

// watch records all changes. After an error it continues after the last change, as the API
// server's cache does.
func (l *Load) watch(ctx context.Context) {
	from := l.begun + 1
	for ctx.Err() == nil {
		one, cancel := context.WithCancel(ctx)
		for answer := range l.client.Watch(clientv3.WithRequireLeader(one), l.prefix, clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithPrevKV(), clientv3.WithProgressNotify()) {
			if err := answer.Err(); err != nil {
				if answer.CompactRevision != 0 {
					l.problem("the watch from revision %d ended: %v", from, err)
					cancel()
					return
				}
				break
			}
			l.mu.Lock()
			for _, e := range answer.Events {
				c := change{key: string(e.Kv.Key), value: string(e.Kv.Value), revision: e.Kv.ModRevision}
				if e.Type == clientv3.EventTypeDelete {
					c.value = ""
				}
				l.watched = append(l.watched, c)
				from = c.revision + 1
			}
			l.mu.Unlock()
		}
		cancel()
		time.Sleep(20 * time.Millisecond)
	}
}

// Finish stops the writers and checks that the watcher received each acknowledged change once
// and in order, and that a list has the result. It returns the number of acknowledged writes.
func (l *Load) Finish(tb testing.TB) int {
	tb.Helper()
	l.stop()
	l.writers.Wait()
	deadline := time.Now().Add(2 * time.Minute)
	for !l.caughtUp() {
		if time.Now().After(deadline) {
			l.mu.Lock()
			n := len(l.watched)
			var last int64
			if n > 0 {
				last = l.watched[n-1].revision
			}
			tb.Errorf("the watch is at revision %d after %d changes, and revision %d was confirmed", last, n, l.last)
			l.mu.Unlock()
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	final := l.list(tb)
	l.cancelAll()
	l.group.Wait()
	l.check(tb, final)
	return len(l.confirmed)
}

func (l *Load) caughtUp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last <= l.begun || len(l.watched) > 0 && l.watched[len(l.watched)-1].revision >= l.last
}

func (l *Load) list(tb testing.TB) map[string]*mvccpb.KeyValue {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	final := map[string]*mvccpb.KeyValue{}
	for ctx.Err() == nil {
		answer, err := l.client.KV.Get(ctx, l.prefix, clientv3.WithPrefix())
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		for _, kv := range answer.Kvs {
			final[string(kv.Key)] = kv
		}
		return final
	}
	tb.Errorf("listing after the load: %v", context.Cause(ctx))
	return final
}

func (l *Load) check(tb testing.TB, final map[string]*mvccpb.KeyValue) {
	tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	problems := l.problems
	report := func(format string, args ...any) {
		if len(problems) < 20 {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	seen := map[int64]change{}
	var previous int64
	state := map[string]change{}
	for _, c := range l.watched {
		if c.revision <= previous {
			report("the watch delivered revision %d of %s after revision %d", c.revision, c.key, previous)
		}
		previous = c.revision
		seen[c.revision] = c
		want, confirmed := l.confirmed[c.revision]
		switch {
		case confirmed && (want.key != c.key || want.value != c.value):
			report("revision %d of the watch is %s = %.40q, and %s = %.40q was confirmed", c.revision, c.key, c.value, want.key, want.value)
		case !confirmed && c.value != "" && !l.possible[c.value]:
			report("the watch delivered %s = %.40q at %d, which no writer wrote", c.key, c.value, c.revision)
		case !confirmed && c.value == "" && !l.possible[fmt.Sprintf("%s@%d", c.key, state[c.key].revision)]:
			report("the watch delivered a deletion of %s at %d, which no writer requested", c.key, c.revision)
		}
		state[c.key] = c
	}
	for _, revision := range slices.Sorted(maps.Keys(l.confirmed)) {
		c := l.confirmed[revision]
		if _, ok := seen[revision]; !ok {
			report("the watch did not deliver %s = %.40q at revision %d", c.key, c.value, revision)
		}
	}
	for key, c := range state {
		switch kv := final[key]; {
		case kv == nil && c.value != "":
			report("the list lacks %s = %.40q at %d", key, c.value, c.revision)
		case kv != nil && (c.value != string(kv.Value) || c.revision != kv.ModRevision):
			report("the list has %s = %.40q at %d, and the watch ended with %.40q at %d", key, kv.Value, kv.ModRevision, c.value, c.revision)
		}
	}
	for key := range final {
		if _, ok := state[key]; !ok && final[key].ModRevision > l.begun {
			report("the list has %s, which the watch did not deliver", key)
		}
	}
	if err := errors.Join(problems...); err != nil {
		tb.Errorf("%d writes confirmed, %d failed, %d changes watched:\n%v", len(l.confirmed), l.refused, len(l.watched), err)
	}
}

// random returns text that no database compresses.
func random(bytes int) string {
	text := make([]byte, bytes)
	for i := range text {
		text[i] = byte('!' + rand.IntN(90))
	}
	return string(text)
}
