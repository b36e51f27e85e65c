// Package redact removes secrets from what leaves a cluster in a bug report.
//
// It works in three steps, because no single one is enough. [Redactor.Object] removes the fields of an
// object that may hold a secret, whatever is in them. [Redactor.Text] removes what has the form of a
// secret. Both remember the values that they remove, and [Redactor.Scrub] removes these values
// everywhere else: a log line may repeat a password without any sign that it is one.
//
// It removes too much rather than too little. It does not recognize a secret that stands alone in a
// log line and nowhere else.
package redact

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// Mark is in the place of what was removed.
const Mark = "REDACTED"

// shortest is the length of the shortest value that Scrub removes. A shorter one, such as "admin",
// would remove ordinary words from the whole report.
const shortest = 8

// shortestLine is the same for a line of a longer value. A line of YAML is no secret by itself.
const shortestLine = 16

// Redactor removes secrets, and remembers their values. It is not safe for concurrent use.
type Redactor struct{ values map[string]bool }

// New returns a Redactor that knows no value.
func New() *Redactor { return &Redactor{values: map[string]bool{}} }

// Learn makes Scrub remove a value, also in base64, in a URL and in JSON, and the secrets in it. Of
// a value with several lines, such as a key or a kubeconfig, it also removes the lines that look
// like data.
func (r *Redactor) Learn(value string) {
	value = strings.TrimSpace(value)
	if len(value) < shortest || value == Mark || r.values[value] {
		return
	}
	for _, form := range []string{
		value, url.QueryEscape(value), url.PathEscape(value), quoted(value, true), quoted(value, false),
		base64.StdEncoding.EncodeToString([]byte(value)), base64.RawStdEncoding.EncodeToString([]byte(value)), base64.RawURLEncoding.EncodeToString([]byte(value)),
	} {
		r.values[form] = true
	}
	r.Text(value) // learns what is in it
	if strings.Contains(value, "\n") {
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= shortestLine && !strings.Contains(line, " ") {
				r.Learn(line)
			}
		}
	}
	// The data of a Secret, or of a kubeconfig, is base64 itself.
	if plain, err := base64.StdEncoding.DecodeString(value); err == nil && utf8.Valid(plain) {
		r.Learn(string(plain))
	}
}

// quoted returns a value as it is in a string of JSON, with or without the escapes for HTML.
func quoted(value string, html bool) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(html)
	if encoder.Encode(value) != nil {
		return value
	}
	return strings.Trim(strings.TrimSpace(b.String()), `"`)
}

// Scrub removes all learned values from a text.
func (r *Redactor) Scrub(text string) string { return r.Scrubber().Replace(text) }

// Scrubber returns what does the work of Scrub, for many texts.
func (r *Redactor) Scrubber() *strings.Replacer {
	values := slices.Collect(maps.Keys(r.values))
	// The longest first: a value may contain another one.
	slices.SortFunc(values, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
	})
	pairs := make([]string, 0, 2*len(values))
	for _, v := range values {
		pairs = append(pairs, v, Mark)
	}
	return strings.NewReplacer(pairs...)
}
