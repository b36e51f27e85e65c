package placement

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPreempt(t *testing.T) {
	t.Parallel()
	type on struct {
		uid, node string
		milli     int64
		priority  int32
		created   int64
	}
	tests := map[string]struct {
		placed []on
		want   Preemption
	}{
		"nothing lower": {
			placed: []on{{"x", "a", 4000, 10, 1}, {"y", "b", 4000, 11, 1}},
		},
		"lowest priority first": {
			placed: []on{{"x", "a", 4000, 5, 1}, {"y1", "b", 2000, 1, 1}, {"y2", "b", 2000, 1, 1}},
			want:   Preemption{Node: "b", Victims: []string{"y1", "y2"}},
		},
		"then fewest": {
			placed: []on{{"x1", "a", 2000, 1, 1}, {"x2", "a", 2000, 1, 1}, {"y", "b", 4000, 1, 1}},
			want:   Preemption{Node: "b", Victims: []string{"y"}},
		},
		"then youngest": {
			placed: []on{{"x", "a", 4000, 1, 5}, {"y", "b", 4000, 1, 9}},
			want:   Preemption{Node: "b", Victims: []string{"y"}},
		},
		"no more than needed": {
			placed: []on{{"x1", "a", 1000, 1, 1}, {"x2", "a", 3000, 2, 1}, {"y", "b", 4000, 10, 1}},
			want:   Preemption{Node: "a", Victims: []string{"x2"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := cluster(testNode("a"), testNode("b"))
			for _, o := range tc.placed {
				s.Put(Occupant{
					UID: o.uid, Shape: testShape(t, o.uid, o.milli, priority(o.priority)), Node: o.node, CreatedUnixNano: o.created,
				})
			}
			got, ok := Preempt(s, Request{UID: "new", Shape: testShape(t, "new", 3000, priority(10))})
			if ok != (tc.want.Node != "") {
				t.Fatalf("Preempt() ok = %v, want %v", ok, !ok)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Preempt() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPreemptForAHostPort(t *testing.T) {
	t.Parallel()
	s := cluster(testNode("a"))
	s.Put(Occupant{UID: "holder", Shape: testShape(t, "holder", 100, hostPort(80)), Node: "a"})
	s.Put(Occupant{UID: "innocent", Shape: testShape(t, "innocent", 100), Node: "a"})
	got, ok := Preempt(s, Request{Shape: testShape(t, "new", 100, hostPort(80), priority(1))})
	if diff := cmp.Diff(Preemption{Node: "a", Victims: []string{"holder"}}, got); !ok || diff != "" {
		t.Errorf("Preempt() (-want +got):\n%s", diff)
	}
}
