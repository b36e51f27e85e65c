package compat

import (
	"strings"
	"testing"
)

// A file may be an endless device. This one exceeds the limit.
func TestOnlyDocumentEnds(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"\x00", "# note\n", "---\na: 1\n"} {
		in := strings.NewReader(strings.Repeat(part, 2*maxFile/len(part)))
		if _, err := onlyDocument(in); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("of %q without end: %v", part, err)
		}
		if in.Len() < maxFile/2 {
			t.Errorf("of %q all but %d bytes were read", part, in.Len())
		}
	}
	if _, err := onlyDocument(strings.NewReader("a: 1\n")); err != nil {
		t.Error(err)
	}
}
