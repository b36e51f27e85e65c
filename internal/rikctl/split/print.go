package split

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/rikctl/printer"
)

// title returns the name of a root in the form that commands accept.
func (d *Division) title() string { return strings.ToLower(d.Kind) + "/" + d.Name }

// ways describes each kind of split.
var ways = map[string]string{
	string(workloadv1alpha1.DivideReplicas):   "is split by its replicas",
	string(workloadv1alpha1.DivideWhole):      "goes as a whole to one cluster",
	string(workloadv1alpha1.DivideEverywhere): "goes as a whole to every eligible cluster",
}

// printDivision writes the split of a root, with reasons.
func printDivision(out io.Writer, d *Division, now time.Time) error {
	_, _ = fmt.Fprintf(out, "%s in namespace %s %s%s.\n", d.title(), d.Namespace, ways[d.Divide], strategyOf(d))
	table := printers.GetNewTabWriter(out)
	line := func(name, text string) {
		if text != "" {
			_, _ = fmt.Fprintf(table, "%s:\t%s\n", name, printers.EscapeTerminal(text))
		}
	}
	printPlacement(line, d)
	if len(d.Problems) > 0 {
		if err := table.Flush(); err != nil {
			return err
		}
		_, err := fmt.Fprintln(out, "No leaf changes until the problems are corrected.")
		return err
	}
	printNumbers(line, d)
	for _, r := range d.Reasons {
		line("Reason", r.Text)
	}
	line("Next check", until(d.LookAgain, now))
	for _, c := range d.Conditions {
		line("Condition", c)
	}
	if err := table.Flush(); err != nil || len(d.Clusters) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(out)
	return printShares(out, d.Clusters)
}

func strategyOf(d *Division) string {
	if d.Strategy == "" {
		return ""
	}
	return ", strategy " + d.Strategy
}

// printPlacement writes what a root's Placement and annotations ask for.
func printPlacement(line func(name, text string), d *Division) {
	placement := d.Placement
	if len(d.OtherPlacements) > 0 {
		placement += "; ignored: " + strings.Join(d.OtherPlacements, ", ")
	}
	line("Placement", printer.OrNone(placement))
	for _, name := range slices.Sorted(maps.Keys(d.Hints)) {
		line("Hint", name+"="+d.Hints[name])
	}
	for _, p := range d.Problems {
		line("Problem", p)
	}
}

func printNumbers(line func(name, text string), d *Division) {
	var ready, has int32
	for i := range d.Clusters {
		ready, has = ready+d.Clusters[i].Ready, has+d.Clusters[i].Has
	}
	line("Total", fmt.Sprintf("%d; the clusters have %d, of which %d are ready", d.Whole, has, ready))
	line("Unplaced", strconv.Itoa(int(d.Unplaced)))
	if d.Divide == string(workloadv1alpha1.DivideEverywhere) {
		return
	}
	line("Surge", fmt.Sprintf("%d above the total while replicas move", d.Surge))
	if d.MovesLeft != nil {
		line("Moves", fmt.Sprintf("%d more in this interval", *d.MovesLeft))
	}
}

// until formats a time and the duration until then.
func until(at *metav1.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return fmt.Sprintf("%s, in %s", at.UTC().Format(time.RFC3339), duration.HumanDuration(at.Sub(now)))
}

// printShares writes the table of the clusters.
func printShares(out io.Writer, shares []divisionShare) error {
	table := printers.GetNewTabWriter(out)
	_, _ = fmt.Fprintln(table, "CLUSTER\tSTANDING\tWEIGHT\tHAS\tGETS\tSHARE\tREADY\tREASONS")
	for i := range shares {
		s := &shares[i]
		_, _ = fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n",
			s.Cluster, s.Standing, s.Weight, s.Has, s.Gets, s.Share, s.Ready, s.why())
	}
	return table.Flush()
}

// why returns the reasons of a share in one line.
func (s *divisionShare) why() string {
	var words []string
	for _, r := range s.Reasons {
		words = append(words, r.Text)
	}
	if s.NameInCluster != "" {
		words = append(words, "its name in the cluster is "+s.NameInCluster)
	}
	if s.Problem != "" {
		words = append(words, "problem: "+s.Problem)
	}
	return printers.EscapeTerminal(strings.Join(words, "; "))
}
