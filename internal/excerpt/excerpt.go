// Package excerpt limits texts to a number of bytes. Such texts come from users, peers and
// programs, and end up in statuses, logs and messages, which have limits. An excerpt never ends
// within a character.
package excerpt

import "strings"

// Mark is what Of appends to a text that it cuts.
const Mark = "..."

// Of returns the text itself if it has at most limit bytes. Otherwise it returns the excerpt of
// that length and Mark, as valid UTF-8.
func Of(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return Prefix(text, limit) + Mark
}

// Prefix returns the first bytes of the text, at most limit, as valid UTF-8: it leaves out bytes
// that do not belong to a character. The result can share the memory of the text.
func Prefix(text string, limit int) string {
	return strings.ToValidUTF8(text[:min(len(text), max(limit, 0))], "")
}
