package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/api/rik/fence"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/checkpoint"
	"rik.dev/rik/internal/riklet/connection"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/instance/instancefake"
	"rik.dev/rik/internal/riklet/objects"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// node is a manager with real parts around it, in a bubble. The test acts as both of its peers.
type node struct {
	t           *testing.T
	dir         string
	host        *instancefake.Host
	driver      *instancefake.Driver
	manager     *Manager
	objects     *objects.Store
	outbox      *connection.Outbox
	checkpoints *checkpoint.Store
	stop        func()

	sent    map[string]*schedulerv1.Observation // the last one of each
	allowed int
	moved   int
}

// start creates a node on an empty machine. The bubble ends it.
func start(t *testing.T, cfg instancefake.Config) *node {
	n := &node{t: t, dir: t.TempDir(), host: instancefake.NewHost()}
	n.boot(cfg)
	return n
}

// boot starts the riklet's part. The machine and the disk are unchanged.
func (n *node) boot(cfg instancefake.Config) {
	n.t.Helper()
	var err error
	if n.checkpoints, err = checkpoint.Open(filepath.Join(n.dir, "ledger.json")); err != nil {
		n.t.Fatal(err)
	}
	changed := func() { n.manager.Changed() }
	if n.objects, err = objects.New(objects.Config{Dir: filepath.Join(n.dir, "revisions"), Changed: changed}); err != nil {
		n.t.Fatal(err)
	}
	cfg.Changed = changed
	n.driver, n.outbox, n.sent = n.host.Driver(cfg), connection.NewOutbox(), map[string]*schedulerv1.Observation{}
	n.manager = New(Config{
		Kinds:   []rikv1alpha1.WorkloadKind{rikv1alpha1.KindPod},
		Objects: n.objects, Outbox: n.outbox, Checkpoint: n.checkpoints,
		Allowed: func() { n.allowed++ }, Moved: func() { n.moved++ }, Logger: slog.New(slog.DiscardHandler),
	})
	n.manager.Use(n.driver)
	if err := n.driver.Recover(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 2)
	go func() { done <- n.driver.Run(ctx) }()
	go func() { done <- n.manager.Run(ctx) }()
	n.stop = func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				n.t.Errorf("Run() = %v", err)
			}
		}
	}
}

// settle waits until all goroutines are idle, and collects the observations.
func (n *node) settle() {
	n.t.Helper()
	synctest.Wait()
	for o := n.outbox.Next(time.Now()); o != nil; o = n.outbox.Next(time.Now()) {
		if before := n.sent[o.GetUid()]; before != nil && o.GetSequence() <= before.GetSequence() {
			n.t.Errorf("observation %d of %s follows %d", o.GetSequence(), o.GetUid(), before.GetSequence())
		}
		n.sent[o.GetUid()] = o
	}
}

func (n *node) order(order *schedulerv1.Order) {
	n.t.Helper()
	n.manager.Order(order)
	n.settle()
}

func (n *node) run(term int64, uid, revision string) {
	n.t.Helper()
	n.order(&schedulerv1.Order{Term: term, Message: &schedulerv1.Order_Run{Run: runOf(uid, revision)}})
}

func (n *node) stopOrder(uid string, grace int64) {
	n.t.Helper()
	n.order(&schedulerv1.Order{Term: 1, Message: &schedulerv1.Order_Stop{Stop: &schedulerv1.StopOrder{Uid: uid, GraceSeconds: grace}}})
}

func (n *node) allow(runs ...*schedulerv1.Run) {
	n.t.Helper()
	n.order(&schedulerv1.Order{Term: 1, Message: &schedulerv1.Order_Allowed{Allowed: &schedulerv1.Allowed{Instances: runs}}})
}

func (n *node) ack(uid string) {
	n.t.Helper()
	n.order(&schedulerv1.Order{Term: 1, Message: &schedulerv1.Order_Ack{Ack: &schedulerv1.Ack{Uid: uid, Sequence: n.sent[uid].GetSequence()}}})
}

func runOf(uid, revision string) *schedulerv1.Run {
	return &schedulerv1.Run{Uid: uid, Namespace: "shop", Name: "web-" + uid, Workload: "web", Revision: revision}
}

// deliver answers the node's requests for objects. Each revision is named after its change to a
// plain Pod.
func (n *node) deliver() {
	n.t.Helper()
	for _, get := range n.objects.PendingRequests() {
		if get.GetKind() == nodev1.Kind_KIND_FENCE {
			n.objects.Deliver(&nodev1.Object{Kind: get.GetKind(), Namespace: get.GetNamespace(), Error: "later"})
			continue
		}
		template := &rikv1alpha1.InstanceTemplate{Containers: []rikv1alpha1.Container{{Name: "c", Image: "oci:/images/web"}}}
		switch get.GetName() {
		case "function":
			template = &rikv1alpha1.InstanceTemplate{Kind: rikv1alpha1.KindFunction, Function: &rikv1alpha1.Function{}}
		case "fenced":
			template.OnDisconnect = rikv1alpha1.DisconnectStop
		case "proof30s":
			template.Annotations = map[string]string{fence.Annotation: "30s"}
		case "gone":
			n.objects.Deliver(&nodev1.Object{Kind: get.GetKind(), Namespace: get.GetNamespace(), Name: get.GetName()})
			continue
		}
		data, err := template.Marshal()
		if err != nil {
			n.t.Fatal(err)
		}
		n.objects.Deliver(&nodev1.Object{Kind: get.GetKind(), Namespace: get.GetNamespace(), Name: get.GetName(), Found: true, Data: data})
	}
	n.settle()
}

// want checks the phase that the node last reported for an instance.
func (n *node) want(uid string, phase rikv1alpha1.InstancePhase) {
	n.t.Helper()
	if got := n.sent[uid].GetPhase(); got != string(phase) {
		n.t.Errorf("last observation of %s: %q (%s), want %q", uid, got, n.sent[uid].GetMessage(), phase)
	}
}

func (n *node) wantRunning(uids ...string) {
	n.t.Helper()
	if got := n.host.Running(); !slices.Equal(got, uids) {
		n.t.Errorf("on the machine run %v, want %v", got, uids)
	}
}

func bubble(t *testing.T, cfg instancefake.Config, f func(t *testing.T, n *node)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := start(t, cfg)
		f(t, n)
		n.stop()
	})
}

func TestRunAndStop(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.run(1, "a", "r1")
		n.run(1, "a", "r1")
		n.wantRunning()
		n.deliver()
		n.want("a", rikv1alpha1.InstanceRunning)
		if got := n.manager.Info("a"); !slices.Equal(got.Containers, []string{"c"}) {
			t.Errorf("Info() = %+v", got)
		}
		status := &rikv1alpha1.InstanceStatus{}
		if err := status.Unmarshal(n.sent["a"].GetStatus()); err != nil || status.Sequence != n.sent["a"].GetSequence() || len(status.Containers) != 1 {
			t.Errorf("status = %+v, %v, want the containers and the sequence", status, err)
		}
		n.stopOrder("a", 0)
		n.want("a", rikv1alpha1.InstanceTerminated)
		n.wantRunning()
		n.ack("a")
		if got := n.driver.Observations(); len(got) != 0 {
			t.Errorf("the driver still has %v after the end was acknowledged", got)
		}
		if n.host.Starts("a") != 1 {
			t.Errorf("started %d times, want once", n.host.Starts("a"))
		}
	})
}

// A driver may take its time to forget an instance. Its observations in that time must not be
// sent: each would be acknowledged and would cause the next one.
func TestForgottenInstancesAreNotReported(t *testing.T) {
	bubble(t, instancefake.Config{ForgetTakes: time.Minute}, func(t *testing.T, n *node) {
		n.run(1, "a", "r1")
		n.deliver()
		n.stopOrder("a", 0)
		n.want("a", rikv1alpha1.InstanceTerminated)
		last := n.sent["a"].GetSequence()
		n.ack("a")
		n.manager.Changed()
		n.settle()
		if got := n.sent["a"].GetSequence(); got != last {
			t.Errorf("sent observation %d after the end was acknowledged, want none after %d", got, last)
		}
		time.Sleep(2 * time.Minute)
		n.manager.Changed()
		n.settle()
		// If the same stop is ordered again, it is confirmed again.
		n.stopOrder("a", 0)
		n.want("a", rikv1alpha1.InstanceTerminated)
		if got := n.sent["a"].GetSequence(); got == last {
			t.Error("a second order was not answered")
		}
	})
}

// Terminated is reported only when nothing is left.
func TestFault11TerminatedMeansGone(t *testing.T) {
	bubble(t, instancefake.Config{StopTakes: time.Minute}, func(_ *testing.T, n *node) {
		n.run(1, "a", "r1")
		n.deliver()
		n.stopOrder("a", 300)
		n.want("a", rikv1alpha1.InstanceDestroying)
		n.wantRunning("a")
		time.Sleep(time.Minute)
		n.settle()
		n.want("a", rikv1alpha1.InstanceTerminated)
		n.wantRunning()
	})
}

func TestStopOfAnUnknownInstanceIsConfirmedByTheManager(t *testing.T) {
	bubble(t, instancefake.Config{}, func(_ *testing.T, n *node) {
		n.stopOrder("unknown", 30)
		n.want("unknown", rikv1alpha1.InstanceTerminated)
		// The instance was ordered, but its template never arrived.
		n.run(1, "waiting", "r1")
		n.stopOrder("waiting", 30)
		n.want("waiting", rikv1alpha1.InstanceTerminated)
		n.deliver()
		n.wantRunning()
		// The order arrives after the end of the instance.
		n.run(1, "unknown", "r1")
		n.deliver()
		n.wantRunning()
	})
}

func TestLowerTermsAreRefused(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.run(5, "a", "r1")
		n.deliver()
		n.order(&schedulerv1.Order{Term: 4, Message: &schedulerv1.Order_Stop{Stop: &schedulerv1.StopOrder{Uid: "a"}}})
		n.order(&schedulerv1.Order{Term: 4, Message: &schedulerv1.Order_Allowed{Allowed: &schedulerv1.Allowed{}}})
		n.run(4, "b", "r1")
		n.wantRunning("a")
		if n.allowed != 0 {
			t.Error("an Allowed of a lower term was obeyed")
		}
		// Nor after a restart. An acknowledgement with a lower term is void.
		n.stop()
		n.boot(instancefake.Config{})
		n.run(4, "b", "r1")
		n.order(&schedulerv1.Order{Term: 5, Message: &schedulerv1.Order_Stop{Stop: &schedulerv1.StopOrder{Uid: "a"}}})
		n.want("a", rikv1alpha1.InstanceTerminated)
		n.order(&schedulerv1.Order{Term: 4, Message: &schedulerv1.Order_Ack{Ack: &schedulerv1.Ack{Uid: "a", Sequence: n.sent["a"].GetSequence()}}})
		if len(n.driver.Observations()) != 1 {
			t.Error("an acknowledgement of a lower term made the node forget")
		}
		n.wantRunning()
	})
}

func TestAllowedListIsComplete(t *testing.T) {
	bubble(t, instancefake.Config{StopTakes: time.Hour}, func(t *testing.T, n *node) {
		for _, uid := range []string{"kept", "lost", "ended"} {
			n.run(1, uid, "r1")
			n.deliver()
		}
		n.driver.Exit("ended", 0)
		n.settle()
		n.want("ended", rikv1alpha1.InstanceCompleted)
		over := runOf("ended", "r1")
		over.Ended = true
		unknown := runOf("unknown", "r1")
		unknown.Ended = true
		n.order(&schedulerv1.Order{Term: 1, Message: &schedulerv1.Order_Allowed{Allowed: &schedulerv1.Allowed{
			Instances: []*schedulerv1.Run{runOf("kept", "r1"), runOf("new", "r1"), over, unknown}, Gone: []string{"lost"},
		}}})
		n.want("lost", rikv1alpha1.InstanceDestroying)
		time.Sleep(10 * time.Second)
		n.settle()
		n.want("lost", rikv1alpha1.InstanceTerminated)
		n.want("ended", rikv1alpha1.InstanceCompleted)
		n.wantRunning("kept", "new")
		if n.host.Starts("kept") != 1 || n.host.Starts("ended") != 1 || n.sent["unknown"] != nil || n.allowed != 1 {
			t.Errorf("starts %d and %d, unknown %v, allowed %d", n.host.Starts("kept"), n.host.Starts("ended"), n.sent["unknown"], n.allowed)
		}
	})
}

// The riklet restarts while both peers are down. All instances keep running, and a repeated order
// needs no controller.
func TestFault07RestartKeepsInstances(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.run(1, "a", "r1")
		n.deliver()
		before := n.sent["a"].GetSequence()
		n.stop()
		n.wantRunning("a")

		n.boot(instancefake.Config{})
		n.settle()
		n.want("a", rikv1alpha1.InstanceRunning)
		if after := n.sent["a"].GetSequence(); after <= before {
			t.Errorf("sequence %d after the restart, %d before", after, before)
		}
		n.allow(runOf("a", "r1"), runOf("b", "r1"))
		n.wantRunning("a", "b")
		if asked := n.objects.PendingRequests(); len(asked) != 0 || n.host.Starts("a") != 1 {
			t.Errorf("asked for %v, started %d times, want nothing and once", asked, n.host.Starts("a"))
		}
		if diff := cmp.Diff([]string{"a", "b"}, n.manager.List()); diff != "" {
			t.Errorf("List() (-want +got):\n%s", diff)
		}
	})
}

// An instance that cannot be created yet delays no other.
func TestFault19OneInstanceDoesNotBlockAnother(t *testing.T) {
	slow := func(ctx context.Context, in instance.Instance) error {
		if in.UID != "slow" {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
	bubble(t, instancefake.Config{Start: slow}, func(_ *testing.T, n *node) {
		n.run(1, "slow", "r1")
		n.run(1, "absent", "gone")
		n.run(1, "quick", "r1")
		n.deliver()
		n.want("quick", rikv1alpha1.InstanceRunning)
		n.want("slow", rikv1alpha1.InstanceCreating)
		n.want("absent", rikv1alpha1.InstanceCreating)
		n.stopOrder("slow", 0)
		n.want("slow", rikv1alpha1.InstanceTerminated)
	})
}

func TestFailedStartReportsItsReason(t *testing.T) {
	refuse := func(instance.Instance) error { return errors.New("volume v: no such source") }
	tests := map[string]struct {
		refuse                 func(instance.Instance) error
		revision, reason, says string
		phase                  rikv1alpha1.InstancePhase
	}{
		"kind without a driver": {nil, "function", "KindUnsupported", "kind Function", rikv1alpha1.InstanceFailed},
		"refused by the driver": {refuse, "r1", "StartRefused", "no such source", rikv1alpha1.InstanceFailed},
		"no such revision":      {nil, "gone", "RevisionUnavailable", "shop/gone", rikv1alpha1.InstanceCreating},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, instancefake.Config{Refuse: tc.refuse}, func(t *testing.T, n *node) {
				n.run(1, "a", tc.revision)
				n.deliver()
				n.want("a", tc.phase)
				if o := n.sent["a"]; o.GetReason() != tc.reason || !strings.Contains(o.GetMessage(), tc.says) {
					t.Errorf("sent %q: %q, want %s with %q", o.GetReason(), o.GetMessage(), tc.reason, tc.says)
				}
				// The status is sent once, however often the manager checks.
				said := n.sent["a"].GetSequence()
				n.manager.Changed()
				n.settle()
				if n.sent["a"].GetSequence() != said {
					t.Error("the same status was sent again")
				}
				n.stopOrder("a", 0)
				n.want("a", rikv1alpha1.InstanceTerminated)
				n.ack("a")
			})
		})
	}
}

func TestAbsentRevisionIsTriedAgain(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.run(1, "a", "gone")
		asked := 0
		for range 4 {
			asked += len(n.objects.PendingRequests())
			n.objects.Deliver(&nodev1.Object{Kind: nodev1.Kind_KIND_REVISION, Namespace: "shop", Name: "gone"})
			time.Sleep(time.Minute)
			n.settle()
		}
		if asked != 4 {
			t.Errorf("asked %d times in four minutes of refusals answered at once, want 4", asked)
		}
	})
}

func TestFencedInstancesStopWithoutContact(t *testing.T) {
	admitted := &schedulerv1.Order{Message: &schedulerv1.Order_Admitted{Admitted: &schedulerv1.Admitted{TimeoutMillis: 20_000}}}
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.order(admitted)
		n.manager.Contact(true)
		n.run(1, "fenced", "fenced")
		n.run(1, "plain", "r1")
		n.deliver()
		// A short loss of the connection has no effect.
		n.manager.Contact(false)
		time.Sleep(19 * time.Second)
		n.manager.Contact(true)
		time.Sleep(time.Hour)
		n.settle()
		n.wantRunning("fenced", "plain")
		// If a restart interrupts a loss, the time starts again at the restart.
		n.manager.Contact(false)
		n.settle()
		n.stop()
		n.boot(instancefake.Config{})
		time.Sleep(19 * time.Second)
		n.settle()
		n.wantRunning("fenced", "plain")
		time.Sleep(2 * time.Second)
		n.settle()
		n.wantRunning("plain")
		n.want("fenced", rikv1alpha1.InstanceTerminated)
	})
}

// An instance that was ordered before the loss of the connection, and that could not start until
// then, starts only when it is allowed again.
func TestDisconnectedNodeStartsNoFencedInstance(t *testing.T) {
	bubble(t, instancefake.Config{}, func(_ *testing.T, n *node) {
		n.order(&schedulerv1.Order{Message: &schedulerv1.Order_Admitted{Admitted: &schedulerv1.Admitted{TimeoutMillis: 20_000}}})
		n.manager.Contact(true)
		n.run(1, "a", "fenced")
		n.manager.Contact(false)
		time.Sleep(time.Minute)
		n.settle()
		n.deliver()
		n.manager.Contact(true)
		n.settle()
		n.wantRunning()
		n.allow(runOf("a", "fenced"))
		n.wantRunning("a")
	})
}

func TestTemplatesAreSweptWhenUnused(t *testing.T) {
	bubble(t, instancefake.Config{}, func(t *testing.T, n *node) {
		n.allow()
		for i := range 3 {
			n.run(1, fmt.Sprint(i), fmt.Sprintf("r%d", i))
			n.deliver()
		}
		n.stopOrder("0", 0)
		n.ack("0")
		time.Sleep(sweepInterval + time.Second)
		n.settle()
		kept, err := filepath.Glob(filepath.Join(n.dir, "revisions", "*"))
		if err != nil || len(kept) != 2 {
			t.Errorf("%d templates are kept, %v, want those of the two that run", len(kept), err)
		}
	})
}
