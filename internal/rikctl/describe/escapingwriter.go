package describe

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/kubectl/pkg/describe"
)

// escapingWriter escapes text from users, clusters and nodes, such as annotations and messages, so
// that it cannot imitate a line or a column of the description.
type escapingWriter struct{ describe.PrefixWriter }

// Write implements describe.PrefixWriter.
func (w escapingWriter) Write(level int, format string, values ...any) {
	w.PrefixWriter.Write(level, format, printable(values)...)
}

// WriteLine implements describe.PrefixWriter.
func (w escapingWriter) WriteLine(values ...any) { w.PrefixWriter.WriteLine(printable(values)...) }

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

// escaped shows control characters in Go's notation: \n, \t, \x1b.
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

// unprintable reports whether r is a control character, a line separator, or a mark that changes
// the direction of text.
func unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}
