package split

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
)

// printPlans writes all plans.
func printPlans(out io.Writer, p *planner) error {
	for _, note := range p.notes {
		_, _ = fmt.Fprintln(out, printers.EscapeTerminal(note))
	}
	changing := 0
	for i := range p.plans {
		one := &p.plans[i]
		if one.changes() {
			changing++
		}
		if err := printPlan(out, one, p.now); err != nil {
			return err
		}
		_, _ = fmt.Fprintln(out)
	}
	text := fmt.Sprintf("%d of %d objects would change.", changing, len(p.plans))
	if len(p.plans) == 0 {
		text = "No split object would change."
		if p.leaving {
			text = "Leaves would be deleted."
		}
	}
	_, err := fmt.Fprintln(out, text+" Nothing was changed.")
	return err
}

// printPlan writes the plan for one root.
func printPlan(out io.Writer, p *Plan, now time.Time) error {
	_, _ = fmt.Fprintf(out, "%s in namespace %s, %s, %s%s.\n", p.title(), p.Namespace, p.File, ways[p.Divide], strategyOf(&p.Division))
	table := printers.GetNewTabWriter(out)
	line := func(name, text string) {
		if text != "" {
			_, _ = fmt.Fprintf(table, "%s:\t%s\n", name, printers.EscapeTerminal(text))
		}
	}
	printPlacement(line, &p.Division)
	if len(p.Problems) > 0 {
		line("Effect", "no leaf changes until this is corrected")
	} else {
		printNumbers(line, &p.Division)
		if p.EndUnplaced != p.Unplaced {
			line("Unplaced in the end", fmt.Sprint(p.EndUnplaced))
		}
		line("Finished", restOf(&p.simulation, now))
		line("Rolled out in", strings.Join(p.RolledOut, ", "))
	}
	for _, n := range p.Needs {
		line("Follower", n.String())
	}
	if err := table.Flush(); err != nil || len(p.Clusters) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(out)
	return printEnds(out, p.Clusters)
}

// restOf describes when the last change is done.
func restOf(r *simulation, now time.Time) string {
	steps := fmt.Sprintf("after %d steps", len(r.Steps))
	switch takes := r.takes(now); {
	case !r.AtRest:
		return fmt.Sprintf("not within %d steps", len(r.Steps))
	case len(r.Steps) == 0:
		return "now"
	case takes > 0:
		return fmt.Sprintf("%s, the last of them in %s", steps, duration.HumanDuration(takes))
	case len(r.Steps) == 1:
		return "after one step"
	default:
		return steps
	}
}

// String returns the name of the follower with its state.
func (n plannedNeed) String() string {
	text := n.Kind + " " + n.Name
	switch {
	case n.Missing && n.Optional:
		text += " (does not exist; optional)"
	case n.Missing:
		text += " (does not exist; replicas do not start without it)"
	}
	return text
}

// printEnds writes a table of the clusters with their parts at the end.
func printEnds(out io.Writer, shares []divisionShare) error {
	table := printers.GetNewTabWriter(out)
	_, _ = fmt.Fprintln(table, "CLUSTER\tSTANDING\tWEIGHT\tNOW\tNEXT\tTHEN\tREASONS")
	for i := range shares {
		s := &shares[i]
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%s\n", s.Cluster, s.Standing, s.Weight, s.Has, s.Gets, s.End.Has, s.whyEnd())
	}
	return table.Flush()
}

// whyEnd returns the present reasons of a share. It adds the reasons at the end if the standing
// differs then.
func (s *divisionShare) whyEnd() string {
	text := s.why()
	if s.End.Standing == s.Standing {
		return text
	}
	var words []string
	for _, r := range s.End.Reasons {
		if !slices.ContainsFunc(s.Reasons, func(now divisionReason) bool { return now.Text == r.Text }) {
			words = append(words, r.Text)
		}
	}
	return text + "; then " + s.End.Standing + ": " + printers.EscapeTerminal(strings.Join(words, "; "))
}
