package fence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/controller/index"
)

// uid is that of the Cluster upstream to which the namespace "team" belongs.
const uid = "east-1"

var web = types.NamespacedName{Namespace: "team", Name: "web"}

// fixture is a reconciler with a clock and a Lease that the test controls.
type fixture struct {
	*testing.T
	*Reconciler
	client    client.Client
	workloads *index.Objects[*rikv1alpha1.Workload]
	now       time.Time
	changed   []types.NamespacedName
	reads     int   // of namespaces
	getErr    error // of every read
	patchErr  error // of every write
}

func newFixture(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), rikv1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	w := &fixture{T: t, now: time.Unix(1700000000, 0), workloads: index.NewObjects[*rikv1alpha1.Workload]()}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(objects, namespace("team", `{"clusterUID":"`+uid+`"}`), lease())...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, ok := o.(*corev1.Namespace); ok {
				w.reads++
			}
			if w.getErr != nil {
				return w.getErr
			}
			return c.Get(ctx, key, o, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if w.patchErr != nil {
				return w.patchErr
			}
			return c.Patch(ctx, o, patch, options...)
		},
	}).Build()
	names := 0
	w.Reconciler = New(Config{
		Client: w.client, Workloads: w.workloads, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return w.now },
		Changed: func(key types.NamespacedName) { w.changed = append(w.changed, key) },
		Name:    func() string { names++; return fmt.Sprint(names) },
	})
	return w
}

func namespace(name, locator string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{workloadv1alpha1.LocatorAnnotation: locator}}}
}

func lease() *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: workloadv1alpha1.FenceNamespace, Name: workloadv1alpha1.FenceLeaseName(uid)}}
}

// fenced returns a workload with a fence, and adds it to the view.
func (w *fixture) fenced(after string) *rikv1alpha1.Workload {
	o := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: web.Namespace, Name: web.Name, ResourceVersion: "1", UID: "w",
		Annotations: map[string]string{workloadv1alpha1.FenceAfterAnnotation: after}}}
	w.workloads.Observe(o)
	return o
}

// stored returns the Lease as it is stored.
func (w *fixture) stored() *coordinationv1.Lease {
	w.Helper()
	l := lease()
	if err := w.client.Get(w.Context(), client.ObjectKeyFromObject(l), l); err != nil {
		w.Fatal(err)
	}
	return l
}

// pass observes the stored Lease, reconciles once, and returns the challenge and the time until
// the next pass.
func (w *fixture) pass() (challenge string, again time.Duration) {
	w.Helper()
	w.Observe(w.stored())
	w.changed = nil
	again, err := w.reconcile(w.Context(), uid)
	if err != nil {
		w.Fatal(err)
	}
	return w.stored().Annotations[workloadv1alpha1.FenceChallengeAnnotation], again
}

// answer writes a challenge back, as the syncer does.
func (w *fixture) answer(challenge string) {
	w.Helper()
	l := w.stored()
	l.Annotations[workloadv1alpha1.FenceAnswerAnnotation] = challenge
	if err := w.client.Update(w.Context(), l); err != nil {
		w.Fatal(err)
	}
}

func (w *fixture) want(o *rikv1alpha1.Workload, fenced bool, message string) {
	w.Helper()
	got, err := w.Evaluate(w.Context(), o)
	if err != nil || (got != "") != fenced || !strings.Contains(got, message) {
		w.Errorf("at %s Evaluate() = %q, %v, want %v, %q", w.now.UTC().Format(time.TimeOnly), got, err, fenced, message)
	}
}

func TestAFenceOpensWithAnAnswerAndCloses(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	o := w.fenced("10s")
	w.want(o, true, "has not answered yet")
	first, _ := w.pass()
	if first == "" {
		t.Fatal("there is no challenge on a new lease")
	}
	if again, _ := w.pass(); again != first {
		t.Errorf("the challenge %q replaces %q, which nobody has answered", again, first)
	}
	w.answer(first)
	w.now = w.now.Add(time.Second)
	second, again := w.pass()
	if second == first || !slices.Equal(w.changed, []types.NamespacedName{web}) {
		t.Errorf("after the answer the challenge is %q, and %v changed", second, w.changed)
	}
	if again != 4*time.Second {
		t.Errorf("the next pass is in %s, want in 4s, which is half of the fence after the challenge", again)
	}
	w.want(o, false, "")
	if _, _ = w.pass(); len(w.changed) > 0 {
		t.Errorf("a second pass reports %v", w.changed)
	}
	w.now = w.now.Add(again)
	w.pass()
	if !slices.Equal(w.changed, []types.NamespacedName{web}) {
		t.Errorf("when the fence closes %v changed", w.changed)
	}
	w.want(o, true, "since 2023-11-14T22:13:20Z")
	// The second challenge was set a second after the first one.
	w.answer(second)
	w.pass()
	w.want(o, false, "")
	w.now = w.now.Add(time.Second)
	w.want(o, true, "since 2023-11-14T22:13:21Z")
}

// TestALateAnswerProvesTheTimeOfItsChallenge checks that the delay of an answer makes the proof
// older.
func TestALateAnswerProvesTheTimeOfItsChallenge(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	o := w.fenced("10s")
	challenge, _ := w.pass()
	w.now = w.now.Add(8 * time.Second)
	w.answer(challenge)
	w.pass()
	w.want(o, true, "since")
	if age, proven, fenced, err := w.Age(t.Context(), "team"); err != nil || age != 8*time.Second || !proven || !fenced {
		t.Errorf("Age() = %s, %v, %v, %v, want 8s", age, proven, fenced, err)
	}
	// The answer to a challenge that another process set, in the future by this clock.
	w.answer(w.now.Add(time.Hour).UTC().Format(time.RFC3339Nano) + " forged")
	w.pass()
	w.want(o, true, "since")
}

func TestALeaseThatIsDeletedKeepsItsProof(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	o := w.fenced("1m")
	challenge, _ := w.pass()
	w.answer(challenge)
	w.pass()
	gone := w.stored()
	if err := w.client.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	gone.Annotations[workloadv1alpha1.FenceAnswerAnnotation] = gone.Annotations[workloadv1alpha1.FenceChallengeAnnotation]
	w.Remove(gone) // a new challenge would be due
	w.patchErr = errors.New("a challenge without a lease")
	if _, err := w.reconcile(t.Context(), uid); err != nil {
		t.Error(err)
	}
	w.want(o, false, "")
	w.now = w.now.Add(time.Minute)
	w.want(o, true, "since")
}

func TestAChallengeThatIsNotWrittenIsWrittenLater(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.Observe(w.stored())
	w.patchErr = errors.New("the server is busy")
	if _, err := w.reconcile(t.Context(), uid); !errors.Is(err, w.patchErr) {
		t.Errorf("reconcile() = %v, want %v", err, w.patchErr)
	}
	w.patchErr = nil
	if _, err := w.reconcile(t.Context(), uid); err != nil || w.stored().Annotations[workloadv1alpha1.FenceChallengeAnnotation] == "" {
		t.Errorf("after the failure there is no challenge, %v", err)
	}
}

func TestOnlyWorkloadsOfAKCPAreFenced(t *testing.T) {
	t.Parallel()
	w := newFixture(t, namespace("own", ""), namespace("odd", "no locator"))
	free := w.fenced("10s")
	free.Annotations = nil
	w.want(free, false, "")
	if w.reads > 0 {
		t.Error("a workload without a fence costs a read")
	}
	for _, name := range []string{"own", "odd", "deleted"} {
		o := free.DeepCopy()
		o.Namespace, o.Annotations = name, map[string]string{workloadv1alpha1.FenceAfterAnnotation: "10s"}
		w.want(o, false, "")
		w.want(o, false, "")
		if _, _, fenced, err := w.Age(t.Context(), name); fenced || err != nil {
			t.Errorf("Age(%s) = fenced %v, %v", name, fenced, err)
		}
	}
	if w.reads != 3 {
		t.Errorf("%d reads of 3 namespaces", w.reads)
	}
	// A namespace can be adopted later, and then stays.
	adopted := namespace("own", `{"clusterUID":"`+uid+`"}`)
	if err := w.client.Update(t.Context(), adopted); err != nil {
		t.Fatal(err)
	}
	o := free.DeepCopy()
	o.Namespace, o.Annotations = "own", map[string]string{workloadv1alpha1.FenceAfterAnnotation: "10s"}
	w.want(o, false, "")
	w.now = w.now.Add(askAgain)
	w.want(o, true, "has not answered yet")
	w.getErr = errors.New("the server is away")
	w.now = w.now.Add(askAgain)
	w.want(o, true, "has not answered yet")
	o.Namespace = "other"
	if _, err := w.Evaluate(t.Context(), o); !errors.Is(err, w.getErr) {
		t.Errorf("Evaluate() = %v, want %v: it is not known whether the workload is fenced", err, w.getErr)
	}
}

func TestWorkloadsWithoutAFenceAreForgotten(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	o := w.fenced("10s")
	challenge, _ := w.pass()
	w.want(o, true, "")
	o = o.DeepCopy()
	o.ResourceVersion, o.Annotations = "2", nil
	w.workloads.Observe(o)
	w.answer(challenge)
	if _, again := w.pass(); len(w.changed) > 0 || again != 0 || len(w.sites[uid].members) != 0 {
		t.Errorf("changed %v, the next pass in %s, members %v, want none", w.changed, again, w.sites[uid].members)
	}
}

func TestOtherLeasesAreIgnored(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	elsewhere, other, nobody := lease(), lease(), lease()
	elsewhere.Namespace, other.Name, nobody.Name = "team", "leader", workloadv1alpha1.FenceLeaseName("")
	for _, l := range []*coordinationv1.Lease{elsewhere, other, nobody} {
		w.Observe(l)
	}
	if len(w.sites) > 0 {
		t.Errorf("sites of other leases: %v", w.sites)
	}
}

// TestAskReadsTheTimeOnTheLease checks the answer of a controller that is not active.
func TestAskReadsTheTimeOnTheLease(t *testing.T) {
	t.Parallel()
	w := newFixture(t, namespace("own", ""))
	if _, proven, fenced, err := Ask(t.Context(), w.client, "team", w.now); proven || !fenced || err != nil {
		t.Errorf("Ask() without an answer = %v, %v, %v", proven, fenced, err)
	}
	challenge, _ := w.pass()
	w.answer(challenge)
	if age, proven, fenced, err := Ask(t.Context(), w.client, "team", w.now.Add(7*time.Second)); age != 7*time.Second || !proven || !fenced || err != nil {
		t.Errorf("Ask() = %s, %v, %v, %v, want 7s", age, proven, fenced, err)
	}
	if _, _, fenced, err := Ask(t.Context(), w.client, "own", w.now); fenced || err != nil {
		t.Errorf("Ask() of a namespace of the cluster's own = %v, %v", fenced, err)
	}
	w.getErr = errors.New("the server is away")
	if _, _, _, err := Ask(t.Context(), w.client, "team", w.now); !errors.Is(err, w.getErr) {
		t.Errorf("Ask() = %v, want %v", err, w.getErr)
	}
}
