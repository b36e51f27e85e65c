package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestStream runs a stream with a simulated clock over two addresses. First one of them does not
// answer for a time, and then neither does.
func TestStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const interval, avoid = 10 * time.Millisecond, 200 * time.Millisecond
		var down sync.Map
		s := newStream([]string{"a", "b"}, func(_ context.Context, url string) error {
			if _, is := down.Load(url); is {
				return errors.New("no answer")
			}
			return nil
		}, avoid)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); s.run(ctx, interval, nil) }()
		// after returns the results after a time.
		after := func(length time.Duration) count {
			time.Sleep(length)
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			c := s.count
			c.by = maps.Clone(c.by)
			return c
		}

		if c := after(time.Second); c.total != 100 || c.by["a"] != 50 || c.by["b"] != 50 || c.failures+c.elsewhere != 0 {
			t.Errorf("with both: %+v", c)
		}
		down.Store("a", true)
		// The stream avoids a for 200 ms after each try, so it tries a five times in a second.
		if c := after(time.Second); c.total != 200 || c.by["b"] != 150 || c.elsewhere != 5 || c.failures != 0 {
			t.Errorf("without a: %+v", c)
		}
		down.Store("b", true)
		after(300 * time.Millisecond)
		down.Clear()
		after(time.Second)
		cancel()
		<-ended
		if c := after(0); c.total != 330 || c.failures != 30 || c.gap != 310*time.Millisecond || len(c.reported) != shownFailures {
			t.Errorf("without both for a time: %+v", c)
		}
		var out strings.Builder
		s.report(&out)
		for _, want := range []string{"requests  330\n", "failures  30\n", "gap       310ms ", "failed    ", ": no answer\n"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the report does not say %q:\n%s", want, &out)
			}
		}
	})
}

func TestOrder(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := newStream([]string{"a", "b", "c"}, nil, time.Second)
	s.bad["b"] = now.Add(time.Second)
	s.bad["c"] = now.Add(-time.Second)
	for turn, want := range [][]string{{"a", "c", "b"}, {"c", "a", "b"}, {"c", "a", "b"}, {"a", "c", "b"}} {
		if got := s.order(turn, now); !slices.Equal(got, want) {
			t.Errorf("order(%d) = %v, want %v", turn, got, want)
		}
	}
}

// TestAGapThatIsNotOverCounts tests that the time without answers at the end of a stream is a gap.
func TestAGapThatIsNotOverCounts(t *testing.T) {
	t.Parallel()
	begin := time.Unix(0, 0)
	c := count{by: map[string]int{}}
	c.answered("a", false, begin)
	c.failed(errors.New("no answer"), begin.Add(time.Second))
	var out strings.Builder
	c.print(&out, []string{"a"}, begin.Add(3*time.Second))
	if !strings.Contains(out.String(), "gap       3s ") {
		t.Errorf("the report does not tell the gap:\n%s", &out)
	}
}
