package schema

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// Offer is one version of one type in one cluster.
type Offer struct {
	// Location is the name of the cluster in obstacles. It may be empty for the served type.
	Location string
	Spec     apiresourcev1alpha1.CommonAPIResourceSpec
}

// Agreement is the type on which all offers agree.
type Agreement struct {
	Spec apiresourcev1alpha1.CommonAPIResourceSpec
	// Dropped lists the parts that were left out because not all offers can hold them.
	Dropped []apiresourcev1alpha1.Obstacle
}

var errNoSchema = errors.New("there is no schema: give openAPIV3Schema")

// Parse decodes the JSON of a schema. It does not check that the schema is structural. Meet and
// Compatible check that.
func Parse(raw runtime.RawExtension) (*apiextensionsv1.JSONSchemaProps, error) {
	if len(raw.Raw) == 0 || string(raw.Raw) == "null" {
		return nil, errNoSchema
	}
	props := &apiextensionsv1.JSONSchemaProps{}
	if err := json.Unmarshal(raw.Raw, props); err != nil {
		return nil, fmt.Errorf("decoding the schema: %w", err)
	}
	return props, nil
}

// Check returns why a schema cannot be used, or nil if Meet and Compatible can read it.
func Check(o Offer) error {
	_, err := readOffer(o)
	return err
}

// Meet returns the largest type that every offer can hold, in the sense of soundness in the
// package comment. If the Agreement is nil, no such type exists, and the obstacles are returned.
// More offers do not change that. Neither the order of the offers nor repetition changes the
// Agreement's Spec. Without offers, the result is nil.
func Meet(offers ...Offer) (*Agreement, []apiresourcev1alpha1.Obstacle) {
	return (&meeting{}).of(offers)
}

// MeetOptional is like Meet, for a type with stored objects that may lack a property for which no
// default is accepted by all. The property stays optional, and each member fills in its own
// default.
func MeetOptional(offers ...Offer) (*Agreement, []apiresourcev1alpha1.Obstacle) {
	return (&meeting{optional: true}).of(offers)
}

func (t *meeting) of(offers []Offer) (*Agreement, []apiresourcev1alpha1.Obstacle) {
	if len(offers) == 0 {
		return nil, []apiresourcev1alpha1.Obstacle{{Path: ".", Reason: "there is no offer"}}
	}
	all, unreadable := readOffers(inOrder(offers))
	if unreadable != nil {
		return nil, unreadable
	}
	agreement, why := t.agree(all)
	pairs := pairsOf(all)
	if agreement == nil {
		addExamples(why, pairs)
		return nil, why
	}
	addExamples(agreement.Dropped, pairs)
	return agreement, nil
}

// agree computes the meet without counterexamples.
func (t *meeting) agree(all []*offeredSchema) (*Agreement, []apiresourcev1alpha1.Obstacle) {
	offers, ms := make([]Offer, len(all)), make([]*member, len(all))
	for i := range all {
		offers[i], ms[i] = all[i].Offer, all[i].asMember()
	}
	agreement := &Agreement{}
	why, dropped := meetNames(offers, &agreement.Spec)
	result := t.meet(".", ms)
	if why = append(why, result.why...); len(why) > 0 {
		return nil, why
	}
	schema, err := finished(result.node)
	if err != nil {
		return nil, []apiresourcev1alpha1.Obstacle{obstacle(".", ms, "what all have cannot be written as one schema: %v", err)}
	}
	agreement.Spec.OpenAPIV3Schema = runtime.RawExtension{Raw: schema}
	agreement.Dropped = append(dropped, result.dropped...)
	return agreement, nil
}

// inOrder sorts offers, so that their order does not affect the result.
func inOrder(offers []Offer) []Offer {
	sorted := slices.Clone(offers)
	slices.SortStableFunc(sorted, func(a, b Offer) int {
		return cmp.Or(cmp.Compare(a.Location, b.Location), cmp.Compare(encode(a.Spec), encode(b.Spec)))
	})
	return sorted
}

func readOffers(offers []Offer) (all []*offeredSchema, unreadable []apiresourcev1alpha1.Obstacle) {
	for _, o := range offers {
		read, err := readOffer(o)
		if err != nil {
			unreadable = append(unreadable, obstacle(".", []*member{{location: o.Location}}, "the schema cannot be used: %v", err))
			continue
		}
		all = append(all, read)
	}
	return all, unreadable
}

// pairsOf returns all ordered pairs of offers with different schemas.
func pairsOf(all []*offeredSchema) [][2]*offeredSchema {
	var pairs [][2]*offeredSchema
	for i, a := range all {
		for _, b := range all[i+1:] {
			if string(a.Spec.OpenAPIV3Schema.Raw) != string(b.Spec.OpenAPIV3Schema.Raw) {
				pairs = append(pairs, [2]*offeredSchema{a, b}, [2]*offeredSchema{b, a})
			}
		}
	}
	return pairs
}

// rewritten returns a node as it is after its schema was written and read again. Writing leaves
// out parts of clauses, which may make two clauses equal.
func rewritten(n *node) (*node, error) { return readRoot(writeRoot(n)) }

// finished writes the schema of an agreement.
func finished(n *node) ([]byte, error) {
	root, err := rewritten(n)
	if err != nil {
		return nil, err
	}
	props := writeRoot(root)
	if _, err := structural(props); err != nil {
		return nil, err
	}
	return json.Marshal(props)
}

// Compatible returns the obstacles for documents of the existing type in the offered one. The
// result is empty if every document that is valid under existing, after its defaulting, is valid
// for offered.
func Compatible(existing, offered Offer) []apiresourcev1alpha1.Obstacle {
	return compatible(existing, offered, addExamples)
}

// IsCompatible reports whether Compatible finds no obstacles. It does not search for examples,
// which are most of the work.
func IsCompatible(existing, offered Offer) bool {
	return len(compatible(existing, offered, func([]apiresourcev1alpha1.Obstacle, [][2]*offeredSchema) {})) == 0
}

func compatible(existing, offered Offer, addExamples func([]apiresourcev1alpha1.Obstacle, [][2]*offeredSchema)) []apiresourcev1alpha1.Obstacle {
	offers := []Offer{existing, offered}
	all, unreadable := readOffers(offers)
	if unreadable != nil {
		return unreadable
	}
	obstacles, dropped := meetNames(offers, &apiresourcev1alpha1.CommonAPIResourceSpec{})
	for _, o := range dropped {
		// Subresources that only the offered type has are not obstacles.
		if subResource(&existing.Spec, o.Path[len(subResourcePath):]) != nil {
			obstacles = append(obstacles, o)
		}
	}
	found := compare(all[0], all[1])
	addExamples(found, [][2]*offeredSchema{{all[0], all[1]}})
	return append(obstacles, found...)
}

// distinct removes obstacles with the same path and reason, and keeps the first.
func distinct(obstacles []apiresourcev1alpha1.Obstacle) []apiresourcev1alpha1.Obstacle {
	var kept []apiresourcev1alpha1.Obstacle
	said := map[[2]string]bool{}
	for _, o := range obstacles {
		if key := [2]string{o.Path, o.Reason}; !said[key] {
			said[key] = true
			kept = append(kept, o)
		}
	}
	return kept
}

// compare returns the places where the offered schema accepts less than the existing one.
func compare(existing, other *offeredSchema) []apiresourcev1alpha1.Obstacle {
	t := &meeting{comparison: true}
	is := t.meet(".", []*member{existing.asMember(), other.asMember()})
	if is.why != nil {
		return append(t.obstacles, is.why...)
	}
	c := &comparison{offered: other.asMember(), dropped: is.dropped, found: t.obstacles}
	before, errBefore := rewritten(existing.root)
	after, errAfter := rewritten(is.node)
	if err := errors.Join(errBefore, errAfter); err != nil {
		c.say(".", "what both have cannot be written as one schema: %v", err)
		return c.found
	}
	c.narrower(".", before, after)
	return distinct(c.found)
}
