package progress

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestProgressText(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]Progress{
		"pulling a:v1: waiting for the registry":       {What: "pulling a:v1", From: "the registry"},
		"pulling a:v1: 1.5 MiB of 20.0 MiB":            {What: "pulling a:v1", Bytes: 3 << 19, Total: 20 << 20, Idle: time.Second, Stall: time.Minute},
		"pulling a:v1: 1.5 MiB":                        {What: "pulling a:v1", From: "the registry", Bytes: 3 << 19},
		"pulling a:v1: reading the archive":            {What: "pulling a:v1", Step: "reading the archive"},
		"making a disk: writing: 0.0 MiB of 1.0 MiB":   {What: "making a disk", Step: "writing", Total: 1 << 20, Idle: time.Hour},
		"downloading u: 1.0 MiB; it broke off: a; b":   {What: "downloading u", Bytes: 1 << 20, Trouble: "it broke off: a; b"},
		"downloading u: waiting for the server; again": {What: "downloading u", From: "the server", Trouble: "again"},
		"pulling a:v1: 0.0 MiB of 20.0 MiB; no data for 12s (limit 1m30s)": {
			What: "pulling a:v1", Total: 20 << 20, Idle: 12*time.Second + time.Millisecond, Stall: 90 * time.Second,
		},
	} {
		if got := p.String(); got != want {
			t.Errorf("String() = %q, want %q", got, want)
		}
	}
}

// TestWatch checks that short work is not reported, that long work is reported repeatedly, and that
// shared work reports its own progress.
func TestWatch(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		do   func(ctx context.Context)
		want []string
	}{
		"short": {func(ctx context.Context) { Of(ctx).Begin(Progress{What: "pulling"}) }, nil},
		"long": {func(ctx context.Context) {
			w := Of(ctx)
			w.Begin(Progress{What: "pulling", From: "the registry", Stall: 90 * time.Second})
			time.Sleep(4 * time.Second) // in the bubble
			w.Set(1<<20, 4<<20)
			time.Sleep(20 * time.Second)
		}, []string{"pulling: waiting for the registry", "pulling: 1.0 MiB of 4.0 MiB", "pulling: 1.0 MiB of 4.0 MiB; no data for 19s (limit 1m30s)"}},
		"silent": {func(context.Context) { time.Sleep(20 * time.Second) }, nil},
		"in steps": {func(ctx context.Context) {
			w := Of(ctx)
			w.Begin(Progress{What: "pulling", From: "the registry", Stall: time.Second})
			w.Step("writing", 2<<20, func() int64 { return 1 << 20 })
			time.Sleep(4 * time.Second)
		}, []string{"pulling: writing: 1.0 MiB of 2.0 MiB"}},
		"of another": {func(ctx context.Context) {
			other := &Work{}
			other.Begin(Progress{What: "downloading"})
			Of(ctx).Begin(Progress{What: "waiting"})
			Of(ctx).Follow(other)
			time.Sleep(4 * time.Second)
			other.Add(1 << 20)
			time.Sleep(10 * time.Second)
		}, []string{"downloading", "downloading: 1.0 MiB"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var got []string
				err := Watch(t.Context(), func(p Progress) { got = append(got, p.String()) }, func(ctx context.Context) error { tc.do(ctx); return nil })
				if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
					t.Errorf("Watch = %v; reports (-want +got):\n%s", err, diff)
				}
			})
		})
	}
}

// A context without a Work reports no progress.
func TestNoWork(t *testing.T) {
	t.Parallel()
	w := Of(t.Context())
	w.Begin(Progress{What: "pulling"})
	w.Step("writing", 1, nil)
	w.Add(1)
	w.Set(1, 1)
	w.Trouble("x")
	w.Follow(&Work{})
	if p := w.Progress(); p != (Progress{}) {
		t.Errorf("Progress() = %+v", p)
	}
	called := false
	if err := Watch(t.Context(), nil, func(context.Context) error { called = true; return nil }); err != nil || !called {
		t.Errorf("Watch without a report = %v, called: %v", err, called)
	}
}
