package splitter

import (
	"maps"
	"slices"
	"strings"
	"time"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// maxRefusals limits the number of refusals that an undivided root remembers.
const maxRefusals = 100

// refusals returns the clusters that have refused an undivided root, with the time. The leaf of
// such a cluster is deleted, so the root must remember the refusal. Otherwise the root would
// return to the first cluster as soon as the second cluster refuses it too.
func (st *State) refusals() map[string]time.Time {
	out := map[string]time.Time{}
	for entry := range strings.SplitSeq(st.Progress.Refused, ",") {
		name, text, _ := strings.Cut(entry, "=")
		if at, err := time.Parse(time.RFC3339, text); err == nil && !at.After(st.Now) {
			out[name] = at
		}
	}
	return out
}

// noteRefusals updates the refusals from the leaves. It removes the entries of clusters that have
// accepted the root since, or that were removed.
func (st *State) noteRefusals() {
	if st.Policy.divide != workloadv1alpha1.DivideWhole {
		st.Progress.Refused = ""
		return
	}
	known := st.refusals()
	maps.DeleteFunc(known, func(name string, _ time.Time) bool { return st.clusterOf(name) == nil })
	for i := range st.Leaves {
		l := &st.Leaves[i]
		_, noted := known[l.Cluster]
		switch {
		case l.Deleting:
		case l.isRefusedWhole() && st.clusterOf(l.Cluster) != nil:
			if !noted {
				known[l.Cluster] = st.Now
			}
		case !l.Refused && (l.Settled || l.Ready > 0):
			delete(known, l.Cluster)
		}
	}
	st.Progress.Refused = encodeRefusals(known)
}

func encodeRefusals(known map[string]time.Time) string {
	names := slices.SortedFunc(maps.Keys(known), func(a, b string) int {
		if order := known[b].Compare(known[a]); order != 0 {
			return order
		}
		return strings.Compare(a, b)
	})
	entries := make([]string, 0, len(names))
	for _, name := range names[:min(len(names), maxRefusals)] {
		entries = append(entries, name+"="+known[name].UTC().Format(time.RFC3339))
	}
	slices.Sort(entries)
	return strings.Join(entries, ",")
}

// forgetRefusals removes the refusals of clusters in which the splitter creates the leaf again.
func (st *State) forgetRefusals(changes []Change, p *Progress) {
	known := st.refusals()
	for _, c := range changes {
		if c.Action == Create {
			delete(known, c.Cluster)
		}
	}
	p.Refused = encodeRefusals(known)
}

// isRefusedWhole reports whether the cluster of an undivided root has nothing of it because it
// refuses the leaf. A leaf that has data or has finished in the cluster does not count as
// refused.
func (l *Leaf) isRefusedWhole() bool { return l.Refused && l.Never && !l.Bound && !l.Finished }

// checkRefusals moves an undivided root away from a cluster that refuses it, if another cluster
// may accept it. It does not send the root to clusters that have recently refused it. If no other
// cluster is left, the root stays where it is. The splitter tries each cluster at most once in
// refusedRetry.
func (st *State) checkRefusals(sites []*site) {
	known := st.refusals()
	if len(known) == 0 || st.Policy.divide != workloadv1alpha1.DivideWhole {
		return
	}
	settled, open := false, false
	for _, s := range sites {
		has := s.leaf != nil && !s.leaf.Deleting
		at, refused := known[s.name]
		settled = settled || has && s.standing != Out && !s.leaf.isRefusedWhole()
		open = open || s.standing == Open && s.weight > 0 && (!refused || !at.Add(refusedRetry).After(st.Now))
	}
	for _, s := range sites {
		at, refused := known[s.name]
		if !refused || s.apart {
			continue
		}
		has := s.leaf != nil && !s.leaf.Deleting
		until := at.Add(refusedRetry)
		isFresh := until.After(st.Now)
		switch {
		case has && !s.leaf.isRefusedWhole(): // the leaf is being tried, or runs there
		case has && s.standing != Out && !open:
			s.because(Holding, Reason{Code: RefusedEverywhere})
			s.kept = true
		case has:
			s.refused = true
			s.because(Out, Reason{Code: Refused, At: until})
		case isFresh:
			s.because(Out, Reason{Code: Refused, At: until})
			s.lookAgain(until, st.Now)
		case settled:
			// The splitter tries this cluster again only when the root must leave its current
			// cluster.
			s.because(Holding, Reason{Code: RefusedBefore, At: at})
		}
	}
}

// refusedIn returns the cluster in which an undivided root stays that every cluster refuses.
func refusedIn(sites []*site) string {
	for _, s := range sites {
		if s.kept && s.share > 0 {
			return s.name
		}
	}
	return ""
}
