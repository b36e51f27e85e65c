package excerpt

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestOf(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		limit      int
		want       string
	}{
		{"short", "text", 10, "text"},
		{"exactly", "text", 4, "text"},
		{"long", "text", 3, "tex..."},
		{"nothing", "text", 0, "..."},
		{"empty", "", 0, ""},
		{"at a character", "äöü", 4, "äö..."},
		{"within a character", "äöü", 3, "ä..."},
		{"within the first character", "€", 2, "..."},
		{"invalid and short", "a\xffb", 3, "a\xffb"},
		{"invalid and long", "a\xffbc", 3, "ab..."},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := Of(tc.text, tc.limit); got != tc.want {
				t.Errorf("Of(%q, %d) = %q, want %q", tc.text, tc.limit, got, tc.want)
			}
		})
	}
}

func TestPrefix(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		limit      int
		want       string
	}{
		{"short", "text", 10, "text"},
		{"long", "text", 3, "tex"},
		{"negative", "text", -1, ""},
		{"within a character", "äöü", 3, "ä"},
		{"invalid and short", "a\xffb", 10, "ab"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := Prefix(tc.text, tc.limit); got != tc.want {
				t.Errorf("Prefix(%q, %d) = %q, want %q", tc.text, tc.limit, got, tc.want)
			}
		})
	}
}

// An excerpt loses at most the bytes of one character at its end.
func TestExcerptProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text, limit := rapid.String().Draw(t, "text"), rapid.IntRange(0, 40).Draw(t, "limit")
		got := Prefix(text, limit)
		if !utf8.ValidString(got) || !strings.HasPrefix(text, got) || len(got) > limit {
			t.Fatalf("Prefix(%q, %d) = %q, want at most %d bytes of valid UTF-8 from its begin", text, limit, got, limit)
		}
		if missing := min(limit, len(text)) - len(got); missing >= utf8.UTFMax {
			t.Fatalf("Prefix(%q, %d) = %q, which has %d bytes too few", text, limit, got, missing)
		}
	})
}
