package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	multischema "rik.dev/rik/internal/multicluster/schema"
)

// settle determines the schema and the disposition of a version.
func (d *decider) settle(v *version) error {
	switch {
	case v.enforced != nil:
		d.enforce(v)
		return nil
	case v.leaves() && (!d.preview || !v.unpublishes()):
		return d.retire(v)
	case v.published():
		return d.hold(v)
	}
	return d.agree(v)
}

// leaves reports whether the version has no imports, its NegotiatedAPIResource is being deleted, or
// the user has unpublished it.
func (v *version) leaves() bool {
	if len(v.all) == 0 {
		return true
	}
	if v.have == nil {
		return false
	}
	return v.have.DeletionTimestamp != nil || v.unpublishes()
}

// unpublishes reports whether the version is served and the user has unpublished it.
func (v *version) unpublishes() bool {
	return len(v.all) > 0 && v.have != nil && v.served != nil && !v.have.Spec.Publish
}

// published reports whether the version is served or is to be. A version that was enforced does
// not count, because the user did not ask for it.
func (v *version) published() bool {
	return v.served != nil || v.have != nil && v.have.Spec.Publish && !v.wasEnforced()
}

func (v *version) wasEnforced() bool {
	return v.have != nil && v.have.Annotations[apiresourcev1alpha1.EnforcedByAnnotation] != ""
}

// enforce checks the imports against the schema of a manual CRD or of the kcp itself. Without
// imports, or with a NegotiatedAPIResource that is being deleted, it does nothing.
func (d *decider) enforce(v *version) {
	if len(v.all) == 0 || v.have != nil && v.have.DeletionTimestamp != nil {
		return
	}
	v.disposition, v.spec = dispositionEnforced, v.enforced
	v.checkAll()
}

// retire removes a version unless objects of it are stored.
func (d *decider) retire(v *version) error {
	if v.served == nil {
		return nil
	}
	v.disposition, v.spec = dispositionRetiring, v.served
	v.members = v.recorded()
	v.checkAll()
	if slices.Contains(d.CRD.Status.StoredVersions, v.name) {
		v.inUse = d.stored()
	}
	return nil
}

// checkAll checks every import against the spec, which does not change.
func (v *version) checkAll() {
	var good []*candidate
	for _, c := range v.all {
		if c.invalid == "" {
			good = c.check(multischema.Offer{Spec: *v.spec}, good)
		}
	}
}

// agree sets the schema of an unpublished version to the agreement of its imports.
func (d *decider) agree(v *version) error {
	agreement := admit(v.all, func(c *candidate) bool {
		return c.source.Spec.SchemaUpdateStrategy != apiresourcev1alpha1.UpdateNever
	})
	if agreement == nil {
		return nil
	}
	spec, err := normal(&agreement.Spec)
	if err != nil {
		return fmt.Errorf("reading the schema of the agreement: %w", err)
	}
	v.disposition, v.spec, v.members = dispositionAgreed, spec, v.compatible()
	if d.preview || (v.have == nil || v.wasEnforced()) && d.AutoPublish {
		v.disposition = dispositionPublished
	}
	return nil
}

// hold keeps the schema of a published version, or changes it if the rules and the stored objects
// allow that.
func (d *decider) hold(v *version) error {
	base := v.served
	if base == nil {
		var err error
		if base, err = normal(&v.have.Spec.CommonAPIResourceSpec); err != nil {
			return fmt.Errorf("reading the negotiated schema: %w", err)
		}
	}
	v.disposition, v.spec = dispositionPublished, base
	if v.departed() || v.follows() {
		if adopted, err := d.renegotiate(v, base); adopted || err != nil {
			return err
		}
	}
	if err := d.narrow(v); err != nil {
		return err
	}
	// The recorded clusters stay, so that a departure is noticed and handled again.
	v.members = merged(v.recorded(), v.compatible())
	return nil
}

// departed reports whether a cluster that was compatible with the schema has left.
func (v *version) departed() bool {
	return slices.ContainsFunc(v.recorded(), func(location string) bool {
		return !slices.ContainsFunc(v.all, func(c *candidate) bool { return c.offer.Location == location })
	})
}

// follows reports whether every import allows changes of a published schema.
func (v *version) follows() bool {
	return !slices.ContainsFunc(v.all, func(c *candidate) bool {
		return c.source.Spec.SchemaUpdateStrategy != apiresourcev1alpha1.UpdatePublished
	})
}

// recorded returns the clusters that were last compatible with the schema.
func (v *version) recorded() []string {
	if v.have == nil || v.have.Annotations[apiresourcev1alpha1.AgreedByAnnotation] == "" {
		return nil
	}
	return strings.Split(v.have.Annotations[apiresourcev1alpha1.AgreedByAnnotation], ",")
}

// compatible returns the clusters whose imports are compatible with the spec, sorted.
func (v *version) compatible() []string {
	var out []string
	for _, c := range v.all {
		if c.compatible {
			out = append(out, c.offer.Location)
		}
	}
	return merged(out)
}

// merged returns the names of all lists, sorted and without duplicates.
func merged(lists ...[]string) []string {
	out := slices.Concat(lists...)
	slices.Sort(out)
	return slices.Compact(out)
}

// renegotiate replaces the schema by the agreement of all imports, if no stored object loses
// anything.
func (d *decider) renegotiate(v *version, base *apiresourcev1alpha1.CommonAPIResourceSpec) (adopted bool, err error) {
	anew := make([]*candidate, 0, len(v.all))
	for _, c := range v.all {
		fresh := *c
		anew = append(anew, &fresh)
	}
	agreement := admit(anew, func(*candidate) bool { return true })
	if agreement == nil {
		return false, nil
	}
	spec, err := normal(&agreement.Spec)
	if err != nil {
		return false, fmt.Errorf("reading the schema of the agreement: %w", err)
	}
	safe, err := d.mayReplace(base, spec)
	if lenient, _ := multischema.MeetOptional(offers(taking(anew))...); err == nil && !safe && lenient != nil {
		// Stored objects may lack a field that is required only because defaults differ.
		if spec, err = normal(&lenient.Spec); err == nil {
			safe, err = d.mayReplace(base, spec)
		}
	}
	if !safe || err != nil {
		return false, err
	}
	v.all, v.spec = anew, spec
	v.members = v.compatible()
	return true, nil
}

// taking returns the candidates that take part in an agreement.
func taking(all []*candidate) []*candidate {
	var members []*candidate
	for _, c := range all {
		if c.compatible {
			members = append(members, c)
		}
	}
	return members
}

// mayReplace reports whether a schema can replace one that is served.
func (d *decider) mayReplace(base, spec *apiresourcev1alpha1.CommonAPIResourceSpec) (bool, error) {
	if equal(base, spec) || multischema.IsCompatible(multischema.Offer{Spec: *base}, multischema.Offer{Spec: *spec}) {
		return true, nil
	}
	obstacle, err := d.firstMismatch(spec)
	return obstacle == nil, err
}

// narrow checks every import against the schema. It narrows the schema for imports that allow it,
// if no stored object changes.
func (d *decider) narrow(v *version) error {
	var good []*candidate
	for _, c := range v.all {
		if c.invalid != "" {
			continue
		}
		good = c.check(multischema.Offer{Spec: *v.spec}, good)
		if c.compatible || c.source.Spec.SchemaUpdateStrategy != apiresourcev1alpha1.UpdatePublished {
			continue
		}
		good = nil // they were compatible with the old schema
		if err := d.narrowFor(v, c); err != nil {
			return err
		}
	}
	return nil
}

func (d *decider) narrowFor(v *version, c *candidate) error {
	// Include the candidates that are already compatible: the schema may have a default that not
	// all of them have.
	all := append([]multischema.Offer{{Spec: *v.spec}, c.offer}, offers(taking(v.all))...)
	agreement, obstacles := multischema.Meet(all...)
	if agreement == nil {
		c.obstacles = obstacles
		return nil
	}
	spec, obstacle, err := d.narrowed(agreement)
	if err != nil {
		return err
	}
	if obstacle != nil {
		// The objects may lack a field that is required only because defaults differ.
		if lenient, _ := multischema.MeetOptional(all...); lenient != nil && !equal(&lenient.Spec, &agreement.Spec) {
			agreement = lenient
			if spec, obstacle, err = d.narrowed(agreement); err != nil {
				return err
			}
		}
	}
	if obstacle != nil {
		obstacle := *obstacle
		obstacle.Locations = []string{c.offer.Location}
		c.obstacles = append([]apiresourcev1alpha1.Obstacle{obstacle}, c.obstacles...)
		return nil
	}
	v.spec = spec
	c.compatible, c.obstacles = true, nil
	c.dropped = ofLocation(agreement.Dropped, c.offer.Location)
	return nil
}

// narrowed returns the schema of an agreement, and the stored object that does not fit it.
func (d *decider) narrowed(agreement *multischema.Agreement) (*apiresourcev1alpha1.CommonAPIResourceSpec, *apiresourcev1alpha1.Obstacle, error) {
	spec, err := normal(&agreement.Spec)
	if err != nil {
		return nil, nil, fmt.Errorf("reading a narrowed schema: %w", err)
	}
	obstacle, err := d.firstMismatch(spec)
	return spec, obstacle, err
}

// equal compares two specs in their normal form.
func equal(a, b *apiresourcev1alpha1.CommonAPIResourceSpec) bool {
	left, err := json.Marshal(a)
	if err != nil {
		return false
	}
	right, err := json.Marshal(b)
	return err == nil && bytes.Equal(left, right)
}
