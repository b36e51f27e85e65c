package workload

import (
	"cmp"
	"slices"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// DefaultRevisionHistoryLimit is how many unused revisions are kept unless the
// workload says otherwise.
const DefaultRevisionHistoryLimit = 10

// Expired chooses the revisions beyond the history limit: the oldest ones that
// no instance uses, and never the present one.
func Expired(revisions []*rikv1alpha1.WorkloadRevision, used map[string]bool, current string, limit int) []*rikv1alpha1.WorkloadRevision {
	unused := slices.DeleteFunc(slices.Clone(revisions), func(r *rikv1alpha1.WorkloadRevision) bool {
		return used[r.Name] || r.Name == current
	})
	slices.SortFunc(unused, func(a, b *rikv1alpha1.WorkloadRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Name, b.Name))
	})
	return unused[:max(len(unused)-max(limit, 0), 0)]
}

// Target finds the revision that a rollback asks for: the one with the number,
// or with 0 the highest one below the present.
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
