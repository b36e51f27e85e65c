package fencemodel_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"rik.dev/rik/internal/fencing"
	"rik.dev/rik/internal/testkit/race"
)

// The programs' defaults, and the time that an instance needs to stop.
const (
	tick              = 250 * time.Millisecond
	heartbeatInterval = fencing.HeartbeatInterval
	heartbeatTimeout  = fencing.HeartbeatTimeout
	grace             = 2 * time.Second
	replicas          = 3
)

// TestNothingRunsTwice tries random schedules of faults. At no time may an instance run here
// while the splitter relies on the fence, because it may have started another instance
// elsewhere.
func TestNothingRunsTwice(t *testing.T) {
	t.Parallel()
	schedules := 6000
	if race.Enabled {
		schedules = 200
	}
	var all eventCounts
	for seed := range uint64(schedules) {
		w := newModel(seed)
		for range 2400 { // ten minutes
			w.step()
			if w.counted && w.running() {
				t.Fatalf("schedule %d, after %s: %d instances run and the splitter counts on the fence (%s)", seed, w.now.Sub(start), replicas, w)
			}
		}
		all.add(w.eventCounts)
	}
	// The schedules must contain enough events, because without events every guarantee holds.
	if all.counted < schedules/10 || all.fenced < schedules/2 || all.back < schedules/10 || all.node < schedules/20 {
		t.Errorf("%d schedules have shown too little: %+v", schedules, all)
	}
	t.Logf("%d schedules: %+v", schedules, all)
}

// TestAClusterWithoutFaultsKeepsRunning has no faults: fenced instances must not stop without a reason.
func TestAClusterWithoutFaultsKeepsRunning(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		w := newModel(seed)
		w.faultless = true
		for i := range 2400 {
			w.step()
			if i > 240 && !w.running() {
				t.Fatalf("schedule %d, after %s: nothing runs (%s)", seed, w.now.Sub(start), w)
			}
		}
	}
}

// eventCounts counts events: the splitter relied on the fence, the controller stopped fenced
// instances, they came back, and a node stopped them by itself.
type eventCounts struct{ counted, fenced, back, node int }

func (a *eventCounts) add(b eventCounts) {
	a.counted, a.fenced, a.back, a.node = a.counted+b.counted, a.fenced+b.fenced, a.back+b.back, a.node+b.node
}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// clock runs faster or slower than real time, and has an offset.
type clock struct {
	rate float64
	off  time.Duration
}

func (c clock) at(now time.Time) time.Time {
	return start.Add(c.off + time.Duration(float64(now.Sub(start))*c.rate))
}

// fault is a failure that lasts for some time.
type fault struct{ until time.Time }

func (f *fault) on(now time.Time) bool { return now.Before(f.until) }

// later is a message that arrives at some time, even if its sender has stopped.
type later struct {
	at   time.Time
	take func()
}

type model struct {
	*rand.Rand
	now       time.Time
	faultless bool
	after     time.Duration
	eventCounts
	inFlight []later

	// The kcp: its Cluster object, what its controllers have seen of it, and the leaf.
	kcp struct {
		clock
		down, blind       fault // its API server; its controllers
		beats             int   // accepted heartbeats
		silent            bool
		silentSince, seen time.Time
		seenBeats         int
		leaf              int
		declaring         bool // a write that declares the cluster silent is under way
	}
	// counted means that the splitter relies on the fence. fewer is the time at which the
	// replicas elsewhere are gone again after the cluster came back.
	counted bool
	fewer   time.Time

	syncer struct {
		clock
		down, cutUp, cutDown fault
		silenced, stale      fault // its heartbeats are lost; its watch receives nothing
		renewals             fencing.Renewals
		nextBeat, nextLook   time.Time
	}
	// The cluster's API server: the Lease and the Workload.
	challenge, answer string
	spec              int

	controller struct {
		clock
		down   fault
		lease  fencing.Lease
		due    bool
		fenced bool
		n      int
	}
	node struct {
		clock
		cut     fault
		proof   fencing.Proof
		nextAsk time.Time
		// running says whether the instances run, and stopping since when they are being
		// stopped.
		running  bool
		stopping time.Time
		dead     bool // stopped by itself: the controller must create new ones
	}
}

func newModel(seed uint64) *model {
	w := &model{Rand: rand.New(rand.NewPCG(seed, 4)), now: start}
	w.after = []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute}[w.IntN(3)]
	for _, c := range []*clock{&w.kcp.clock, &w.syncer.clock, &w.controller.clock, &w.node.clock} {
		*c = clock{rate: 1 + (w.Float64()-0.5)/100, off: time.Duration(w.IntN(7200)-3600) * time.Second}
	}
	w.kcp.leaf, w.spec = replicas, replicas
	w.kcp.seen = w.kcp.at(start)
	w.restartSyncer()
	w.restartController()
	return w
}

func (w *model) String() string {
	return fmt.Sprintf("fence %s, leaf %d, spec %d, silent %v, fenced %v, challenge %q, answer %q", w.after, w.kcp.leaf, w.spec, w.kcp.silent, w.controller.fenced, w.challenge, w.answer)
}

func (w *model) running() bool { return w.node.running }

func (w *model) restartSyncer() {
	w.syncer.renewals = fencing.Renewals{Trust: fencing.Trust(heartbeatInterval)}
}

// restartController discards all state except that of the Lease.
func (w *model) restartController() {
	w.controller.lease, w.controller.fenced = fencing.Lease{}, true
	w.controller.due = w.controller.lease.Observe(w.challenge, w.answer, w.controller.at(w.now))
}

func (w *model) step() {
	w.now = w.now.Add(tick)
	if !w.faultless {
		w.startFault()
	}
	w.arrive()
	w.stepSyncer()
	w.stepKCP()
	w.stepController()
	w.stepNode()
}

// startFault starts a fault about every 20 s.
func (w *model) startFault() {
	if w.IntN(80) != 0 {
		return
	}
	until := w.now.Add(time.Duration(w.IntN(10+w.IntN(150))) * time.Second)
	switch w.IntN(11) {
	case 0:
		w.kcp.down.until = until
		// After a restart it sees the present heartbeat as new.
		if w.IntN(2) == 0 && !w.kcp.silent {
			w.kcp.seen, w.kcp.seenBeats = w.kcp.at(until), w.kcp.beats
		}
	case 1, 2:
		w.syncer.down.until = until
		if w.IntN(2) == 0 {
			w.restartSyncer()
		}
	case 3, 4:
		w.syncer.cutUp.until = until
	case 5:
		w.syncer.cutDown.until = until
	case 6:
		w.controller.down.until = until
		if w.IntN(2) == 0 {
			w.restartController()
		}
	case 7:
		w.node.cut.until = until
	case 8:
		w.kcp.blind.until = until
	case 9:
		w.syncer.silenced.until = until
	case 10:
		w.syncer.stale.until = until
	}
}

// send delivers a message, usually soon, sometimes much later.
func (w *model) send(take func()) {
	delay := time.Duration(w.IntN(300)) * time.Millisecond
	if !w.faultless && w.IntN(20) == 0 {
		delay = time.Duration(w.IntN(120)) * time.Second
	}
	w.inFlight = append(w.inFlight, later{w.now.Add(delay), take})
}

func (w *model) arrive() {
	waiting := w.inFlight
	w.inFlight = nil
	for _, m := range waiting {
		if w.now.Before(m.at) {
			w.inFlight = append(w.inFlight, m)
		} else {
			m.take()
		}
	}
}

// stepSyncer sends heartbeats, applies objects and reads the Lease, like the syncer.
func (w *model) stepSyncer() {
	s := &w.syncer
	if s.down.on(w.now) {
		return
	}
	now := s.at(w.now)
	up := !s.cutUp.on(w.now) && !w.kcp.down.on(w.now)
	down := !s.cutDown.on(w.now) && !w.controller.down.on(w.now) // one program with the API server
	if up && down && !s.silenced.on(w.now) && !now.Before(s.nextBeat) {
		s.nextBeat = now.Add(heartbeatInterval)
		run, began := &s.renewals, now
		w.send(func() { // accepted now, and the answer arrives at once
			w.kcp.beats++
			if run == &s.renewals && !s.down.on(w.now) && !s.cutUp.on(w.now) {
				s.renewals.Beaten(began, s.at(w.now), w.kcp.silent)
			}
		})
	}
	if !down || now.Before(s.nextLook) {
		return
	}
	s.nextLook = now.Add(fencing.Pace(w.after, true, time.Hour))
	if up && !s.stale.on(w.now) && w.IntN(4) == 0 { // the watch delivers it, at some time
		w.spec = w.kcp.leaf
	}
	if up && s.renewals.Contact(now) == fencing.Settling && w.spec <= w.kcp.leaf {
		s.renewals.Settle(now)
	}
	challenge := w.challenge
	if !up || challenge == "" || challenge == w.answer {
		return
	}
	if w.kcp.silent {
		s.renewals.Cut()
	}
	if s.renewals.Contact(s.at(w.now)) == fencing.Settled {
		w.send(func() { w.answer = challenge })
	}
}

// stepKCP detects a silent cluster, and splits.
func (w *model) stepKCP() {
	k := &w.kcp
	if k.down.on(w.now) || k.blind.on(w.now) {
		return
	}
	now := k.at(w.now)
	if k.seenBeats != k.beats {
		k.seenBeats, k.seen, k.silent = k.beats, now, false
	}
	if seen := k.seenBeats; !k.silent && !k.declaring && now.Sub(k.seen) >= heartbeatTimeout {
		k.declaring = true
		w.send(func() {
			k.declaring = false
			if k.beats == seen { // the write is for this exact version of the Cluster
				k.silent, k.silentSince = true, now
			}
		})
	}
	w.divide(now)
}

// divide acts as the splitter. The leaf of a lost cluster becomes 0. When the fence holds, its
// replicas start elsewhere. When the cluster is back, the replicas elsewhere are reduced first.
func (w *model) divide(now time.Time) {
	k := &w.kcp
	holds := k.silent && !now.Before(fencing.Replaceable(k.silentSince, w.after, grace))
	switch {
	case k.silent:
		if holds && k.leaf == 0 && !w.counted {
			w.counted = true
			w.eventCounts.counted++
		}
		k.leaf, w.fewer = 0, time.Time{}
	case w.counted && w.fewer.IsZero():
		w.fewer = w.now.Add(time.Duration(w.IntN(120)) * time.Second)
	case w.counted && w.now.Before(w.fewer):
	case w.counted:
		w.counted = false
	case w.IntN(20) == 0:
		k.leaf = replicas
	}
}

// stepController sets challenges, and closes and opens the fence.
func (w *model) stepController() {
	c := &w.controller
	if c.down.on(w.now) {
		return
	}
	now := c.at(w.now)
	if c.due = c.lease.Observe(w.challenge, w.answer, now); c.due {
		c.n++
		text := c.lease.Issue(now, fmt.Sprint(c.n))
		w.send(func() { w.challenge = text })
	}
	state, _ := fencing.AtController(c.lease.Proven(), w.after, now)
	fenced := state == fencing.Closed
	if fenced != c.fenced {
		c.fenced = fenced
		if fenced {
			w.fenced++
		} else {
			w.back++
		}
	}
}

// deliverProof returns what happens when the answer to a request arrives.
func (w *model) deliverProof(asked time.Time, age time.Duration) func() {
	return func() {
		w.node.proof.Forget()
		w.node.proof.Ask(asked)
		w.node.proof.Answered(fencing.Answer{Age: &age})
	}
}

// stepNode runs its instances, and requests proofs.
func (w *model) stepNode() {
	n := &w.node
	now := n.at(w.now)
	seen := !n.cut.on(w.now) && !w.controller.down.on(w.now)
	if seen && !now.Before(n.nextAsk) {
		n.nextAsk = now.Add(fencing.AskInterval(w.after))
		// A request of an earlier connection gets no answer that counts.
		if age, ok := w.controller.lease.Age(w.controller.at(w.now)); ok {
			w.send(w.deliverProof(now, age))
		}
	}
	state, _ := fencing.AtNode(fencing.Node{Proof: n.proof, After: w.after}, now)
	wanted := !w.controller.fenced && w.spec > 0
	switch {
	case n.running && n.stopping.IsZero() && seen && !wanted:
		n.stopping = now
	case n.running && n.stopping.IsZero() && state == fencing.Closed:
		n.stopping = now
		w.eventCounts.node++
	case n.running && !n.stopping.IsZero() && now.Sub(n.stopping) >= grace-tick:
		n.running, n.stopping = false, time.Time{}
	case !n.running && seen && wanted && state == fencing.Open:
		n.running = true
	}
}
