package rikctl

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/kubectl/pkg/describe"
)

// honestWriter writes what others chose, such as annotations, messages and what a node says of
// itself, so that it cannot pass for a line or a column of the description.
type honestWriter struct{ describe.PrefixWriter }

// Write implements describe.PrefixWriter.
func (w honestWriter) Write(level int, format string, values ...any) {
	w.PrefixWriter.Write(level, format, printable(values)...)
}

// WriteLine implements describe.PrefixWriter.
func (w honestWriter) WriteLine(values ...any) { w.PrefixWriter.WriteLine(printable(values)...) }

func printable(values []any) []any {
	out := make([]any, len(values))
	for i, value := range values {
		switch v := value.(type) {
		case int, int32, int64, bool:
			out[i] = v
		default:
			out[i] = escaped(strings.TrimRight(fmt.Sprint(v), "\n"))
		}
	}
	return out
}

// escaped shows control characters as Go writes them: \n, \t, \x1b.
func escaped(text string) string {
	if !strings.ContainsFunc(text, unprintable) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if !unprintable(r) {
			out.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		out.WriteString(quoted[1 : len(quoted)-1])
	}
	return out.String()
}

// unprintable are control characters, line separators, and the marks that change the
// direction of text.
func unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}
