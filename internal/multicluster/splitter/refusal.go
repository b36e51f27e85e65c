package splitter

import (
	"maps"
	"slices"
	"strings"
	"time"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// maxRefusals bounds how many refusals of a whole root are remembered.
const maxRefusals = 100

// refusals are the clusters that have refused a whole root, and when. The leaf of such a
// cluster is deleted, so that the root has to remember them: without that it would return to
// the first cluster as soon as the second one refuses it too.
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

// noteRefusals brings the refusals up to date with what the leaves say. A cluster that has
// taken the root since, or that was removed, is forgotten.
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

// forgetRefusals drops the refusals of clusters in which the root is tried anew.
func (st *State) forgetRefusals(changes []Change, p *Progress) {
	known := st.refusals()
	for _, c := range changes {
		if c.Action == Create {
			delete(known, c.Cluster)
		}
	}
	p.Refused = encodeRefusals(known)
}

// isRefusedWhole says whether nothing of the leaf of a whole root is in its cluster because
// that refuses it. Data and finished work are never left behind.
func (l *Leaf) isRefusedWhole() bool { return l.Refused && l.Never && !l.Bound && !l.Finished }

// checkRefusals takes a whole root from a cluster that refuses it, if another one may take it,
// and keeps it from those that have refused it lately. Where none is left, it stays where it
// is. Each cluster is tried once in refusedRetry at most.
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
		case has && !s.leaf.isRefusedWhole(): // it is being tried, or runs there
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
			// It is tried again only when the root has to leave the place where it is.
			s.because(Holding, Reason{Code: RefusedBefore, At: at})
		}
	}
}

// refusedIn names the cluster in which a whole root stays that every cluster refuses.
func refusedIn(sites []*site) string {
	for _, s := range sites {
		if s.kept && s.share > 0 {
			return s.name
		}
	}
	return ""
}
