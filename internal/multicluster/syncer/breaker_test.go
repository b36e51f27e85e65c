package syncer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// TestBreaker tests the bounds of deletions within a window, for any sequence of requests. A
// namespace deletes at most its limit, and all together at most twice the limit. A go-ahead adds
// its number. If the syncer restarts in between, any number of times, the bounds are twice as
// large: once before the restart, and once during the first window after it.
//
// It also tests that a namespace below its limit is delayed only by the limit of all namespaces.
func TestBreaker(t *testing.T) {
	t.Parallel()
	for name, restarts := range map[string]bool{"one run": false, "many runs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { breakerHolds(t, restarts) })
		})
	}
}

// breakerModel is what a test knows about a breaker without looking into it.
type breakerModel struct {
	limit      DeleteLimit
	total      int
	goAhead    string
	now, began time.Time
	b          *breaker
	// let are the deletions that were allowed, and ran are those since the last restart.
	let, ran []deletion
	waiting  map[Key]bool
}

func newBreakerModel(t *rapid.T) *breakerModel {
	m := &breakerModel{
		limit: DeleteLimit{Count: rapid.IntRange(1, 5).Draw(t, "count"), Fraction: 0.1, Window: time.Minute},
		total: rapid.IntRange(0, 100).Draw(t, "total"), now: time.Unix(0, 0), waiting: map[Key]bool{},
	}
	m.began = m.now.Add(-m.limit.Window)
	m.b = newBreaker(m.limit, m.began)
	return m
}

// key draws an object in one of a few namespaces.
func (m *breakerModel) key(t *rapid.T) Key {
	return Key{
		Namespace: rapid.SampledFrom([]string{"", "a", "b", "c", "d"}).Draw(t, "namespace"),
		Name:      strconv.Itoa(rapid.IntRange(0, 15).Draw(t, "name")),
	}
}

// count returns how many of some deletions were within the last window, in one namespace and in
// all.
func (m *breakerModel) count(deleted []deletion, namespace string) (one, all int) {
	for _, d := range deleted {
		if m.now.Sub(d.at) >= m.limit.Window {
			continue
		}
		all++
		if d.namespace == namespace {
			one++
		}
	}
	return one, all
}

// open returns the waiting deletions of a namespace, and those of all namespaces that are not
// paused.
func (m *breakerModel) open(namespace string) (one, all int) {
	for key := range m.waiting {
		if key.Namespace == namespace {
			one++
		}
		if !m.b.holds(key.Namespace) {
			all++
		}
	}
	return one, all
}

func (m *breakerModel) ask(t *rapid.T) {
	key := m.key(t)
	granted, held := m.b.granted[key], m.b.holds(key.Namespace)
	m.waiting[key] = true
	done, doneOfAll := m.count(m.ran, key.Namespace)
	open, openOfAll := m.open(key.Namespace)
	allowed := max(m.limit.Count, (m.total+doneOfAll)/10)
	may, again := m.b.ask(key, m.now, m.total, m.goAhead)
	if may {
		delete(m.waiting, key)
		if !granted {
			m.let, m.ran = append(m.let, deletion{key.Namespace, m.now}), append(m.ran, deletion{key.Namespace, m.now})
		}
	}
	holds := m.b.holds(key.Namespace)
	if may && again != 0 || again < 0 || holds && again != 0 || !may && !holds && again == 0 {
		t.Fatalf("ask(%s) = %v, %s, and its namespace is paused: %v", key, may, again, holds)
	}
	fits := done+open <= allowed && doneOfAll+openOfAll <= 2*allowed
	switch {
	case granted && !may, held && !granted && may:
		t.Errorf("ask(%s) = %v although it was granted: %v, and its namespace was paused: %v", key, may, granted, held)
	case !held && !granted && fits == holds:
		t.Errorf("ask(%s) pauses its namespace: %v, with %d done and %d open there, %d and %d in all, and the limit %d",
			key, holds, done, open, doneOfAll, openOfAll, allowed)
	case !held && fits && !may && m.now.Sub(m.began) >= m.limit.Window:
		t.Errorf("ask(%s) must wait %s, with %d done and %d open there, %d and %d in all, and the limit %d",
			key, again, done, open, doneOfAll, openOfAll, allowed)
	}
}

func (m *breakerModel) apply(t *rapid.T) {
	number := m.b.number()
	m.goAhead = rapid.SampledFrom([]string{"", "x", "1", "2", "3", strconv.Itoa(number)}).Draw(t, "go-ahead")
	held, all := m.b.held(), m.b.paused
	free := m.b.apply(m.goAhead, rapid.Bool().Draw(t, "settled"))
	if len(free) == 0 {
		return
	}
	if len(free) != number || m.goAhead != strconv.Itoa(number) || m.b.isPaused() {
		t.Errorf("the go-ahead %q allows %d of %d, and there is a pause after it: %v", m.goAhead, len(free), number, m.b.isPaused())
	}
	for _, key := range free {
		if !m.waiting[key] || held[key.Namespace] == 0 {
			t.Errorf("the go-ahead allows %s, which was not paused", key)
		}
		delete(m.waiting, key)
	}
	// A go-ahead begins a new window.
	ended := func(d deletion) bool { return all || held[d.namespace] > 0 }
	m.let, m.ran = slices.DeleteFunc(m.let, ended), slices.DeleteFunc(m.ran, ended)
}

// check checks the bounds, and that the breaker counts what the model counts.
func (m *breakerModel) check(t *rapid.T, times int) {
	_, all := m.count(m.let, "")
	allowed := max(m.limit.Count, (m.total+all)/10) + 1
	for _, namespace := range []string{"", "a", "b", "c", "d"} {
		if one, _ := m.count(m.let, namespace); one > times*allowed {
			t.Fatalf("%d deletions of the namespace %q in a window, at most %d", one, namespace, times*allowed)
		}
	}
	if all > times*2*allowed {
		t.Fatalf("%d deletions in a window, at most %d", all, times*2*allowed)
	}
	waiting, open, done := 0, 0, 0
	for namespace, n := range m.b.namespaces {
		waiting += len(n.waiting)
		done += n.done
		if !n.paused {
			open += len(n.waiting)
		}
		if !n.paused && n.done == 0 && len(n.waiting) == 0 {
			t.Errorf("the namespace %q stays in memory", namespace)
		}
	}
	if waiting != len(m.waiting) || open != m.b.open || done != len(m.b.done) {
		t.Fatalf("%d wait, %d of them open, and %d are done, want %d, %d and %d", waiting, m.b.open, len(m.b.done), len(m.waiting), open, done)
	}
}

func breakerHolds(t *rapid.T, restarts bool) {
	m, times := newBreakerModel(t), 1
	actions := map[string]func(*rapid.T){
		"ask": m.ask,
		"time": func(t *rapid.T) {
			m.now = m.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
		},
		"forget": func(t *rapid.T) {
			key := m.key(t)
			m.b.forget(key)
			delete(m.waiting, key)
		},
		"go-ahead": m.apply,
		"":         func(t *rapid.T) { m.check(t, times) },
	}
	if restarts {
		times = 2
		actions["restart"] = func(*rapid.T) {
			// The next run reads the pauses from the Cluster's status.
			was, all, held := m.b.isPaused(), m.b.paused, slices.Collect(maps.Keys(m.b.held()))
			m.b, m.began, m.waiting, m.ran = newBreaker(m.limit, m.now), m.now, map[Key]bool{}, nil
			if all {
				held = nil
			}
			if was {
				m.b.resume("", held)
			}
		}
	}
	t.Repeat(actions)
}

// TestBreakerIgnoresPausedNamespaces tests that the requests of a paused namespace make no
// difference to the others. It compares a breaker that gets all requests with one that does not
// get those of paused namespaces.
func TestBreakerIgnoresPausedNamespaces(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newBreakerModel(t)
		if rapid.Bool().Draw(t, "first window") {
			m.b = newBreaker(m.limit, m.now)
		}
		other := newBreaker(m.limit, m.b.began)
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				key := m.key(t)
				paused := m.b.holds(key.Namespace)
				may, again := m.b.ask(key, m.now, m.total, "")
				if paused {
					if may {
						t.Errorf("%s may be deleted although its namespace is paused", key)
					}
					return
				}
				if wantMay, wantAgain := other.ask(key, m.now, m.total, ""); may != wantMay || again != wantAgain {
					t.Errorf("ask(%s) = %v, %s, want %v, %s as without the requests of paused namespaces", key, may, again, wantMay, wantAgain)
				}
			},
			"time": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			},
		})
	})
}

// TestBreakerPausesOneNamespace tests that a namespace with too many deletions is paused alone,
// that two such namespaces pause all, and that a go-ahead allows what waits.
func TestBreakerPausesOneNamespace(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	b := newBreaker(DeleteLimit{Count: 3, Window: time.Minute}, now.Add(-time.Minute))
	ask := func(namespace string, i int) bool {
		may, _ := b.ask(Key{Namespace: namespace, Name: strconv.Itoa(i)}, now, 0, "")
		return may
	}
	for i := range 10 {
		if may := ask("a", i); may != (i < 3) {
			t.Errorf("deletion %d of a namespace with the limit 3: %v", i, may)
		}
	}
	for i, namespace := range []string{"b", "c", ""} {
		if !ask(namespace, 0) {
			t.Errorf("a deletion in the namespace %q waits, because another namespace is paused, with %d done", namespace, i)
		}
	}
	if b.paused || !b.holds("a") || b.holds("b") || b.number() != 7 {
		t.Errorf("the pause is of all namespaces: %v, and of %v", b.paused, b.held())
	}
	if ask("d", 0) || !b.paused || !b.holds("b") {
		t.Errorf("all namespaces together delete more than twice the limit")
	}
	if free := b.apply("8", true); len(free) != 8 || b.isPaused() {
		t.Errorf("the go-ahead for 8 deletions allows %v", free)
	}
	for i := 3; i < 10; i++ {
		if !ask("a", i) {
			t.Errorf("deletion %d waits after the go-ahead", i)
		}
	}
	if !ask("d", 0) {
		t.Error("the deletion in the fourth namespace waits after the go-ahead")
	}
}

// TestBreakerGoAheadOfOneNamespace tests that a go-ahead for one namespace does not give more to
// the others, and that one from before the last pause is not valid.
func TestBreakerGoAheadOfOneNamespace(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	b := newBreaker(DeleteLimit{Count: 1, Window: time.Minute}, now.Add(-time.Minute))
	ask := func(namespace string, i int, goAhead string) bool {
		may, _ := b.ask(Key{Namespace: namespace, Name: strconv.Itoa(i)}, now, 0, goAhead)
		return may
	}
	if !ask("a", 0, "") || ask("a", 1, "") || !ask("b", 0, "") {
		t.Fatal("each namespace may delete one object")
	}
	// The go-ahead for both is given before the second pause, so it cannot mean it.
	if b.apply("2", true) != nil || ask("b", 1, "2") || b.apply("2", true) != nil {
		t.Error("a go-ahead from before a pause allows its deletions")
	}
	if b.apply("", true); len(b.apply("2", true)) != 2 {
		t.Error("a new go-ahead does not allow the deletions of both namespaces")
	}
	if !ask("a", 1, "2") || !ask("b", 1, "2") || !ask("a", 2, "2") || ask("a", 3, "2") || !b.holds("a") || b.holds("b") {
		t.Errorf("the namespace has no new window after the go-ahead: %v is paused", b.held())
	}
	if len(b.apply("1", true)) != 1 || !ask("b", 2, "1") || ask("b", 3, "1") || b.paused || !b.holds("b") {
		t.Errorf("the go-ahead for one namespace changes another: %v is paused", b.held())
	}
}

// TestBreakerForgetsNamespaces tests that namespaces without recent deletions use no memory.
func TestBreakerForgetsNamespaces(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	b := newBreaker(DeleteLimit{Count: 1000, Window: time.Minute}, now.Add(-time.Minute))
	for i := range 1000 {
		b.ask(Key{Namespace: strconv.Itoa(i)}, now, 0, "")
	}
	b.ask(Key{Namespace: "last"}, now.Add(time.Minute), 0, "")
	if len(b.namespaces) != 1 || len(b.done) != 1 || b.open != 0 {
		t.Errorf("after a window, %d namespaces with %d deletions are in memory", len(b.namespaces), len(b.done))
	}
}

// TestBreakerAccrues tests that after its start a syncer deletes gradually what a running one may
// delete at once. It does not delete more than the limits of a namespace and of all namespaces.
func TestBreakerAccrues(t *testing.T) {
	t.Parallel()
	begin := time.Unix(0, 0)
	key := func(i int) Key { return Key{Name: strconv.Itoa(i)} }
	b := newBreaker(DeleteLimit{Count: 6, Window: time.Minute}, begin)
	for i := range 6 {
		if may, again := b.ask(key(i), begin, 0, ""); may || again != time.Duration(i+1)*10*time.Second {
			t.Errorf("deletion %d at the start: %v, again after %s, want it in its turn", i, may, again)
		}
	}
	for i := range 6 {
		now := begin.Add(time.Duration(i+1) * 10 * time.Second)
		if may, _ := b.ask(key(i), now.Add(-time.Second), 0, ""); may {
			t.Errorf("deletion %d may pass before its time", i)
		}
		if may, _ := b.ask(key(i), now, 0, ""); !may {
			t.Errorf("deletion %d may not pass at its time", i)
		}
	}
	if may, again := b.ask(key(6), begin.Add(70*time.Second), 0, ""); !may {
		t.Errorf("when the first is a window ago the next may not pass: again after %s", again)
	}

	b = newBreaker(DeleteLimit{Count: 6, Window: time.Minute}, begin)
	for i := range 7 {
		if may, _ := b.ask(key(i), begin.Add(time.Second), 0, ""); may {
			t.Errorf("deletion %d of too many may pass", i)
		}
	}
	if !b.holds("") || b.paused || b.number() != 7 {
		t.Errorf("paused is %v with %d waiting, want a pause of all 7", b.holds(""), b.number())
	}

	// Each of four namespaces wants three deletions. That is the limit of all together.
	b = newBreaker(DeleteLimit{Count: 6, Window: time.Minute}, begin)
	passed := map[int]bool{}
	for second := range 61 {
		for i := range 12 {
			if passed[i] {
				continue
			}
			key := Key{Namespace: strconv.Itoa(i % 4), Name: strconv.Itoa(i)}
			passed[i], _ = b.ask(key, begin.Add(time.Duration(second)*time.Second), 0, "")
		}
		maps.DeleteFunc(passed, func(_ int, may bool) bool { return !may })
		want := second / 5
		if second < 10 {
			want = 0 // no namespace may delete its first object earlier
		}
		if len(passed) != want || b.isPaused() {
			t.Errorf("after %ds, %d deletions of four namespaces passed, want %d; paused: %v", second, len(passed), want, b.held())
		}
	}
}

// TestBreakerResumesPauses tests that after a restart the same namespaces are paused, and no
// others, although fewer deletions wait than the limit.
func TestBreakerResumesPauses(t *testing.T) {
	t.Parallel()
	limit, now := DeleteLimit{Count: 5, Window: time.Minute}, time.Unix(0, 0)
	for name, tc := range map[string]struct {
		status *workloadv1alpha1.PausedDeletes
		paused []string
	}{
		"namespaces":      {&workloadv1alpha1.PausedDeletes{Namespaces: []workloadv1alpha1.PausedNamespace{{Namespace: "a", Deletes: 3}, {Namespace: "", Deletes: 1}}}, []string{"a", ""}},
		"all":             {&workloadv1alpha1.PausedDeletes{AllNamespaces: true, Namespaces: []workloadv1alpha1.PausedNamespace{{Namespace: "a", Deletes: 3}}}, []string{"a", "", "b"}},
		"earlier version": {nil, []string{"a", "", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBreaker(limit, now.Add(-time.Minute))
			resumePauses(b, &workloadv1alpha1.Cluster{Status: workloadv1alpha1.ClusterStatus{PausedDeletes: tc.status, Conditions: []metav1.Condition{
				{Type: workloadv1alpha1.ConditionDeletesPaused, Status: metav1.ConditionTrue, Reason: workloadv1alpha1.ReasonTooManyDeletes},
			}}})
			for _, namespace := range []string{"a", "", "b"} {
				want := !slices.Contains(tc.paused, namespace)
				if may, _ := b.ask(Key{Namespace: namespace, Name: "x"}, now, 0, ""); may != want {
					t.Errorf("an object of the namespace %q may be deleted: %v, want %v", namespace, may, want)
				}
			}
			if b.apply(strconv.Itoa(len(tc.paused)), false) != nil {
				t.Error("a go-ahead counts before all is counted")
			}
			if free := b.apply(strconv.Itoa(len(tc.paused)), true); len(free) != len(tc.paused) || b.isPaused() {
				t.Errorf("the go-ahead allows %v", free)
			}
		})
	}
}

func TestBreakerGoAhead(t *testing.T) {
	t.Parallel()
	b := newBreaker(DeleteLimit{Count: 1, Window: time.Minute}, time.Unix(-60, 0))
	key := func(i int) Key { return Key{Name: strconv.Itoa(i)} }
	ask := func(i int, goAhead string) bool {
		may, _ := b.ask(key(i), time.Unix(0, 0), 0, goAhead)
		return may
	}
	if !ask(0, "2") || ask(1, "2") || ask(2, "2") {
		t.Fatal("one deletion may pass, and no more")
	}
	if free := b.apply("2", true); free != nil {
		t.Errorf("a go-ahead that was there before sets %v free", free)
	}
	for _, wrong := range []string{"", "1", "3", "all"} {
		if free := b.apply(wrong, true); free != nil {
			t.Errorf("the go-ahead %q sets %v free", wrong, free)
		}
	}
	if free := b.apply("2", true); len(free) != 2 || b.isPaused() {
		t.Fatalf("the go-ahead sets %v free", free)
	}
	if !ask(1, "2") || !ask(2, "2") {
		t.Error("what was set free does not pass")
	}
	if !ask(3, "2") || ask(4, "2") || b.apply("1", true) == nil {
		t.Error("the next pause needs a go-ahead of its own")
	}
	b.resume("", nil)
	if b.apply("", false) != nil || !b.isPaused() {
		t.Error("a pause that was taken up ends before everything was looked at")
	}
	if b.apply("", true); b.isPaused() {
		t.Error("a pause goes on with nothing to pause for")
	}
}

// TestBreakerGoAheadAfterStart tests two rules. While the waiting deletions are still being
// counted, a number that matches by accident is not accepted. A go-ahead that was old for one run
// of the syncer is old for the next run too.
func TestBreakerGoAheadAfterStart(t *testing.T) {
	t.Parallel()
	b := newBreaker(DeleteLimit{Count: 1, Window: time.Minute}, time.Unix(0, 0))
	b.resume("", nil)
	for i := range 20 {
		b.ask(Key{Name: strconv.Itoa(i)}, time.Unix(1, 0), 0, "19")
		if free := b.apply("19", false); free != nil {
			t.Fatalf("the go-ahead for 19 sets the first %d of 20 free", len(free))
		}
	}
	if free := b.apply("19", true); free != nil {
		t.Errorf("the go-ahead for 19 sets %d free", len(free))
	}
	if free := b.apply("20", true); len(free) != 20 {
		t.Errorf("the go-ahead for 20 sets %d free", len(free))
	}

	b = newBreaker(DeleteLimit{Count: 1, Window: time.Minute}, time.Unix(0, 0))
	b.resume("1", nil)
	b.ask(Key{Name: "x"}, time.Unix(1, 0), 0, "1")
	if free := b.apply("1", true); free != nil {
		t.Errorf("an old go-ahead sets %v free after a start", free)
	}
	b.apply("", true)
	if free := b.apply("1", true); len(free) != 1 {
		t.Errorf("a go-ahead that was given anew sets %v free", free)
	}
}

// TestPausedMessage tests that the condition names the limit that was exceeded, the namespaces
// with their numbers, and the command that continues.
func TestPausedMessage(t *testing.T) {
	t.Parallel()
	cluster := &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east"}}
	now := time.Unix(0, 0)
	b := newBreaker(DeleteLimit{Count: 2, Window: time.Minute}, now.Add(-time.Minute))
	says := func(words ...string) {
		t.Helper()
		c := pausedCondition(b, cluster)
		for _, word := range words {
			if c == nil || c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, word) {
				t.Errorf("the condition is %v, want it to contain %q", c, word)
			}
		}
	}
	ask := func(namespace string, number int) {
		for i := range number {
			b.ask(Key{Namespace: namespace, Name: strconv.Itoa(i)}, now, 0, "")
		}
	}
	if c := pausedCondition(b, cluster); c != nil {
		t.Errorf("without a pause the condition is %v", c)
	}
	if paused := pausedDeletes(b); paused != nil {
		t.Errorf("without a pause the status has %v", paused)
	}
	ask("team", 5)
	says("3 so far", "team (3)", "not checked all objects")
	b.apply("", true)
	says("3 deletions are paused", "limit of 2 deletions within 1m0s: team (3)", "other namespaces continue", "allow-deletes=3")
	ask("", 3)
	says("4 deletions are paused", "team (3), objects without a namespace (1)", "allow-deletes=4")
	ask("third", 1)
	says("5 deletions are paused", "All namespaces together exceeded their limit of 4 deletions",
		"team (3), objects without a namespace (1), third (1)", "allow-deletes=5")
	for i := range 30 {
		ask(fmt.Sprint("more", i), 1)
	}
	says("35 deletions are paused", "and 13 more")
	paused := pausedDeletes(b)
	if first := (workloadv1alpha1.PausedNamespace{Namespace: "team", Deletes: 3}); !paused.AllNamespaces || len(paused.Namespaces) != 33 || paused.Namespaces[0] != first {
		t.Errorf("the status has %v", paused)
	}
}

// TestPausedNamespacesAreBounded tests that the status does not grow with the number of paused
// namespaces. The next run pauses all namespaces then.
func TestPausedNamespacesAreBounded(t *testing.T) {
	t.Parallel()
	b := newBreaker(DeleteLimit{Count: 1, Window: time.Minute}, time.Unix(-60, 0))
	var names []string
	for i := range workloadv1alpha1.MaxPausedNamespaces {
		names = append(names, strconv.Itoa(i))
	}
	b.resume("", names)
	if paused := pausedDeletes(b); paused.AllNamespaces || len(paused.Namespaces) != len(names) {
		t.Errorf("the status has %d namespaces, and all: %v", len(paused.Namespaces), paused.AllNamespaces)
	}
	b.resume("", append(names, "one more"))
	if paused := pausedDeletes(b); !paused.AllNamespaces || len(paused.Namespaces) != len(names) || b.paused {
		t.Errorf("the status has %d namespaces, and all: %v", len(paused.Namespaces), paused.AllNamespaces)
	}
}
