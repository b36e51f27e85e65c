package plan

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"time"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	multischema "rik.dev/rik/internal/multicluster/schema"
)

// candidate is an import that is processed in a decision.
type candidate struct {
	source *apiresourcev1alpha1.APIResourceImport
	offer  multischema.Offer
	// invalid is why the import cannot take part at all, or empty.
	invalid string
	// compatible is true if the import is compatible with the negotiated schema. Otherwise
	// obstacles contains the reasons.
	compatible bool
	obstacles  []apiresourcev1alpha1.Obstacle
	dropped    []apiresourcev1alpha1.Obstacle
}

// candidates returns the imports of a version in the order in which they are admitted: by the age
// of their Cluster, then by its name.
func candidates(imports []*apiresourcev1alpha1.APIResourceImport, founded map[string]time.Time) []*candidate {
	var out []*candidate
	for _, i := range imports {
		c := &candidate{source: i, offer: multischema.Offer{Location: i.Spec.Location, Spec: i.Spec.CommonAPIResourceSpec}}
		if like := c.alike(out); like != nil {
			c.invalid = like.invalid
		} else if _, err := multischema.Parse(i.Spec.OpenAPIV3Schema); err != nil {
			c.invalid = err.Error()
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *candidate) int {
		return cmp.Or(byAge(founded, a.offer.Location, b.offer.Location),
			strings.Compare(a.offer.Location, b.offer.Location), strings.Compare(a.source.Name, b.source.Name))
	})
	return out
}

// byAge compares the age of Clusters. A Cluster of unknown age is the youngest.
func byAge(founded map[string]time.Time, a, b string) int {
	timeA, knownA := founded[a]
	timeB, knownB := founded[b]
	switch {
	case knownA && knownB:
		return timeA.Compare(timeB)
	case knownA:
		return -1
	case knownB:
		return 1
	}
	return 0
}

// admit computes the agreement of the candidates. The first valid one always takes part. Other
// candidates take part only if contributes returns true. The rest is checked against the result.
// It returns nil if there is no valid candidate.
func admit(all []*candidate, contributes func(*candidate) bool) *multischema.Agreement {
	var members, checked []*candidate
	for _, c := range all {
		switch {
		case c.invalid != "":
		case len(members) == 0 || contributes(c):
			members = append(members, c)
		default:
			checked = append(checked, c)
		}
	}
	agreement, members := meetInOrder(members)
	if agreement == nil {
		return nil
	}
	for _, c := range members {
		c.compatible = true
		c.dropped = ofLocation(agreement.Dropped, c.offer.Location)
	}
	var good []*candidate
	for _, c := range checked {
		good = c.check(multischema.Offer{Spec: agreement.Spec}, good)
	}
	return agreement
}

// meetInOrder returns the meet of all candidates if there is one. Otherwise it leaves out each
// candidate that has no meet with the ones before it, and sets its obstacles.
func meetInOrder(all []*candidate) (*multischema.Agreement, []*candidate) {
	if len(all) == 0 {
		return nil, nil
	}
	if agreement, _ := multischema.Meet(offers(all)...); agreement != nil {
		return agreement, all
	}
	var members []*candidate
	var agreement *multischema.Agreement
	for _, c := range all {
		next, obstacles := multischema.Meet(append(offers(members), c.offer)...)
		if next == nil {
			c.obstacles = obstacles
			continue
		}
		agreement, members = next, append(members, c)
	}
	return agreement, members
}

// check compares a candidate with a schema that does not change. If the candidate equals a
// compatible one, it skips the comparison, because clusters of one version offer byte-identical
// types. It returns the candidates that are compatible so far.
func (c *candidate) check(existing multischema.Offer, good []*candidate) []*candidate {
	if c.alike(good) != nil {
		c.compatible, c.obstacles = true, nil
		return good
	}
	c.obstacles = multischema.Compatible(existing, c.offer)
	if c.compatible = len(c.obstacles) == 0; c.compatible {
		good = append(good, c)
	}
	return good
}

// alike returns a candidate with the same offer, or nil.
func (c *candidate) alike(others []*candidate) *candidate {
	i := slices.IndexFunc(others, func(o *candidate) bool { return reflect.DeepEqual(o.offer.Spec, c.offer.Spec) })
	if i < 0 {
		return nil
	}
	return others[i]
}

func offers(all []*candidate) []multischema.Offer {
	var out []multischema.Offer
	for _, c := range all {
		out = append(out, c.offer)
	}
	return out
}

// ofLocation returns the obstacles that name a cluster.
func ofLocation(obstacles []apiresourcev1alpha1.Obstacle, location string) []apiresourcev1alpha1.Obstacle {
	var out []apiresourcev1alpha1.Obstacle
	for _, o := range obstacles {
		if slices.Contains(o.Locations, location) {
			out = append(out, o)
		}
	}
	return out
}
