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

// Offer is one version of one type as one cluster has it.
type Offer struct {
	// Location names the cluster in obstacles; it may be empty for what is served.
	Location string
	Spec     apiresourcev1alpha1.CommonAPIResourceSpec
}

// Agreement is what all offers can agree on.
type Agreement struct {
	Spec apiresourcev1alpha1.CommonAPIResourceSpec
	// Dropped says what was left out because not all offers can hold it.
	Dropped []apiresourcev1alpha1.Obstacle
}

var errNoSchema = errors.New("there is no schema: give openAPIV3Schema")

// Parse decodes a schema. It refuses what is not the JSON of one; whether the
// schema is structural is for Meet and Compatible to say.
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

// Check says why a schema cannot be used; nil if Meet and Compatible can read it.
func Check(o Offer) error {
	_, err := readOffer(o)
	return err
}

// Meet finds the largest type that every offer can hold, in the sense that the
// package comment calls sound. A nil Agreement comes with the obstacles: there is
// no such type, whatever other offers are added. No order of the offers and no
// repetition changes the Agreement's Spec. Without offers there is none.
func Meet(offers ...Offer) (*Agreement, []apiresourcev1alpha1.Obstacle) {
	return (&meeting{}).of(offers)
}

// MeetOptional is Meet for a type of which objects are stored that lack a property without a
// default that all accept: the property stays optional, and each member fills in its own.
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
		illustrate(why, pairs)
		return nil, why
	}
	illustrate(agreement.Dropped, pairs)
	return agreement, nil
}

// agree is a meet without counter-examples.
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

// inOrder sorts offers, so that the order in which they came is of no effect on what
// is said of them.
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

// pairsOf are the offers in both orders of every two of different schemas.
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

// rewritten is a node as it is when its schema is read again: writing it leaves parts
// of clauses out, which may make two of them equal.
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

// Compatible says what keeps documents of the existing type from the offered one:
// nothing when every document that is valid under existing, after its defaulting,
// is good for offered.
func Compatible(existing, offered Offer) []apiresourcev1alpha1.Obstacle {
	return compatible(existing, offered, illustrate)
}

// IsCompatible says whether nothing keeps documents of the existing type from the offered one.
// It makes no examples, which are most of the work.
func IsCompatible(existing, offered Offer) bool {
	return len(compatible(existing, offered, func([]apiresourcev1alpha1.Obstacle, [][2]*offeredSchema) {})) == 0
}

func compatible(existing, offered Offer, illustrate func([]apiresourcev1alpha1.Obstacle, [][2]*offeredSchema)) []apiresourcev1alpha1.Obstacle {
	offers := []Offer{existing, offered}
	all, unreadable := readOffers(offers)
	if unreadable != nil {
		return unreadable
	}
	obstacles, dropped := meetNames(offers, &apiresourcev1alpha1.CommonAPIResourceSpec{})
	for _, o := range dropped {
		// What only the offered type serves beside is no obstacle.
		if subResource(&existing.Spec, o.Path[len(subResourcePath):]) != nil {
			obstacles = append(obstacles, o)
		}
	}
	found := compare(all[0], all[1])
	illustrate(found, [][2]*offeredSchema{{all[0], all[1]}})
	return append(obstacles, found...)
}

// distinct keeps the first of obstacles that say the same.
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

// compare lists where the offered schema accepts less than the existing one.
func compare(existing, other *offeredSchema) []apiresourcev1alpha1.Obstacle {
	t := &meeting{comparison: true}
	is := t.meet(".", []*member{existing.asMember(), other.asMember()})
	if is.why != nil {
		return append(t.impasses, is.why...)
	}
	c := &comparison{offered: other.asMember(), dropped: is.dropped, found: t.impasses}
	before, errBefore := rewritten(existing.root)
	after, errAfter := rewritten(is.node)
	if err := errors.Join(errBefore, errAfter); err != nil {
		c.say(".", "what both have cannot be written as one schema: %v", err)
		return c.found
	}
	c.narrower(".", before, after)
	return distinct(c.found)
}
