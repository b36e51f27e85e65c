package workload

import (
	"cmp"
	"slices"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// DefaultRevisionHistoryLimit is the number of unused revisions that are kept unless the
// workload sets another limit.
const DefaultRevisionHistoryLimit = 10

// Expired returns the revisions beyond the history limit: the oldest unused ones, and never the
// current one.
func Expired(revisions []*rikv1alpha1.WorkloadRevision, used map[string]bool, current string, limit int) []*rikv1alpha1.WorkloadRevision {
	unused := slices.DeleteFunc(slices.Clone(revisions), func(r *rikv1alpha1.WorkloadRevision) bool {
		return used[r.Name] || r.Name == current
	})
	slices.SortFunc(unused, func(a, b *rikv1alpha1.WorkloadRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Name, b.Name))
	})
	return unused[:max(len(unused)-max(limit, 0), 0)]
}

// Target returns the revision for a rollback: the one with the number, or for 0 the one with
// the highest number apart from the current one.
func Target(revisions []*rikv1alpha1.WorkloadRevision, current string, number int64) *rikv1alpha1.WorkloadRevision {
	var best *rikv1alpha1.WorkloadRevision
	for _, r := range revisions {
		if number != 0 && r.Revision == number {
			return r
		}
		if number == 0 && r.Name != current && (best == nil || r.Revision > best.Revision) {
			best = r
		}
	}
	return best
}
