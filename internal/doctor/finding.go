package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity says how much a finding matters.
type Severity string

// The severities, from the least to the most.
const (
	// OK means that the check found nothing wrong.
	OK Severity = "ok"
	// Info is a fact to know. It needs no action.
	Info Severity = "info"
	// Warning means that something does not work fully, or will stop working.
	Warning Severity = "warning"
	// Error means that rik, or a kind of workload, does not work on this machine.
	Error Severity = "error"
)

// rank orders severities in reports: the most severe first.
func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Info, OK}, s) }

// Finding is the result of a check.
type Finding struct {
	// ID names the check and its result. It never changes.
	ID string `json:"id"`
	// Area is the part of the machine that was checked.
	Area Area `json:"area"`
	// Object is what the finding is about if a check has several, such as a path or an address.
	Object   string   `json:"object,omitempty"`
	Severity Severity `json:"severity"`
	// Message says what is wrong, or what is right.
	Message string `json:"message"`
	// Affects says what does not work because of it.
	Affects string `json:"affects,omitempty"`
	// Fix is a shell command that removes the cause. It is empty if there is no such command.
	Fix string `json:"fix,omitempty"`
}

// Report is the result of all checks.
type Report struct {
	// Version is the version of the program that made the report.
	Version      string    `json:"version"`
	Role         Role      `json:"role"`
	Hostname     string    `json:"hostname"`
	Distribution string    `json:"distribution"`
	Kernel       string    `json:"kernel"`
	Findings     []Finding `json:"findings"`
	// Summary counts the findings by severity.
	Summary map[Severity]int `json:"summary"`
}

// Check runs the checks on a machine. only names the IDs and areas to report; all if it is empty.
// Unknown names are an error.
func Check(m *Machine, only []string) (Report, error) {
	if unknown := unknownNames(only); len(unknown) > 0 {
		return Report{}, fmt.Errorf("%s is neither a check nor an area: use one of the areas %s, or an ID of a finding",
			strings.Join(unknown, ", "), strings.Join(Areas(), ", "))
	}
	r := Report{
		Version: m.Version, Role: m.Role, Hostname: m.Hostname, Distribution: m.Distribution.Title(), Kernel: m.Kernel.Release,
		Findings: []Finding{}, Summary: map[Severity]int{OK: 0, Info: 0, Warning: 0, Error: 0},
	}
	for _, c := range checks {
		if !c.selected(only) {
			continue
		}
		for _, f := range c.run(m) {
			if f.ID == "" {
				f.ID = c.ids[0]
			}
			f.Area = c.area
			if len(only) > 0 && !slices.Contains(only, f.ID) && !slices.Contains(only, string(c.area)) {
				continue
			}
			r.Findings = append(r.Findings, f)
			r.Summary[f.Severity]++
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) })
	return r, nil
}

// ResultError is the result of a report as an error.
type ResultError struct {
	// Code is the exit code of the program.
	Code             int
	errors, warnings int
}

// Exit codes of doctor.
const (
	// ExitError means that there is an error.
	ExitError = 1
	// ExitWarning means that there are only warnings, with strict.
	ExitWarning = 2
)

// Error implements error.
func (e *ResultError) Error() string {
	return fmt.Sprintf("the checks found %s and %s", count(e.errors, "error"), count(e.warnings, "warning"))
}

// Err returns a *ResultError if the report has an error. With strict, a warning is enough.
func (r Report) Err(strict bool) error {
	result := &ResultError{errors: r.Summary[Error], warnings: r.Summary[Warning]}
	switch {
	case result.errors > 0:
		result.Code = ExitError
	case result.warnings > 0 && strict:
		result.Code = ExitWarning
	default:
		return nil
	}
	return result
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
