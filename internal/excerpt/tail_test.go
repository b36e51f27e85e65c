package excerpt

import (
	"io"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func TestTail(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		writes []string
		want   string
	}{
		{"nothing", nil, ""},
		{"short", []string{"a", "b"}, "ab"},
		{"exactly", []string{"abcd", "efgh"}, "abcdefgh"},
		{"long", []string{"abcd", "efghij"}, "cdefghij"},
		{"one long write", []string{"abcdefghij"}, "cdefghij"},
		{"space", []string{"  a\n", "b \n\n"}, "a\nb"},
		{"cut within a character", []string{"äaaaaaaa"}, "?aaaaaaa"},
		{"invalid", []string{"a\xffb"}, "a?b"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tail := NewTail(8)
			for _, text := range tc.writes {
				if n, err := io.WriteString(tail, text); n != len(text) || err != nil {
					t.Errorf("Write(%q) = %d, %v, want %d", text, n, err, len(text))
				}
			}
			if got := tail.String(); got != tc.want {
				t.Errorf("String() = %q, want %q", got, tc.want)
			}
		})
	}
}

// The end does not depend on how the output is divided into writes.
func TestTailProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		whole, pieces, all := NewTail(limit), NewTail(limit), ""
		for _, text := range rapid.SliceOf(rapid.StringN(0, 30, -1)).Draw(t, "writes") {
			_, _ = io.WriteString(pieces, text)
			all += text
		}
		_, _ = io.WriteString(whole, all)
		if got, want := pieces.String(), whole.String(); got != want {
			t.Fatalf("String() = %q, want %q as after one write", got, want)
		}
	})
}

func TestTailIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	tail := NewTail(4)
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 100 {
				_, _ = io.WriteString(tail, "aa")
				_ = tail.String()
			}
		})
	}
	writers.Wait()
	if got := tail.String(); got != "aaaa" {
		t.Errorf("String() = %q, want the last four bytes", got)
	}
}
