package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Format is the form of a printed report.
type Format string

// The formats.
const (
	// FormatTable has a line for each finding that is not OK, and the commands.
	FormatTable Format = ""
	// FormatWide has all findings.
	FormatWide Format = "wide"
	FormatJSON Format = "json"
)

// Formats are the values that a user may choose.
var Formats = []Format{FormatWide, FormatJSON}

// Known reports whether a format exists.
func (f Format) Known() bool { return f == FormatTable || slices.Contains(Formats, f) }

// Print writes a report.
func (r Report) Print(w io.Writer, format Format) error {
	if format == FormatJSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false) // commands contain & and >
		return encoder.Encode(r)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "rik %s as a %s on %s (%s, kernel %s)\n\n", r.Version, r.Role, r.Hostname, r.Distribution, r.Kernel)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SEVERITY\tCHECK\tFINDING")
	for _, f := range r.Findings {
		if f.Severity == OK && format != FormatWide {
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Severity, f.ID, line(f.Message))
		if f.Affects != "" && f.Severity != OK {
			fmt.Fprintf(table, "\t\t  affects: %s\n", line(f.Affects))
		}
		if f.Fix != "" && f.Severity != OK {
			fmt.Fprintf(table, "\t\t  fix: %s\n", line(f.Fix))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	text := b.String()
	if !strings.Contains(text, "\n"+string(Error)) && len(r.Findings) == r.Summary[OK] && format != FormatWide {
		text, _, _ = strings.Cut(text, "SEVERITY")
	}
	text += fmt.Sprintf("%s, %s, %d infos, %d ok\n", count(r.Summary[Error], "error"), count(r.Summary[Warning], "warning"), r.Summary[Info], r.Summary[OK])
	_, err := io.WriteString(w, text)
	return err
}

// line returns a text on one line, without control characters: parts of it come from other
// programs and machines.
func line(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
}
