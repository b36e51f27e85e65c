package proxy

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDrainsEnd(t *testing.T) {
	t.Parallel()
	s := basic()
	expose(s, "dns", "10.63.0.1", port(30053, 53, udp, onNodes))
	set := func(uid string, ready, draining bool) {
		end(s, "dns", uid, "a", "10.62.1.2", ready)
		e := s.Endpoints[key("dns")][uid]
		e.Draining = draining
		s.Endpoints[key("dns")][uid] = e
	}
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const period = 3 * time.Second
	d := drains{}
	for i, step := range []struct {
		at      time.Duration
		change  func()
		drained string
		next    time.Duration // -1: none
	}{
		{0, func() { set("a", true, false); set("b", false, false) }, "", -1},
		{time.Second, func() { set("a", false, true) }, "", 4 * time.Second},
		{2 * time.Second, func() { set("c", false, true) }, "", 4 * time.Second},
		{4 * time.Second, nil, "a", 5 * time.Second},
		{6 * time.Second, nil, "a c", -1},
		{7 * time.Second, func() { delete(s.Endpoints[key("dns")], "a") }, "c", -1},
		{8 * time.Second, func() { set("a", false, true) }, "c", 11 * time.Second}, // another of that name
	} {
		if step.change != nil {
			step.change()
		}
		drained, next := d.over(s, start.Add(step.at), period)
		got := strings.Join(slices.Sorted(maps.Keys(drained)), " ")
		want := time.Time{}
		if step.next >= 0 {
			want = start.Add(step.next)
		}
		if got != step.drained || !next.Equal(want) {
			t.Errorf("step %d: drained %q, next %v; want %q, %v", i, got, next, step.drained, want)
		}
	}
	if drained, next := d.over(nil, start, period); len(drained) != 0 || !next.IsZero() || len(d) != 0 {
		t.Errorf("without a table: %v, %v, %v", drained, next, d)
	}
}
