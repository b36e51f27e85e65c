package waiting

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWrap(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text  string
		width int
		want  []string
	}{
		"nothing":       {"", 10, []string{""}},
		"fits":          {"one two", 7, []string{"one two"}},
		"two rows":      {"one two", 6, []string{"one", "two"}},
		"a long word":   {"a longer word", 5, []string{"a", "long…", "word"}},
		"wide letters":  {"你好 你好", 8, []string{"你好", "你好"}},
		"too long":      {"one two three four five six", 6, []string{"one", "two", "three…"}},
		"one too short": {"one two three", 13, []string{"one two three"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, wrap(tc.text, tc.width)); diff != "" {
				t.Errorf("wrap(%q, %d) (-want +got):\n%s", tc.text, tc.width, diff)
			}
		})
	}
}
