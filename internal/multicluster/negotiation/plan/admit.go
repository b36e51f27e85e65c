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

// candidate is an import on its way through a decision.
type candidate struct {
	source *apiresourcev1alpha1.APIResourceImport
	offer  multischema.Offer
	// invalid says why the import cannot take part at all.
	invalid string
	// compatible once the import is good for what is negotiated; else obstacles say why not.
	compatible bool
	obstacles  []apiresourcev1alpha1.Obstacle
	dropped    []apiresourcev1alpha1.Obstacle
}

// candidates are the imports of a version in the order in which they are admitted:
// by the age of their Cluster, then by the name of it.
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

// byAge compares Clusters; one of which nothing is known is the youngest.
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

// admit finds what the candidates agree on. The first that is valid counts always,
// another only if it contributes; the rest is checked against the result. The
// answer is nil when there is no valid candidate.
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

// meetInOrder is the meet of all candidates if they have one. Else it leaves out
// each that has none with those before it, and says so in its obstacles.
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

// check compares a candidate with a schema that does not change for it. It is spared
// where the candidate is like one that is known to be good for that schema: clusters of
// one version offer the same, to the byte. It gives those that are good from now on.
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

// alike is a candidate among others whose cluster offers the very same, or nil.
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

// ofLocation are the obstacles in which a cluster stands.
func ofLocation(obstacles []apiresourcev1alpha1.Obstacle, location string) []apiresourcev1alpha1.Obstacle {
	var out []apiresourcev1alpha1.Obstacle
	for _, o := range obstacles {
		if slices.Contains(o.Locations, location) {
			out = append(out, o)
		}
	}
	return out
}
