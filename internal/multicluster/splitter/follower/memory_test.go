package follower

import (
	"slices"
	"testing"
	"time"

	"rik.dev/rik/internal/multicluster/splitter/key"
)

// TestAwaited tests that a follower which was sent before its leaf stays until the leaf is in the
// cache, or until a timeout. After that, the memory is empty.
func TestAwaited(t *testing.T) {
	t.Parallel()
	k := key.Follower{Kind: "Secret", Namespace: "default", Name: "token"}
	start := time.Now()
	for name, tc := range map[string]struct {
		later time.Duration
		seen  []string
		gone  bool
		want  []string
		again time.Duration
	}{
		"at once":       {want: []string{"east", "west"}, again: aheadFor},
		"later":         {later: aheadFor - time.Second, want: []string{"east", "west"}, again: time.Second},
		"one is seen":   {seen: []string{"north", "east"}, want: []string{"west"}, again: aheadFor},
		"all are seen":  {seen: []string{"west", "east"}},
		"none ever":     {later: aheadFor},
		"it is no more": {gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMemory()
			m.await(k, "east", start)
			m.await(k, "west", start)
			if tc.gone {
				m.gone(k)
			}
			got, again := m.awaited(k, tc.seen, start.Add(tc.later))
			slices.Sort(got)
			if !slices.Equal(got, tc.want) || again != tc.again {
				t.Errorf("awaited = %q, again in %v, want %q, %v", got, again, tc.want, tc.again)
			}
			if len(tc.want) == 0 && len(m.ahead) > 0 {
				t.Errorf("remembered: %v", m.ahead)
			}
		})
	}
}
