package split

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
)

// printImpact writes the effect on clusters and roots.
func printImpact(out io.Writer, look *Impact, s *Scenario, now time.Time) error {
	_, _ = fmt.Fprintf(out, "If %s:\n%d of %d objects would change; %d replicas would move, and %d would be unplaced. Nothing was changed.\n\n",
		s, look.Moved, look.Roots, look.Replicas, look.Unplaced)
	table := printers.GetNewTabWriter(out)
	_, _ = fmt.Fprintln(table, "CLUSTER\tNOW\tWITHOUT\tTHEN\tCHANGE\tOBJECTS")
	for _, c := range look.Clusters {
		_, _ = fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%+d\t%d\n", c.Cluster, c.Now, c.Without, c.Then, c.Then-c.Without, c.Roots)
	}
	if err := table.Flush(); err != nil || len(look.Changes) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(out)
	table = printers.GetNewTabWriter(out)
	_, _ = fmt.Fprintln(table, "NAMESPACE\tOBJECT\tNOW\tWITHOUT\tTHEN\tUNPLACED\tWITHIN")
	for i := range look.Changes {
		r := &look.Changes[i]
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", r.Namespace, r.title(), partsText(r.parts()), partsText(r.Without), partsText(r.Then),
			r.EndUnplaced, withinText(&r.simulation, now))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range look.Changes {
		for _, p := range look.Changes[i].Problems {
			_, _ = fmt.Fprintf(out, "%s: %s\n", look.Changes[i].title(), printers.EscapeTerminal(p))
		}
	}
	return nil
}

// partsText formats parts as east=5,west=5.
func partsText(parts map[string]int32) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		words = append(words, fmt.Sprintf("%s=%d", name, parts[name]))
	}
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ",")
}

// withinText returns the time that the steps take because of waiting times in the policies.
func withinText(r *simulation, now time.Time) string {
	if !r.AtRest {
		return "?"
	}
	return duration.HumanDuration(r.takes(now))
}

// String describes the scenario.
func (s *Scenario) String() string {
	var words []string
	say := func(names []string, what string) {
		for _, name := range names {
			words = append(words, "cluster "+name+what)
		}
	}
	say(s.Lost, " were lost")
	say(s.Added, " were added")
	say(s.Cordoned, " were cordoned")
	say(s.NotReady, " were not ready")
	say(s.Removed, " were removed")
	return strings.Join(words, ", and ")
}
