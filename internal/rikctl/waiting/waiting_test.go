package waiting_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/waiting"
)

func TestState(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tc := range map[string]struct {
		state waiting.State
		want  string
	}{
		"count":         {waiting.State{Done: 3, Total: 5, What: "instances moved"}, "3 of 5 instances moved"},
		"count and one": {waiting.State{Done: 3, Total: 5, What: "instances moved", For: "web-abc: Terminating", Since: now.Add(-12*time.Second - time.Millisecond)}, "3 of 5 instances moved, waiting for web-abc: Terminating for 12s"},
		"no count":      {waiting.State{What: "1 of 2 instances are ready"}, "1 of 2 instances are ready"},
		"less than 1s":  {waiting.State{For: "x", Since: now.Add(-999 * time.Millisecond)}, "waiting for x"},
		"minutes":       {waiting.State{For: "x", Since: now.Add(-90 * time.Second)}, "waiting for x for 1m30s"},
		"hostile":       {waiting.State{For: "a\x1b[2J\nb"}, "waiting for a^[[2J b"},
		"nothing":       {waiting.State{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tc.state.At(now); got != tc.want {
				t.Errorf("%+v.At(now) = %q, want %q", tc.state, got, tc.want)
			}
		})
	}
}

func TestDeletion(t *testing.T) {
	t.Parallel()
	w := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Finalizers: []string{"rik.dev/instances", "x.org/y"}}}
	want := "waiting for workload default/web: Terminating (finalizers: rik.dev/instances, x.org/y)"
	if got := waiting.Deletion("workload", w).Text(); got != want {
		t.Errorf("Deletion() = %q, want %q", got, want)
	}
}

// show runs a wait and returns the lines that a file would get.
func show(t *testing.T, o waiting.Options, wait func(*waiting.Line)) []string {
	t.Helper()
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		line := waiting.Begin(t.Context(), &out, o)
		time.Sleep(time.Millisecond) // the decisions are then between those of the test
		wait(line)
		line.End()
		line.Set(waiting.State{What: "after the end"})
	})
	return strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\n' })
}

func TestLines(t *testing.T) {
	t.Parallel()
	moved := func(n int) waiting.State {
		return waiting.State{Done: n, Total: 5, What: "instances moved", For: "web"}
	}
	for name, tc := range map[string]struct {
		options waiting.Options
		wait    func(*waiting.Line)
		want    []string
	}{
		"the first at once, and none again soon": {wait: func(l *waiting.Line) {
			l.Set(moved(1))
			l.Set(moved(1))
			time.Sleep(9 * time.Second)
			l.Set(moved(1))
		}, want: []string{"1 of 5 instances moved, waiting for web"}},
		"a reminder": {wait: func(l *waiting.Line) {
			l.Set(moved(1))
			time.Sleep(21 * time.Second)
		}, want: []string{"1 of 5 instances moved, waiting for web", "1 of 5 instances moved, waiting for web for 10s", "1 of 5 instances moved, waiting for web for 20s"}},
		"the newest of many changes": {wait: func(l *waiting.Line) {
			for n := range 5 {
				l.Set(moved(n))
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(time.Second)
		}, want: []string{"0 of 5 instances moved, waiting for web", "4 of 5 instances moved, waiting for web for 1s"}},
		"a short wait shows nothing": {options: waiting.Options{After: waiting.After}, wait: func(l *waiting.Line) {
			l.Set(moved(1))
			time.Sleep(900 * time.Millisecond)
		}},
		"a longer wait shows it without another change": {options: waiting.Options{After: waiting.After}, wait: func(l *waiting.Line) {
			l.Set(moved(1))
			time.Sleep(1300 * time.Millisecond)
		}, want: []string{"1 of 5 instances moved, waiting for web"}},
		"quiet": {options: waiting.Options{Quiet: true}, wait: func(l *waiting.Line) {
			l.Set(moved(1))
			time.Sleep(time.Minute)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, show(t, tc.options, tc.wait), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEndOfContextEndsTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		line := waiting.Begin(ctx, &out, waiting.Options{After: waiting.After})
		line.Set(waiting.State{What: "work"})
		cancel()
		synctest.Wait()
		if line.Shows() {
			t.Error("the line shows its state after its context has ended")
		}
		time.Sleep(time.Minute)
		line.End()
		if out.Len() > 0 {
			t.Errorf("it printed %q after its context had ended", out.String())
		}
	})
}
