// Package integrity is the report of a check of rik's files: the data directory of a server, or
// the state directory of a node.
package integrity

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Result is what a check found in one file or directory.
type Result struct {
	// Path is what was checked, and Content what it contains.
	Path    string `json:"path"`
	Content string `json:"content"`
	// Detail is what was read, such as a number of objects. Empty if there is nothing to say.
	Detail string `json:"detail,omitempty"`
	// Problem says what is wrong and how to continue. It is empty if nothing is wrong.
	Problem string `json:"problem,omitempty"`
}

// Report is the results of a check. The zero value has none.
type Report struct {
	Results []Result `json:"results"`
}

// Add adds the result for a path. A nil error means that nothing is wrong.
func (r *Report) Add(path, content, detail string, err error) {
	result := Result{Path: path, Content: content, Detail: detail}
	if err != nil {
		result.Problem = err.Error()
	}
	r.Results = append(r.Results, result)
}

// ProblemsError means that a check found problems, which its report names.
type ProblemsError struct{ Count int }

// Error implements error.
func (e *ProblemsError) Error() string {
	if e.Count == 1 {
		return "1 problem was found"
	}
	return fmt.Sprintf("%d problems were found", e.Count)
}

// Err returns a *ProblemsError if there are problems.
func (r *Report) Err() error {
	count := 0
	for _, result := range r.Results {
		if result.Problem != "" {
			count++
		}
	}
	if count == 0 {
		return nil
	}
	return &ProblemsError{Count: count}
}

// Print writes a table, or a JSON document.
func (r *Report) Print(w io.Writer, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(r)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RESULT\tCONTENT\tPATH")
	for _, result := range r.Results {
		word := "ok"
		if result.Problem != "" {
			word = "problem"
		}
		content := result.Content
		if result.Detail != "" {
			content += " (" + result.Detail + ")"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", word, content, line(result.Path))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, result := range r.Results {
		if result.Problem == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n%s: %s\n", line(result.Path), line(result.Problem)); err != nil {
			return err
		}
	}
	return nil
}

// line returns a text on one line, without control characters: parts of it come from damaged
// files.
func line(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
}
